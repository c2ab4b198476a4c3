package inbox

import (
	"context"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// swallower is a proxy to Postgres that can swallow whatever is sent on the connections that it has by then, both ways. Neither
// side hears of it. Later connections work.
type swallower struct {
	backend string
	mu      sync.Mutex
	links   []*link
}

type link struct {
	client, server net.Conn
	swallows       atomic.Bool
}

// pool is a pool to the test's database through the proxy.
func (s *swallower) pool(b *bundle, change ...func(*pgxpool.Config)) *pgxpool.Pool {
	b.Helper()
	u, err := url.Parse(b.db.DSN)
	if err != nil {
		b.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s.backend = u.Host
	go s.serve(listener)
	u.Host = listener.Addr().String()
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 30
	for _, f := range change {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	b.Cleanup(func() { // before the pool is closed, which would wait for answers
		_ = listener.Close()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, l := range s.links {
			_, _ = l.client.Close(), l.server.Close()
		}
	})
	return pool
}

func (s *swallower) serve(listener net.Listener) {
	for {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", s.backend)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{client: client, server: server}
		s.mu.Lock()
		s.links = append(s.links, l)
		s.mu.Unlock()
		go l.pipe(client, server)
		go l.pipe(server, client)
	}
}

func (l *link) pipe(from, to net.Conn) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		switch {
		case l.swallows.Load():
			if err != nil && from == l.client {
				return // The server does not hear that the client is gone.
			}
		case n > 0:
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

// swallow swallows from now on what the present connections send.
func (s *swallower) swallow() (links []*link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		l.swallows.Store(true)
	}
	return append(links, s.links...)
}

// warm gives a pool n idle connections.
func warm(b *bundle, pool *pgxpool.Pool, n int) {
	b.Helper()
	var conns []*pgxpool.Conn
	for range n {
		conn, err := pool.Acquire(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		conn.Release()
	}
}

// short is a Config whose waits are as short as they can be.
func short(c *Config) {
	c.Timeout, c.Grace, c.ImmediateRetries, c.Workers = 5*time.Second, time.Second, 3, 4
}

// busy is how much longer than on a machine with time something may take now: small transactions are measured.
func (b *bundle) busy() time.Duration {
	b.Helper()
	begun := time.Now()
	for range 50 {
		pgtest.Exec(b, b.db, "select 1")
	}
	return 50 * time.Since(begun)
}

// running starts a watch that stands still while the process does: what it says is no longer than what time.Since says. A bound that is
// held to it is as tight as it looks, and is not broken by a machine that gives the process nothing for a moment.
func (b *bundle) running() (took func() time.Duration) {
	var ran atomic.Int64
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		const tick, most = 10 * time.Millisecond, 50 * time.Millisecond
		ticks := time.NewTicker(tick)
		defer ticks.Stop()
		for last := time.Now(); ; {
			select {
			case <-ticks.C:
				now := time.Now()
				ran.Add(int64(min(now.Sub(last), most)))
				last = now
			case <-ended:
				return
			}
		}
	})
	b.Cleanup(func() { close(ended); watching.Wait() })
	return func() time.Duration { return time.Duration(ran.Load()) }
}

// spent is how many attempts were spent on failures.
func (b *bundle) spent() int64 {
	b.Helper()
	b.observed.mu.Lock()
	defer b.observed.mu.Unlock()
	return int64(len(b.observed.retries)+len(b.observed.dead)) + b.count("select count(*) from holdfast.inbox where attempts <> 1")
}

// One connection did not answer in time. Of the others those are closed that do not answer either. On a machine that stands still for two
// seconds just then all are: that is tried again.
func TestSwallow_AfterADeadConnectionTheIdleOnesAreTested(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	const tries = 5
	for try := 1; ; try++ {
		left := b.afterADeadConnection()
		if left == 3 {
			return
		}
		if try == tries {
			t.Fatalf("%d connections, want the 3 that answer", left)
		}
	}
}

// afterADeadConnection tests a pool with six idle connections that swallow, and three that answer, and is how many are left.
func (b *bundle) afterADeadConnection() (left int32) {
	b.Helper()
	t := b.T
	var proxy swallower
	pool := proxy.pool(b)
	in := b.inboxOn(pool, short, func(c *Config) { c.Timeout = 20 * time.Second }) // Those that answer have longer to do so.
	take := func(n int) (conns []*pgxpool.Conn) {
		for range n {
			conn, err := pool.Acquire(b.Context())
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, conn)
		}
		return conns
	}
	dead := take(6)
	proxy.swallow()
	for _, conn := range append(dead, take(3)...) {
		conn.Release()
	}
	in.suspect(pgError("23505")) // It was answered.
	if n := pool.Stat().TotalConns(); n != 9 {
		t.Fatalf("%d connections, want 9", n)
	}
	begun := time.Now()
	in.suspect(context.DeadlineExceeded)
	if took := time.Since(begun); took > 30*time.Second { // Nobody bounds it otherwise.
		t.Errorf("the test took %s", took)
	}
	wait.Until(t, "those that swallow to be closed", func() bool { return pool.Stat().TotalConns() <= 3 })
	left = pool.Stat().TotalConns()
	if err := pool.Ping(b.Context()); err != nil || left == 3 && pool.Stat().TotalConns() != 3 {
		t.Errorf("%d connections, %v; want the 3 that answer", pool.Stat().TotalConns(), err)
	}
	return left
}

// A firewall that forgets connections while a consumer is idle.
func TestSwallow_IdleConnectionsThatSwallowAreGivenUp(t *testing.T) {
	skip.InShort(t, "it takes 10 s beside the others")
	b := setup(t)
	var proxy swallower
	pool := proxy.pool(b)
	in := b.inboxOn(pool, short)
	in.Handle("order.placed", effectOf)
	g := newFakeGeneration(logOf(keyed(40, 40)...))
	g.gate = make(chan struct{})
	warm(b, pool, 20)
	busy := b.busy()
	b.consumeFake(in, g)
	b.awaitSettled(1)
	idle := time.Now().Add(1100 * time.Millisecond) // pgx pings a connection that was idle for a second
	wait.Until(t, "the connections to be idle", func() bool { return time.Now().After(idle) })
	proxy.swallow()
	running := b.running()
	close(g.gate)
	b.await("all events", func(o *observations) bool { return len(o.outcomes) == 40 })
	took := running()
	if limit := 3*in.c.Timeout + busy + b.busy(); took > limit { // one after the other they would take 20 * in.c.Timeout / in.c.Workers
		t.Errorf("it took %s, want at most %s", took, limit)
	}
	t.Logf("handled %s after the connections began to swallow", took)
	if n := b.spent(); n != 0 {
		t.Errorf("%d attempts were spent on the network", n)
	}
}

// It is gone while handlers run: some compute, and some wait for Postgres.
func TestSwallow_HandlersWhoseConnectionSwallowsSpendNoAttempt(t *testing.T) {
	skip.InShort(t, "it takes 17 s beside the others")
	b := setup(t)
	var proxy swallower
	pool := proxy.pool(b)
	// Whether its connection swallows is asked two seconds before a handler's time is over. What it had not sent by then is its own slowness.
	in := b.inboxOn(pool, short, func(c *Config) { c.Timeout = 8 * time.Second })
	var began atomic.Int64
	var running func() time.Duration
	swallowed := make(chan struct{})
	var first sync.Map
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		if _, again := first.LoadOrStore(e.ID, true); !again && e.ID < "00004" {
			if began.Add(1) == 4 {
				proxy.swallow()
				running = b.running()
				close(swallowed)
			}
			<-swallowed
		}
		return effectOf(ctx, tx, e)
	})
	busy := b.busy()
	b.store(in, event("stored", "s"))
	b.consumeFake(in, newFakeGeneration(logOf(keyed(20, 20)...)))
	b.await("all events", func(o *observations) bool { return len(o.outcomes) == 21 })
	// What they left open holds their rows until Postgres ends it: G8.
	took, limit := running(), in.c.Timeout+idleTimeout(in.c)+2*in.c.Timeout+busy+b.busy()
	if took > limit {
		t.Errorf("it took %s, want at most %s", took, limit)
	}
	t.Logf("handled %s after the connections began to swallow", took)
	if n := b.spent(); n != 0 {
		t.Errorf("%d attempts were spent on the network", n)
	}
	if n := b.count("select count(*) from effect"); n != 21 {
		t.Errorf("%d effects, want 21", n)
	}
}

