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

// Whoever counts the files finds more lines.
func TestSize_ThePagesSayWhichLinesAreCounted(t *testing.T) {
	for _, page := range []string{"../../README.md", "../README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), "200 lines, without blank ones and comments") {
			t.Errorf("%s does not say that the service has 200 lines, without blank ones and comments", page)
		}
	}
}
