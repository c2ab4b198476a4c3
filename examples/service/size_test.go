package main

import (
	"os"
	"strings"
	"testing"
)

// The whole service with its test, without blank lines and comments, and without this file.
func TestSize_TheServiceHasAtMost200Lines(t *testing.T) {
	lines := 0
	for _, name := range []string{"main.go", "shop.go", "shop_test.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				lines++
			}
		}
	}
	if lines > 200 {
		t.Errorf("it has %d lines, want at most 200", lines)
	}
	t.Logf("%d lines", lines)
}
