// Package lifeline cleans up after a program that ends without having cleaned up itself: one
// that was killed, that paniced, or that called os.Exit.
package lifeline

import (
	"io"
	"os/exec"
	"sync"
)

// Line is a shell that waits for this process to end.
//
// It works by a pipe: the shell reads from one end, this process holds the other and closes it
// by ending, in whatever way. It needs no signal, no thread and no polling, and so works on every
// Unix alike; Linux's parent death signal reaches one process only and removes no files.
type Line struct {
	mu   sync.Mutex
	cmd  *exec.Cmd
	pipe io.WriteCloser
}

// Release tells the shell that there is nothing left to clean up and waits for it to end. It may
// be called many times, and on a nil Line.
func (l *Line) Release() {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pipe == nil {
		return
	}
	_, _ = io.WriteString(l.pipe, "released\n")
	_ = l.pipe.Close()
	_ = l.cmd.Wait()
	l.pipe = nil
}
