package docker

import "github.com/holdfast-go/holdfast/internal/test/lifeline"

// Attach does nothing on Windows: the reaper of testcontainers-go has to do.
func Attach(string) *lifeline.Line { return nil }

func attachable() bool { return false }
