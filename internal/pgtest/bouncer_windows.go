package pgtest

import "github.com/holdfast-go/holdfast/internal/pgserver/lifeline"

// attachLifeline does nothing: there is no Bouncer on Windows.
func attachLifeline(int, string) (*lifeline.Line, error) { return nil, nil }
