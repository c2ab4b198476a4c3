// Package logtest is a log that a test reads.
package logtest

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"
)

// Log is what a logger writes to. The zero Log is empty. Its methods may be called by many goroutines at once.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String is what was written and not taken yet.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Take returns what was written since it was last called.
func (l *Log) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// Lines reads what an slog.JSONHandler wrote, each line into a T. It fails the test where that cannot be read.
func Lines[T any](t testing.TB, text string) (lines []T) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var line T
		if err := d.Decode(&line); err == io.EOF {
			return lines
		} else if err != nil {
			t.Fatalf("read the log: %v", err)
		}
		lines = append(lines, line)
	}
}
