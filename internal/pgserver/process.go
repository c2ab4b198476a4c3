package pgserver

import (
	"os"
	"os/exec"
	"runtime"
)

// stopMode is how a server ends, by pg_ctl's names.
type stopMode string

const (
	// stopFast rolls back what is open, writes a checkpoint and ends.
	stopFast stopMode = "fast"
	// stopImmediate ends at once without a checkpoint; the next start recovers from the log.
	stopImmediate stopMode = "immediate"
)

// process is one run of the postmaster.
type process struct {
	cmd *exec.Cmd
	// done is closed when the postmaster has ended and was waited for.
	done chan struct{}
}

// spawn starts cmd and waits for it in a goroutine of its own.
//
// The goroutine keeps its OS thread for as long as the child lives. On Linux the parent death
// signal is tied to the thread that forked, not to the process: on a shared thread the server
// would be shot whenever the Go runtime lets that thread go, which it does when some other
// goroutine locks it and ends.
func spawn(cmd *exec.Cmd, logPath string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log

	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log; only that it ended matters here
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// running tells whether the postmaster has not ended yet.
func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// runLocked runs cmd to its end on a thread of its own, for the reason that spawn gives.
func runLocked(cmd *exec.Cmd) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return cmd.Run()
}
