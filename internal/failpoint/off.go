//go:build !failpoints || !unix

// Package failpoint marks the places between two steps where it matters that a process may end. In a program that is
// built with the tag failpoints, an environment variable can kill, stall, freeze, stop or panic the process
// there; docs/project/failpoints.md says how. In every other program the package is empty, and links nothing.
package failpoint

// Hit does nothing, and compiles to nothing.
func Hit(Point) {}
