package pgserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Pause freezes the server, every process of it: connections stay open and nothing answers, as with a machine that
// hangs. Linux only.
func (s *Server) Pause() error { return s.signalAll(syscall.SIGSTOP) }

// Unpause lets a frozen server go on.
func (s *Server) Unpause() error { return s.signalAll(syscall.SIGCONT) }

// signalAll reaches the postmaster first, so that it starts no more children, and then those that it has.
func (s *Server) signalAll(signal syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || !s.proc.running() {
		return errStopped
	}
	postmaster := s.proc.cmd.Process.Pid
	if err := syscall.Kill(postmaster, signal); err != nil {
		return fmt.Errorf("signal the postmaster: %w", err)
	}
	children, err := childrenOf(postmaster)
	if err != nil {
		return err
	}
	for _, pid := range children {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal process %d of Postgres: %w", pid, err)
		}
	}
	return nil
}

// childrenOf reads /proc: children of the postmaster are each a session of their own, so that no group has them all.
func childrenOf(parent int) (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended meanwhile
		}
		// "pid (name) state parent …": the name may hold anything.
		fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
		if len(fields) < 2 || string(fields[1]) != strconv.Itoa(parent) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