// The handler's own slowness is its own, with a network that works.
func TestSwallow_AStatementThatTakesTooLongSpendsAnAttempt(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout = 3 * time.Second })
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := tx.Exec(ctx, asleep)
		return err
	})
	b.receive(in, event("1", "k"), Retrying)
	if n := b.count("select count(*) from holdfast.stored where attempts = 1"); n != 1 {
		t.Error("no attempt was spent")
	}
}

// Run has no worker that finds out: its claim does.
func TestSwallow_AClaimThatIsSwallowedIsGivenUp(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	var proxy swallower
	pool := proxy.pool(b)
	in := b.inboxOn(pool, short)
	in.Handle("order.placed", effectOf)
	b.store(in, event("1", "k"))
	b.run(in.Run)
	b.awaitOutcome("1", Handled)
	busy := b.busy()
	proxy.swallow()
	running := b.running()
	other := b.inbox()
	b.store(other, event("2", "k"))
	b.awaitOutcome("2", Handled)
	if took, limit := running(), 2*in.c.Timeout+busy+b.busy(); took > limit {
		t.Errorf("it took %s, want at most %s", took, limit)
	}
	if n := b.spent(); n != 0 {
		t.Errorf("%d attempts were spent on the network", n)
	}
}

// Each of our own waits ends by itself: BEGIN, the insert, what follows a handler, COMMIT.
func TestSwallow_EachWaitOfTheInboxHasABound(t *testing.T) {
	skip.InShort(t, "it takes 35 s beside the others")
	b := setup(t)
	var proxy swallower
	pool := proxy.pool(b)
	in := b.inboxOn(pool, short)
	in.Handle("order.placed", effectOf)
	in.registry.start()
	limit := 2 * max(2*in.c.Timeout, finishTimeout+leastWait) // None ends by itself without a bound.
	for name, do := range map[string]func(ctx context.Context, swallow func()) error{
		"connection": func(ctx context.Context, swallow func()) error {
			conn, err := in.acquire(ctx)
			if err != nil {
				return err
			}
			swallow()
			delete(conn.Conn().PgConn().CustomData(), "holdfast.cutoff") // so that it is asked something, as a ping would
			conn.Release()
			_, err = in.acquire(ctx)
			return err
		},
		"COMMIT": func(ctx context.Context, swallow func()) error {
			return in.receiver.runner.transact(ctx, func(context.Context, pgx.Tx) error { swallow(); return nil })
		},
		"a statement of ours": func(ctx context.Context, swallow func()) error {
			return in.receiver.runner.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
				swallow()
				_, err := tx.Exec(ctx, "select 1")
				return err
			})
		},
		"what follows a handler": func(ctx context.Context, swallow func()) error {
			return in.receiver.runner.transactHandler(ctx, &in.c, func(tx pgx.Tx) error {
				h := func(context.Context, pgx.Tx, []holdfast.Event) error { swallow(); return nil }
				return in.receiver.runner.handle(ctx, tx, h, []holdfast.Event{event("1", "k")}, &handling{attempt: 1, from: stateNone}, func(ctx context.Context) error {
					_, err := tx.Exec(ctx, "select 1")
					return err
				})
			})
		},
		"the insert": func(ctx context.Context, swallow func()) error {
			p := pipeline{admission: in.receiver.admission}
			var err error
			if p.conn, err = in.acquire(ctx); err != nil {
				return err
			}
			swallow()
			_, err = p.openAndRun(ctx, attempt{ds: []*delivery{in.registry.newDelivery(event("2", "k"))}, number: 1})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			pool.Reset()
			done := make(chan error, 1)
			go func() { done <- do(t.Context(), func() { proxy.swallow() }) }()
			select {
			case err := <-done:
				if err == nil {
					t.Error("no error")
				}
			case <-time.After(limit):
				t.Errorf("it still waits after %s", limit)
			}
		})
	}
}
