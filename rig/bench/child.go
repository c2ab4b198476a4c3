package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// A child is this program again, running only a relay, a consumer or a loop that does nothing, so that its memory and CPU time are theirs. It reads lines
// from standard input and answers each with "<events published or handled> <CPU time in ns> <statements>". It ends when its input ends, so
// it cannot run longer than its parent.

type childOptions struct {
	database string
	topic    string // consumes it; "" runs a relay
	batch    int
	bare     float64 // sends so many statements a second that do nothing, and does nothing else
	profile  string
}

func runChild(o childOptions) error {
	signal.Ignore(os.Interrupt) // an interrupt at the terminal is for the parent, which then stops us
	e := &env{dsn: os.Getenv("DATABASE_URL")}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	config, err := e.poolConfig(o.database)
	if err != nil {
		return err
	}
	var statements statementCounter
	config.ConnConfig.Tracer = &statements
	if o.topic != "" {
		config.MaxConns = consumerWorkers + 4
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	var published atomic.Int64
	brokers := strings.Split(os.Getenv("KAFKA_BROKERS"), ",")
	var work func(ctx context.Context) error
	switch {
	case o.bare > 0:
		work = func(ctx context.Context) error { return sendNothing(ctx, pool, o.bare) }
	case o.topic == "":
		r, closeIdle, err := newRelay(pool, brokers, relay.Observer{OnPublished: func(_ int, events []holdfast.Event) { published.Add(int64(len(events))) }})
		if err != nil {
			return err
		}
		defer closeIdle()
		work = r.Run
	default:
		in, group, err := newConsumer(pool, brokers, o.database, o.topic, o.batch, 0, inbox.Observer{OnReceive: func(r inbox.Received) {
			if r.Outcome == inbox.Handled || r.Outcome == inbox.Dead {
				published.Add(1)
			}
		}})
		if err != nil {
			return err
		}
		work = func(ctx context.Context) error { return in.Consume(ctx, group) }
	}
	if o.profile != "" {
		done, err := startProfile(o.profile)
		if err != nil {
			return err
		}
		defer done()
	}
	go func() {
		defer stop()
		questions := bufio.NewScanner(os.Stdin)
		for questions.Scan() {
			fmt.Println(published.Load(), cpuTime().Nanoseconds(), statements.n.Load())
		}
	}()
	return work(ctx)
}

// sendNothing sends so many statements a second as a relay sends its own: through a pool, with a bound on their time.
func sendNothing(ctx context.Context, pool *pgxpool.Pool, rate float64) error {
	ticks := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
		var one int
		err := pool.QueryRow(bounded, "select 1").Scan(&one)
		cancel()
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// statementCounter counts the statements that a pool sends, those of a batch one by one.
type statementCounter struct{ n atomic.Int64 }

func (c *statementCounter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *statementCounter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *statementCounter) TraceBatchStart(ctx context.Context, _ *pgx.Conn, b pgx.TraceBatchStartData) context.Context {
	c.n.Add(int64(b.Batch.Len()))
	return ctx
}

func (c *statementCounter) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (c *statementCounter) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// usage is what a child answers.
type usage struct {
	published  int64
	cpu        time.Duration
	statements int64
}

// child is the parent's end of it.
type child struct {
	cmd     *exec.Cmd
	input   io.WriteCloser
	answers *bufio.Scanner
}

func (e *env) startChild(o childOptions) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	args := []string{"-child-database", o.database}
	if o.topic != "" {
		args = append(args, "-child-topic", o.topic, "-child-batch", strconv.Itoa(o.batch))
	}
	if o.bare > 0 {
		args = append(args, "-child-bare", fmt.Sprint(o.bare))
	}
	if e.options.cpuProfile != "" {
		args = append(args, "-child-cpuprofile", e.options.cpuProfile+".child")
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+e.dsn, "KAFKA_BROKERS="+strings.Join(e.kafka.Brokers, ","))
	cmd.Stderr = os.Stderr
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the child's process: %w", err)
	}
	return &child{cmd: cmd, input: input, answers: bufio.NewScanner(output)}, nil
}

// ask returns what the child's process has done and used so far.
func (c *child) ask() (u usage, err error) {
	if _, err := io.WriteString(c.input, "\n"); err != nil {
		return u, fmt.Errorf("ask the child's process: %w", err)
	}
	if !c.answers.Scan() {
		return u, errors.Join(errors.New("the child's process has ended"), c.answers.Err())
	}
	_, err = fmt.Sscan(c.answers.Text(), &u.published, (*int64)(&u.cpu), &u.statements)
	return u, err
}

// resident is the process's resident set, in MiB, and its peak so far. Where there is no /proc the peak is not known, and
// stands for the highest that was seen.
func (c *child) resident() (now, peak float64, err error) {
	pid := strconv.Itoa(c.cmd.Process.Pid)
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		out, err := exec.Command("ps", "-o", "rss=", "-p", pid).Output()
		if err != nil {
			return 0, 0, fmt.Errorf("read the resident set: %w", err)
		}
		now, err = kibibytes(string(out))
		return now, now, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, "VmRSS:"); found && err == nil {
			now, err = kibibytes(rest)
		}
		if rest, found := strings.CutPrefix(line, "VmHWM:"); found && err == nil {
			peak, err = kibibytes(rest)
		}
	}
	return now, peak, err
}

func kibibytes(text string) (mebibytes float64, err error) {
	n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
	return float64(n) / 1024, err
}

// stop lets the relay hand back its lanes and waits for the process to end.
func (c *child) stop() error {
	if c.cmd.ProcessState != nil {
		return nil
	}
	_ = c.input.Close()
	kill := time.AfterFunc(30*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("the child's process: %w", err)
	}
	return nil
}
