//go:build !linux

package main

import "os/exec"

// endWithParent does nothing: an interrupt ends cmd with its context.
func endWithParent(*exec.Cmd) {}
