package history

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Follower reads the histories of a folder while they are written. It is for one goroutine.
type Follower struct {
	dir  string
	read map[string]int64 // bytes, by file
}

// Follow begins at the first entry of each file in dir, also of those that are not there yet.
func Follow(dir string) *Follower { return &Follower{dir: dir, read: map[string]int64{}} }

// Next returns what has been written since the last call: file by file, each in its order. Lines that were torn are left out.
func (f *Follower) Next() (entries []Entry, err error) {
	files, err := filepath.Glob(filepath.Join(f.dir, "*"+suffix))
	if err != nil {
		return nil, fmt.Errorf("follow history: %w", err)
	}
	for _, name := range files {
		own, err := f.next(name)
		if err != nil {
			return nil, fmt.Errorf("follow history %s: %w", filepath.Base(name), err)
		}
		entries = append(entries, own...)
	}
	return entries, nil
}

// next reads up to the last line that has ended.
func (f *Follower) next(name string) ([]Entry, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if _, err := file.Seek(f.read[name], io.SeekStart); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	f.read[name] += int64(len(text))
	entries, _, err := parse(bytes.NewReader(text))
	return entries, err
}
