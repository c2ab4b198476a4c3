package relay_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// cutter stands between a relay and Postgres, and cuts a connection at a COMMIT when it is armed.
type cutter struct {
	to      string
	armed   atomic.Int32 // how many COMMITs are still to be cut
	deliver bool         // the server gets the COMMIT, the client no answer; else neither
	cut     atomic.Int32
}

var commitMessage = []byte("commit\x00")

func (c *cutter) serve(l net.Listener) {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		go c.carry(client)
	}
}

func (c *cutter) carry(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.to)
	if err != nil {
		return
	}
	defer server.Close()
	var silent atomic.Bool
	go func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if n > 0 && silent.Load() {
				client.Close() // the answer to COMMIT is in: it is carried out
				return
			}
			if _, werr := client.Write(buf[:n]); werr != nil || err != nil {
				client.Close()
				return
			}
		}
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if bytes.Contains(buf[:n], commitMessage) && c.armed.Add(-1) >= 0 {
			c.cut.Add(1)
			if !c.deliver {
				return
			}
			silent.Store(true)
		}
		if _, werr := server.Write(buf[:n]); werr != nil || err != nil {
			return
		}
		if silent.Load() {
			_, _ = io.Copy(io.Discard, client) // until the answer came and the connection is cut
			return
		}
	}
}

// through gives a pool whose connections pass through the cutter.
func (c *cutter) through(t *testing.T, pool *pgxpool.Pool) *pgxpool.Pool {
	t.Helper()
	u, err := url.Parse(pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	c.to = u.Host
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go c.serve(l)
	u.Host = l.Addr().String()
	p, err := pgxpool.New(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func TestCommit_AnUnknownCommitDropsTheLaneAndParksNothingTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		deliver bool
	}{{"the COMMIT was carried out and its answer is lost", true}, {"the COMMIT never arrived", false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 1), newBroker()
			cut := &cutter{deliver: c.deliver}
			var lost atomic.Int32
			// Small pages, so that the cursor stands inside a window when the page with the refused record is parked.
			run(t, cut.through(t, pool), b, relay.Config{Retry: untiring, BatchSize: 3, Observer: relay.Observer{
				OnLost: func(int, bool, error) { lost.Add(1) }}})
			b.set(refusing(publish.FaultRecord, "bad"))
			write(t, pool, event("a", "warm"))
			arrives(t, b, "warm")
			cut.armed.Store(1)
			write(t, pool, event("a", "1"), event("a", "2"), event("a", "3"), event("k", "bad"), event("k", "2nd"), event("a", "4"), event("a", "5"))
			wait.Until(t, "the lane is dropped", func() bool { return lost.Load() > 0 })
			if cut.cut.Load() != 1 {
				t.Fatalf("%d COMMITs were cut, want 1", cut.cut.Load())
			}
			arrives(t, b, "5")
			wait.Until(t, "the key waits", func() bool { return parked(t, pool) >= 2 })
			if n := parked(t, pool); n != 2 {
				t.Errorf("%d events are parked, want each of the two once", n)
			}
			b.set(nil)
			arrives(t, b, "2nd")
			wantFirsts(t, b, "k", "bad", "2nd")
			wantFirsts(t, b, "a", "warm", "1", "2", "3", "4", "5")
			if c.deliver {
				seen := map[string]int{}
				for _, p := range b.payloads() {
					if seen[p]++; seen[p] == 2 && p == "4" {
						t.Errorf("%q was published again, although the database knew better than the relay", p)
					}
				}
			}
		})
	}
}

// The same moment, at random, many times, under a stress of refusals.
func TestCommit_CommitsThatFailAtRandomLoseAndReorderNothing(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	pool, b := setup(t, 2), newBroker()
	cut := &cutter{deliver: true}
	seed := seed.New(t)
	var n atomic.Uint64
	b.set(func(e holdfast.Event) error {
		switch (n.Add(1)*0x9E3779B97F4A7C15 + seed) >> 60 {
		case 0, 1:
			return refusal(publish.FaultRecord)
		case 2:
			return refusal(publish.FaultTopic)
		}
		return nil
	})
	stopAt := time.Now().Add(4 * time.Second)
	ctx, cancel := contextUntil(t, stopAt)
	defer cancel()
	h, wg := writers(ctx, t, pool, 4, 6, seed, "")
	run(t, cut.through(t, pool), b, relay.Config{Retry: untiring, BatchSize: 4, Lease: time.Second})
	for time.Now().Before(stopAt) {
		cut.armed.Store(1)
		was := cut.cut.Load()
		wait.Until(t, "a COMMIT is cut", func() bool { return cut.cut.Load() > was || time.Now().After(stopAt) })
	}
	cut.armed.Store(0)
	wg.Wait()
	b.set(nil)
	wait.Until(t, "all that was committed arrives", func() bool { return h.complete(b) })
	wait.Until(t, "nothing is parked", func() bool { return parked(t, pool) == 0 })
	h.check(t, b.events())
	t.Logf("%d COMMITs were cut, %d events", cut.cut.Load(), len(h.committed))
	if pgtest.Count(t, pool, "select count(*) from holdfast.letter") != 0 {
		t.Error("letters were written, although nothing was given up")
	}
}
