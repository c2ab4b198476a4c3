//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/history"
)

// partVar makes a program that calls IsPart a part of a run. Its value is a part in JSON.
const partVar = "HOLDFAST_TORTURE_PART"

// Roles of parts.
const (
	roleProducer = "producer"
	roleRelay    = "relay"
	roleConsumer = "consumer"
	rolePerson   = "person"
)

// part is what a process needs to know to be a part of the run.
type part struct {
	Role    string
	Actor   string // "relay/1", for the history
	History string // the folder
	DSN     string
	Mode    string // pgx's default_query_exec_mode
	Brokers []string
	Through map[string]string // the address that is dialled in place of each broker's
	Topics  []string
	Late    string // a topic that is not there all the time

	Provider string // the URL of what some handlers need
	Misspelt string // a topic that never exists: a person redirects what waits for it to the first of Topics
	Seed     uint64 // of this process: another one after each start
	Rate     int    // transactions a second of a producer
	Bug      string // a bug to have on purpose: see bugs.go
}

// IsPart says whether this process was started as a part of a run: then main must call RunPart and nothing else.
func IsPart() bool { return os.Getenv(partVar) != "" }

// stopWithin is how long a part may take to stop. After that it reports where it hangs, and ends.
const stopWithin = 40 * time.Second

// RunPart is the whole program of a part, and returns its exit status. It stops in order when its standard input ends:
// when the run closes it, or has ended.
func RunPart() int {
	var p part
	if err := json.Unmarshal([]byte(os.Getenv(partVar)), &p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	_ = os.Unsetenv(partVar)
	rec, err := history.Open(p.History, p.Actor)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	before := runtime.NumGoroutine()
	rec.Add(history.Entry{Op: history.Begin, Text: p.Role})
	if err := p.run(rec); err != nil {
		rec.Add(history.Entry{Op: history.End, How: history.Failed, Text: err.Error()})
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	left := leftover(before)
	how := history.OK
	if left != "" {
		how = history.Failed
	}
	rec.Add(history.Entry{Op: history.End, How: how, Text: left})
	return 0
}

// run opens the pool, runs the role until standard input ends, and closes the pool.
func (p part) run(rec *history.Recorder) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	pool, err := p.pool()
	if err != nil {
		return err
	}
	conduct := &conduct{}
	go func() {
		obey(pool, conduct)
		cancel()
		time.Sleep(stopWithin)
		stacks := make([]byte, 1<<20)
		os.Stderr.Write(stacks[:runtime.Stack(stacks, true)])
		os.Exit(3)
	}()
	logger := slog.New(&logHandler{
		Handler: slog.NewTextHandler(os.Stderr, nil),
		rec:     rec,
		mute:    p.Bug == bugMute+p.Role,
	}).With("part", p.Actor)
	err = p.be(ctx, pool, rec, logger, conduct)
	closed := make(chan struct{})
	go func() { defer close(closed); pool.Close() }()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		return errors.Join(err, fmt.Errorf("%d connections are not given back", pool.Stat().AcquiredConns()))
	}
	return err
}

func (p part) be(ctx context.Context, pool *pgxpool.Pool, rec *history.Recorder, logger *slog.Logger, c *conduct) error {
	switch p.Role {
	case roleProducer:
		return p.produce(ctx, pool, rec, c)
	case roleRelay:
		return p.relay(ctx, pool, rec, logger)
	case roleConsumer:
		return p.consume(ctx, pool, rec, logger, c)
	case rolePerson:
		return p.decide(ctx, pool, rec, logger, c)
	}
	return fmt.Errorf("role is %q", p.Role)
}

// pool is a small one: a fault can use it up.
func (p part) pool() (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(p.DSN)
	if err != nil {
		return nil, errors.New("open pool: the connection string cannot be parsed")
	}
	modes := map[string]pgx.QueryExecMode{"": pgx.QueryExecModeCacheStatement, "exec": pgx.QueryExecModeExec,
		"cache_describe": pgx.QueryExecModeCacheDescribe, "simple_protocol": pgx.QueryExecModeSimpleProtocol}
	config.ConnConfig.DefaultQueryExecMode = modes[p.Mode]
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.MaxConns = 10
	config.ConnConfig.RuntimeParams["application_name"] = p.name()
	return pgxpool.NewWithConfig(context.Background(), config)
}

// name is unique among all processes that had this place, in the database too.
func (p part) name() string { return fmt.Sprint(p.Actor, "/", os.Getpid()) }

// obey reads commands, a line each, until there are no more. "hog 3s" takes all connections of the pool for so long;
// "misbehave panic" has handlers misbehave until "behave". Producers misspell a topic so, and a person finishes.
func obey(pool *pgxpool.Pool, c *conduct) {
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if kind, ok := strings.CutPrefix(lines.Text(), "misbehave "); ok {
			c.set(kind)
		} else if lines.Text() == "behave" {
			c.set("")
		} else if text, ok := strings.CutPrefix(lines.Text(), "hog "); ok {
			if d, err := time.ParseDuration(text); err == nil {
				go hog(pool, d)
			}
		}
	}
}

// hog takes connections until it has all or the time is over, and gives them back then.
func hog(pool *pgxpool.Pool, d time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var taken []*pgxpool.Conn
	for range pool.Config().MaxConns {
		c, err := pool.Acquire(ctx)
		if err != nil {
			break
		}
		taken = append(taken, c)
	}
	<-ctx.Done()
	for _, c := range taken {
		c.Release()
	}
}

// leftover lists goroutines that run although all work has ended, by their creators. Some need a moment to end.
func leftover(before int) string {
	const own = 1 // the one that watches over the stop
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if runtime.NumGoroutine() <= before+own {
			return ""
		}
	}
	stacks := make([]byte, 1<<20)
	makers := map[string]int{}
	for line := range strings.Lines(string(stacks[:runtime.Stack(stacks, true)])) {
		if maker, ok := strings.CutPrefix(line, "created by "); ok {
			maker, _, _ = strings.Cut(strings.TrimSpace(maker), " in goroutine")
			makers[maker]++
		}
	}
	return fmt.Sprintf("goroutines by who made them: %v", makers)
}

// logHandler also writes warnings and errors to the history.
type logHandler struct {
	slog.Handler
	rec  *history.Recorder
	mute bool // injected
}

func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && !h.mute {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool {
			text += fmt.Sprintf(" %s=%v", a.Key, a.Value)
			return true
		})
		h.rec.Add(history.Entry{Op: history.Log, Text: text})
	}
	return h.Handler.Handle(ctx, r)
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &logHandler{Handler: h.Handler.WithAttrs(attrs), rec: h.rec, mute: h.mute}
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{Handler: h.Handler.WithGroup(name), rec: h.rec, mute: h.mute}
}

// dial connects to a broker's proxy in its place.
func (p part) dial(connect func(ctx context.Context, network, address string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		proxy, err := p.proxyOf(address)
		if err != nil {
			return nil, err
		}
		return connect(ctx, network, proxy)
	}
}
