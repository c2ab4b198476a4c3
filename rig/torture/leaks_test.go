//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestLeaks_APayloadIsFoundInALogHoweverItIsPrinted(t *testing.T) {
	t.Parallel()
	text := []byte(canary + " 0123 \x00\xff")
	encoded, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	var logged bytes.Buffer
	slog.New(slog.NewTextHandler(&logged, nil)).With("payload", text).Info("received")
	for name, line := range map[string]string{
		"as text": string(text), "as an attribute of slog": logged.String(), "as bytes": fmt.Sprint(text), "as Go": fmt.Sprintf("%#v", text),
		"quoted": fmt.Sprintf("%q", text), "as hexadecimal digits": fmt.Sprintf("%x", text), "as bytea": fmt.Sprintf("\\x%x", text), "as JSON": string(encoded),
	} {
		if !leaky([]byte("time=1 msg=handled payload=" + line)) {
			t.Errorf("%s: it is not seen in %s", name, line)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"relay-0.log": "all is well\nand so on\n", "relay-1.log": "all is well\n" + fmt.Sprint(text)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if places, err := leaks(dir); err != nil || !slices.Equal(places, []string{"line 2 of relay-1.log"}) {
		t.Errorf("got %q, %v", places, err)
	}
}
