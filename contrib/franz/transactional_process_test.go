//go:build unix

package franz

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay"
)

// A relay in a process of its own, that ends itself at a step: this test binary, started again.

const processVar = "HOLDFAST_TEST_TRANSACTIONAL_RELAY"

func init() {
	if text := os.Getenv(processVar); text != "" {
		var o processOrder
		err := json.Unmarshal([]byte(text), &o)
		if err == nil {
			err = o.run()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// The steps of a relay around those of a transaction.
const (
	stepAnswered = "answered" // the relay has its answers, and the cursor has not moved
	stepSaved    = "saved"    // the cursor is saved, and the producer does not know it
)

// processOrder is what a process does.
type processOrder struct {
	DSN       string
	Brokers   []string
	ID, Marks string

	Step string // at which it gets a signal, the Turn-th time
	Turn int64
	Stop bool // SIGSTOP in place of SIGKILL
}

func (o processOrder) run() error {
	ctx, forget := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer forget()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // It cannot outlive its test.
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	var turns atomic.Int64
	reached := func(step string) {
		if step != o.Step || turns.Add(1) != o.Turn {
			return
		}
		fmt.Fprintln(os.Stdout, "at", step)
		s := syscall.SIGKILL
		if o.Stop {
			s = syscall.SIGSTOP
		}
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			panic(err)
		}
		time.Sleep(100 * time.Millisecond) // sleep: until the signal is there
	}
	pool, err := pgxpool.New(ctx, o.DSN)
	if err != nil {
		return err
	}
	defer pool.Close()
	k, err := NewTransactionalPublisher([]kgo.Opt{kgo.SeedBrokers(o.Brokers...)}, TransactionalConfig{TransactionalID: o.ID, MarksTopic: o.Marks})
	if err != nil {
		return err
	}
	defer k.Close()
	k.reached = reached
	r, err := relay.New(pool, k, relay.Config{BatchSize: 20, Lease: 2 * time.Second, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Observer: relay.Observer{OnPublished: func(int, []holdfast.Event) { reached(stepAnswered) }, OnSaved: func(int, time.Duration) { reached(stepSaved) }}})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// process is one that runs.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	at    chan string // the step at which it got its signal
	ended chan error
}

func startProcess(t *testing.T, o processOrder) *process {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), processVar+"="+string(text))
	log := &strings.Builder{}
	cmd.Stderr = log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: cmd, stdin: stdin, at: make(chan string, 1), ended: make(chan error, 1)}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if step, ok := strings.CutPrefix(lines.Text(), "at "); ok {
				p.at <- step
			}
		}
		p.ended <- cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("relay %d: %s", cmd.Process.Pid, log)
		}
	})
	return p
}

// waitAt waits until the process is at its step.
func (p *process) waitAt(t *testing.T) {
	t.Helper()
	select {
	case <-p.at:
	case err := <-p.ended:
		t.Fatalf("the relay ended before its step: %v", err)
	case <-time.After(longEnough):
		t.Fatalf("the relay did not come to its step in %v", longEnough)
	}
}

// stop ends the process in order.
func (p *process) stop(t *testing.T) {
	t.Helper()
	p.stdin.Close()
	select {
	case err := <-p.ended:
		if err != nil {
			t.Fatalf("the relay stopped with %v", err)
		}
	case <-time.After(longEnough):
		t.Fatalf("the relay did not stop in %v", longEnough)
	}
}
