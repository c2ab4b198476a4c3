//go:build unix

package franz

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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

	ProduceTimeout, TransactionTimeout time.Duration // 0 for the defaults
}

func (o processOrder) run() error {
	ctx, forget := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer forget()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a := &ambush{step: o.Step, turn: o.Turn, stop: o.Stop}
	c := &connections{}
	go func() { // It cannot outlive its test.
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			obey(lines.Text(), a, c)
		}
		cancel()
	}()
	reached := func(step string) {
		stop, now := a.meets(step)
		if !now {
			return
		}
		fmt.Fprintln(os.Stdout, "at", step)
		s := syscall.SIGKILL
		if stop {
			s = syscall.SIGSTOP
		}
		if err := syscall.Kill(os.Getpid(), s); err != nil {
			panic(err)
		}
		time.Sleep(100 * time.Millisecond) // sleep: until the signal is there
	}
	config, err := pgxpool.ParseConfig(o.DSN)
	if err != nil {
		return err
	}
	config.ConnConfig.RuntimeParams["application_name"] = processVar
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	k, err := NewTransactionalPublisher([]kgo.Opt{kgo.SeedBrokers(o.Brokers...), kgo.Dialer(c.dial)},
		TransactionalConfig{TransactionalID: o.ID, MarksTopic: o.Marks, ProduceTimeout: o.ProduceTimeout, TransactionTimeout: o.TransactionTimeout})
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

// ambush is the step at which a process gets a signal.
type ambush struct {
	mu   sync.Mutex
	step string
	turn int64
	stop bool // SIGSTOP in place of SIGKILL
}

// meets says whether the process gets its signal at this step, and which.
func (a *ambush) meets(step string) (stop, now bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if step != a.step {
		return false, false
	}
	a.turn--
	return a.stop, a.turn == 0
}

// connections are those of a process to its brokers.
type connections struct {
	mu     sync.Mutex
	cutter *requestCutter // of those that are made from now on, too
	open   []*requestConn
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	made := &requestConn{Conn: conn, meets: c.meets}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(slices.DeleteFunc(c.open, (*requestConn).isClosed), made)
	return made, nil
}

func (c *connections) meets(request []byte) (cut, before bool) {
	c.mu.Lock()
	cutter := c.cutter
	c.mu.Unlock()
	if cutter == nil {
		return false, false
	}
	if cut, before = cutter.meets(request); cut {
		fmt.Fprintln(os.Stdout, "at the loss")
	}
	return cut, before
}

// obey does what a line says: "signal STEP TURN STOP", "lose KEY BEFORE" for the next request of a kind or its answer, or "cut" for all
// connections.
func obey(line string, a *ambush, c *connections) {
	var step string
	var turn int64
	var key int16
	var flag bool
	if n, _ := fmt.Sscanf(line, "signal %s %d %t", &step, &turn, &flag); n == 3 {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.step, a.turn, a.stop = step, turn, flag
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n, _ := fmt.Sscanf(line, "lose %d %t", &key, &flag); n == 2 {
		c.cutter = &requestCutter{key: key, before: flag, nth: 1}
		c.cutter.armed.Store(true)
		if key != int16(kmsg.ApiVersions) { // That is the first of a connection.
			return
		}
	}
	for _, conn := range c.open {
		conn.Conn.Close()
	}
}

// process is one that runs.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
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
	p := &process{cmd: cmd, stdin: stdin, at: make(chan string, 100), ended: make(chan error, 1)}
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

// tell has the process obey a line, and forgets what it said before.
func (p *process) tell(t *testing.T, format string, args ...any) {
	t.Helper()
	for len(p.at) > 0 {
		<-p.at
	}
	if _, err := fmt.Fprintf(p.stdin, format+"\n", args...); err != nil {
		t.Fatal(err)
	}
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
