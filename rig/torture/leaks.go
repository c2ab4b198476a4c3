//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// disguises are the canary as logs may print a payload: as text, as %v, %#v and %x print bytes, and as JSON has them.
var disguises = func() (all [][]byte) {
	each := func(verb string) (s []string) {
		for _, b := range []byte(canary) {
			s = append(s, fmt.Sprintf(verb, b))
		}
		return s
	}
	for _, text := range []string{canary, strings.Join(each("%d"), " "), strings.Join(each("%#x"), ", "), fmt.Sprintf("%x", canary),
		base64.StdEncoding.EncodeToString([]byte(canary))} {
		all = append(all, []byte(text))
	}
	return all
}()

// leaks names the lines in the files of a folder that have a payload, and does not repeat them.
func leaks(dir string) (places []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, fmt.Errorf("look for payloads in logs: %w", err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("look for payloads in logs: %w", err)
		}
		defer f.Close()
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 64<<20)
		for n := 1; lines.Scan(); n++ {
			if leaky(lines.Bytes()) {
				places = append(places, fmt.Sprintf("line %d of %s", n, filepath.Base(name)))
			}
		}
		if err := lines.Err(); err != nil {
			return nil, fmt.Errorf("look for payloads in %s: %w", name, err)
		}
	}
	return places, nil
}

func leaky(line []byte) bool {
	return slices.ContainsFunc(disguises, func(d []byte) bool { return bytes.Contains(line, d) })
}
