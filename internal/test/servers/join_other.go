//go:build !linux

package servers

// join finds nothing to join: it takes Linux's /proc to tell whether go test runs this binary, and when it ends.
func join(string) (*process, error) { return nil, nil }
