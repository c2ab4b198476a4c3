//go:build !failpoints || !unix

// Package failpoint marks the places between two steps where it matters that a process may end. In a program that is
// built with the tag failpoints, the environment can have the process killed, stalled, frozen, made to panic or told to stop
// there; docs/failpoints.md says how. In every other program the package is empty, and links nothing.
package failpoint

// Hit is nothing, and is compiled to nothing.
func Hit(Point) {}
