package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Stop ends the server at once and removes its folder. It may be called many times, and after
// Kill or StopFast.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	s.stopped = true
	_ = s.end(stopImmediate)
	if err := os.RemoveAll(s.dir); err == nil {
		s.line.Release()
	} // else the lifeline tries again when this process ends
}

// Kill ends the server at once, as a crash does: every connection breaks, nothing is written
// back, and the next Restart recovers from the log. It returns when the server is gone.
func (s *Server) Kill() error { return s.lockedEnd(stopImmediate) }

// StopFast ends the server in good order: what is open is rolled back, connections are told
// why. It returns when the server is gone; Restart brings it back.
func (s *Server) StopFast() error { return s.lockedEnd(stopFast) }

func (s *Server) lockedEnd(mode stopMode) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	return s.end(mode)
}

var errStopped = errors.New("pgserver: this server was stopped for good")

// end stops the postmaster if it runs, harder with each time-out.
func (s *Server) end(mode stopMode) error {
	if !s.proc.running() {
		return nil
	}
	signalErr := s.signalStop(mode)
	if signalErr == nil && s.waitGone(s.opts.StopTimeout) {
		return nil
	}
	if mode != stopImmediate && s.signalStop(stopImmediate) == nil && s.waitGone(s.opts.StopTimeout) {
		return nil
	}
	// Its children notice that the postmaster is gone and end by themselves.
	_ = s.proc.cmd.Process.Kill()
	if !s.waitGone(s.opts.StopTimeout) {
		return fmt.Errorf("stop postgres: process %d does not end: %w", s.proc.cmd.Process.Pid, signalErr)
	}
	return nil
}

func (s *Server) waitGone(limit time.Duration) bool {
	select {
	case <-s.proc.done:
		return true
	case <-time.After(limit):
		return false
	}
}

// Restart stops the server in good order if it runs, and starts it on the same data and port.
// It returns when the server answers again.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errStopped
	}
	if err := s.end(stopFast); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.StartTimeout)
	defer cancel()
	return s.launch(ctx)
}

// Dir is the server's own folder. The cluster is in its folder "data".
func (s *Server) Dir() string { return s.dir }

// BinDir is the folder of the binaries that the server runs from.
func (s *Server) BinDir() string { return s.binDir }

// maxSocketDir leaves room for "/.s.PGSQL.65535" in the 103 bytes that macOS allows.
const maxSocketDir = 87

func (s *Server) bin(name string) string { return filepath.Join(s.binDir, exe(name)) }
func (s *Server) dataDir() string        { return filepath.Join(s.dir, "data") }
func (s *Server) socketDir() string      { return filepath.Join(s.dir, "socket") }
func (s *Server) logPath() string        { return filepath.Join(s.dir, "server.log") }

func (s *Server) logSize() int64 {
	info, err := os.Stat(s.logPath())
	if err != nil {
		return 0
	}
	return info.Size()
}

// logSince returns what the server wrote to its log after offset.
func (s *Server) logSince(offset int64) []byte {
	log, err := os.ReadFile(s.logPath())
	if err != nil || int64(len(log)) < offset {
		return nil
	}
	return log[offset:]
}
