package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// Recorder writes the entries of one actor. It may be used by many goroutines at once.
type Recorder struct {
	actor string
	mu    sync.Mutex
	file  *os.File
}

// suffix is how the names of files with a history end.
const suffix = ".history"

// Open makes a recorder that adds to what the actor's file in dir holds already. actor may contain slashes.
func Open(dir, actor string) (*Recorder, error) {
	name := filepath.Join(dir, strings.ReplaceAll(actor, "/", "-")+suffix)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open history: %w", err)
	}
	return &Recorder{actor: actor, file: f}, nil
}

// Add writes e, with the time, the actor and the process. It panics when the file cannot be written: a run whose
// history has holes proves nothing.
func (r *Recorder) Add(e Entry) {
	e.At, e.Actor, e.PID = time.Now(), r.actor, os.Getpid()
	line, err := json.Marshal(e)
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		// A line that a kill tore has no end: what follows must not be joined to it. Empty lines are ignored.
		_, err = r.file.Write(slices.Concat([]byte("\n"), line, []byte("\n")))
	}
	if err != nil {
		panic(fmt.Sprintf("history: %v", err))
	}
}

// Close closes the file.
func (r *Recorder) Close() error { return r.file.Close() }

// Read returns the entries of all files in dir in the order of their times, and how many lines were torn.
func Read(dir string) (entries []Entry, torn int, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return nil, 0, fmt.Errorf("read history: %w", err)
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, 0, fmt.Errorf("read history: %w", err)
		}
		own, n, err := parse(f)
		_ = f.Close()
		if err != nil {
			return nil, 0, fmt.Errorf("read history %s: %w", filepath.Base(name), err)
		}
		entries, torn = append(entries, own...), torn+n
	}
	slices.SortStableFunc(entries, func(a, b Entry) int { return a.At.Compare(b.At) })
	return entries, torn, nil
}

// parse reads one file. A line that is not JSON was torn by a kill; the lines of its neighbours are whole.
func parse(r io.Reader) (entries []Entry, torn int, err error) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var e Entry
			if json.Unmarshal(line, &e) != nil {
				torn++
			} else {
				entries = append(entries, e)
			}
		}
		if errors.Is(err, io.EOF) {
			return entries, torn, nil
		}
		if err != nil {
			return nil, torn, err
		}
	}
}
