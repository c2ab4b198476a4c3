package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A file that was moved would be mutated no more, and nobody would notice.
func TestTargets_TheFilesThatAreMutatedAreThere(t *testing.T) {
	t.Parallel()
	for _, of := range targets {
		for _, file := range of.files {
			if _, err := os.Stat(filepath.Join("..", "..", of.path(file))); err != nil {
				t.Error(err)
			}
		}
		for _, dir := range of.also {
			if _, err := os.Stat(filepath.Join("..", "..", dir)); err != nil {
				t.Error(err)
			}
		}
	}
}
