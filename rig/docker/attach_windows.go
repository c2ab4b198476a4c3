package docker

import "github.com/holdfast-go/holdfast/internal/test/lifeline"

// attach does nothing on Windows: the reaper of testcontainers-go has to do.
func attach(string) *lifeline.Line { return nil }

func attachable() bool { return false }
