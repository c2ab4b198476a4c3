package endtoend

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// recovery measures how long after a server is back the first event is published, and the first is handled.
type recovery struct {
	mu                 sync.Mutex
	changed            chan struct{}
	published, handled time.Time // the latest
	retried, lost      atomic.Int64
}

func newRecovery() *recovery { return &recovery{changed: make(chan struct{})} }

func (r *recovery) saw(when *time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*when = time.Now()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recovery) relay(c *relay.Config) {
	c.Lease = 3 * time.Second
	c.Observer.OnPublished = func(int, []holdfast.Event) { r.saw(&r.published) }
	c.Observer.OnLost = func(int, bool, error) { r.lost.Add(1) }
}

func (r *recovery) inbox(c *inbox.Config) {
	c.Observer.OnReceive = func(e inbox.Received) {
		if e.Outcome == inbox.Handled {
			r.saw(&r.handled)
		}
	}
	c.Observer.OnRetry = func(inbox.Retried) { r.retried.Add(1) }
}

// since waits until something was published and handled after a moment, and says how long it took.
func (r *recovery) since(p *path, moment time.Time) (published, handled time.Duration) {
	p.Helper()
	deadline := time.After(wait.Limit())
	for {
		r.mu.Lock()
		if published == 0 && r.published.After(moment) {
			published = r.published.Sub(moment)
		}
		if handled == 0 && r.handled.After(moment) {
			handled = r.handled.Sub(moment)
		}
		changed := r.changed
		r.mu.Unlock()
		if published > 0 && handled > 0 {
			return published.Round(time.Millisecond), handled.Round(time.Millisecond)
		}
		select {
		case <-changed:
		case <-deadline:
			p.Fatalf("%v after the server is back: published again after %v, handled again after %v (0s is not yet)\n%s", wait.Limit(), published, handled, p.Census())
		}
	}
}

func TestOutage_NothingIsLostDoubledOrReorderedWhilePostgresCrashes(t *testing.T) {
	skip.InShort(t, "it takes 15 s beside the others")
	t.Parallel()
	server := pgtest.Own(t, pgtest.Options{Settings: pgtest.NoSync()})
	p := setupPath(t, pgtest.On(t, server.DSN), kafkatest.Container(t), 4)
	r := newRecovery()
	relays := []func(){p.Relay(r.relay), p.Relay(r.relay)}
	consumers := []func(){p.Consume("billing", endtoend.EffectOf("billing"), r.inbox), p.Consume("billing", endtoend.EffectOf("billing"), r.inbox)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := time.Now()
	w := load{writers: 5, keys: 20, perSecond: 100, outages: true}.write(ctx, p)
	crashes := 3
	if testing.Short() {
		crashes = 1
	}
	for i := range crashes {
		r.since(p, time.Now()) // everything is at work
		after(ctx, 2*time.Second)
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		down := time.Now()
		if i > 0 { // The first crash is a short one; the others are longer than a lease.
			after(ctx, 4*time.Second)
		}
		if err := server.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		up := time.Now()
		published, handled := r.since(p, up)
		t.Logf("crash %d: away for %v; the first event was published %v after it came back, the first handled %v after",
			i+1, up.Sub(down).Round(time.Millisecond), published, handled)
	}
	cancel()
	w.wg.Wait()
	v := p.Finish(relays, consumers, "billing")
	t.Logf("%d crashes in %v, %d lanes lost; %s; %s", crashes, time.Since(begun).Round(time.Millisecond), r.lost.Load(), w, v)
	v.MustHold(t)
	w.kept(p)
	if n := p.Count("select count(*) from holdfast.letter") + r.retried.Load(); n != 0 {
		t.Errorf("%d attempts were spent on an absent database", n)
	}
}

func TestOutage_NothingIsLostDoubledOrReorderedWhileKafkaIsAway(t *testing.T) {
	skip.InShort(t, "it takes 53 s beside the others")
	t.Parallel()
	p := setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Own(t), 4)
	p.meetCoordinator()
	r := newRecovery()
	relays := []func(){p.Relay(r.relay), p.Relay(r.relay)}
	consumers := []func(){p.Consume("billing", endtoend.EffectOf("billing"), r.inbox), p.Consume("billing", endtoend.EffectOf("billing"), r.inbox)}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := time.Now()
	w := load{writers: 4, keys: 20, perSecond: 60}.write(ctx, p)
	outages := []struct {
		name string
		end  func(context.Context) error
	}{{"killed", p.Cluster.Server.KillBroker}, {"stopped in order", p.Cluster.Server.StopBroker}}
	if testing.Short() {
		outages = outages[:1]
	}
	for _, o := range outages {
		r.since(p, time.Now()) // everything is at work
		// A slow broker may have answered a partition late.
		p.Await("no event is parked", func() bool { return p.Count("select count(*) from holdfast.parked") == 0 })
		if err := o.end(t.Context()); err != nil {
			t.Fatal(err)
		}
		down := time.Now()
		if o.name == "killed" {
			// Longer than Config.ParkAfter: but all of Kafka is away, not a partition, and that is nobody's fault. (A broker that
			// stops in order says for a while that its partitions have no leader, and events may be parked for that.)
			after(ctx, 11*time.Second)
			if n := p.Count("select count(*) from holdfast.parked"); n > 0 {
				t.Errorf("%d events were parked because Kafka is away", n)
			}
		}
		if err := p.Cluster.Server.StartBroker(t.Context()); err != nil {
			t.Fatal(err)
		}
		up := time.Now()
		parked := p.Count("select count(*) from holdfast.parked")
		if n := p.Count("select count(*) from holdfast.parked where attempts > 0 or why = 'record'"); n != 0 {
			t.Errorf("attempts of %d events were spent on an absent Kafka", n)
		}
		published, handled := r.since(p, up)
		t.Logf("Kafka was %s: away for %v, %d events parked; the first event was published %v after it came back, the first handled %v after",
			o.name, up.Sub(down).Round(time.Millisecond), parked, published, handled)
	}
	cancel()
	w.wg.Wait()
	v := p.Finish(relays, consumers, "billing")
	t.Logf("%d outages in %v, %d lanes lost; %s; %s", len(outages), time.Since(begun).Round(time.Millisecond), r.lost.Load(), w, v)
	v.MustHold(t)
	w.kept(p)
	if n := p.Count("select count(*) from holdfast.letter") + r.retried.Load(); n != 0 {
		t.Errorf("%d attempts were spent on an absent Kafka", n)
	}
}
