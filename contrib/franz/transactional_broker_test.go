//go:build unix

package franz

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// brokerShop is a shop whose relay waits at a step of a transaction until the broker is away.
type brokerShop struct {
	*shop
	step  string
	turn  int64
	short bool // transactions end before the broker is back

	arrived chan struct{} // closed at the step
	failed  atomic.Int64  // calls of the publisher with an error
	stop    func()
}

// start runs a relay. At its step it waits until the broker is away.
func (s *brokerShop) start(t *testing.T, away <-chan struct{}) {
	t.Helper()
	c := TransactionalConfig{TransactionalID: s.order.ID, MarksTopic: s.order.Marks, ProduceTimeout: time.Minute}
	if s.short {
		c.ProduceTimeout = 2 * time.Second
	}
	k, err := NewTransactionalPublisher([]kgo.Opt{kgo.SeedBrokers(s.cluster.Brokers...)}, c)
	if err != nil {
		t.Fatal(err)
	}
	s.arrived = make(chan struct{})
	s.failed.Store(0)
	var turns atomic.Int64
	k.reached = func(step string) {
		if step == s.step && turns.Add(1) == s.turn {
			close(s.arrived)
			<-away
		}
	}
	r, err := relay.New(s.db.Pool, k, relay.Config{BatchSize: 20, Logger: slog.New(slog.DiscardHandler), Observer: relay.Observer{
		OnPublish: func(ctx context.Context, _ relay.Publishing) (context.Context, func([]error)) {
			return ctx, func(errs []error) {
				for _, err := range errs {
					if err != nil {
						s.failed.Add(1)
						return
					}
				}
			}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	s.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		k.Close()
	}
}

// fault takes the broker away, and brings it back.
type fault struct {
	name       string
	away, back func(context.Context) error
	among      bool // others take over: nothing fails that has time
}

// The broker goes away while transactions are open, and comes back: before they have timed out, and after.
func TestTransactionalBroker_ABrokerThatComesBackRepeatsNothing(t *testing.T) {
	skip.InShort(t, "a real Kafka takes ten seconds to start, and is started three times")
	cluster := kafkatest.Own(t)
	meetFaults(t, cluster, fault{name: "killed", away: cluster.Server.KillBroker, back: cluster.Server.StartBroker},
		fault{name: "stopped in order", away: cluster.Server.StopBroker, back: cluster.Server.StartBroker},
		fault{name: "frozen", away: cluster.Server.Pause, back: cluster.Server.Unpause})
}

// meetFaults has relays meet each fault at each step of a transaction.
func meetFaults(t *testing.T, cluster *kafkatest.Cluster, faults ...fault) {
	t.Helper()
	var shops []*brokerShop
	for _, step := range []struct {
		name string
		turn int64
	}{{stepFencing, 1}, {stepFenced, 2}, {stepOwned, 2}, {stepBegun, 3}, {stepProduced, 3}, {stepCommit, 3}} {
		for _, short := range []bool{false, true} {
			shops = append(shops, &brokerShop{shop: shopOn(t, cluster, migrated.Lanes(t, 2)), step: step.name, turn: step.turn, short: short})
		}
	}
	all := func(do func(s *brokerShop)) {
		for _, s := range shops {
			do(s)
		}
	}
	for _, fault := range faults {
		t.Run(fault.name, func(t *testing.T) {
			away := make(chan struct{})
			release := sync.OnceFunc(func() { close(away) })
			all(func(s *brokerShop) { s.write(t, 20) })
			all(func(s *brokerShop) { s.start(t, away); t.Cleanup(s.stop) })
			t.Cleanup(release)
			all(func(s *brokerShop) {
				waitFor(t, fmt.Sprint("a relay comes to ", s.step), func() bool { return closed(s.arrived) })
			})
			err := fault.away(t.Context())
			release()
			if err != nil {
				t.Fatal(err)
			}
			all(func(s *brokerShop) {
				s.write(t, 3)
				s.failed.Store(0)
			})
			all(func(s *brokerShop) {
				switch {
				case fault.among:
					s.settle(t)
				case s.short:
					waitFor(t, fmt.Sprint("a transaction of a relay that was at ", s.step, " fails"), func() bool { return s.failed.Load() > 0 })
				}
			})
			if err := fault.back(t.Context()); err != nil {
				t.Fatal(err)
			}
			all(func(s *brokerShop) { s.settle(t) })
			all(func(s *brokerShop) {
				t.Run(fmt.Sprintf("%s, timed out %t", s.step, s.short), func(t *testing.T) { s.check(t) })
			})
		})
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// waitFor is wait.Until with longEnough.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !wait.For(longEnough, ok) {
		t.Fatalf("not within %v: %s", longEnough, what)
	}
}
