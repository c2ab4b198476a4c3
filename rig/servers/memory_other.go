//go:build !linux

package main

// memoryDir is "": only Linux has a folder in memory that is always there.
func memoryDir() string { return "" }
