//go:build unix

package franz

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/seed"
)

var (
	manyFaults = flag.Int("transactional.faults", 0, "faults of TestTransactionalFaults, on a Kafka of its own; 0 for a few on an imitation")
	manyEvents = flag.Int("transactional.events", 100_000, "the least events that are written meanwhile")
)

// troubledShop is a shop with two relays that meet one fault after the other, while events are written.
type troubledShop struct {
	*shop
	random *rand.Rand
	relays [2]*process
}

// trouble is a fault. It returns when the fault is met and healed.
type trouble struct {
	name string
	meet func(t *testing.T, s *troubledShop)
}

// stepsOfClaims are reached when a lane is taken, and the others whenever something is published.
var (
	stepsOfClaims = []string{stepFencing, stepFenced, stepOwned}
	stepsOfEvents = []string{stepBegun, stepProduced, stepCommit, stepAnswered, stepSaved}
)

// frozenFor is longer than the lease of a relay in a process.
const frozenFor = 3 * time.Second

// signalled is a relay that is killed, or frozen for longer than its lease, at a step.
func signalled(step string, claim, freeze bool) trouble {
	verb := "killed"
	if freeze {
		verb = "frozen"
	}
	return trouble{verb + " at " + step, func(t *testing.T, s *troubledShop) {
		n := s.random.IntN(len(s.relays))
		turn := 1 + s.random.Int64N(3)
		if claim { // A relay that comes takes lanes of the other.
			s.relays[n].stop(t)
			s.relays[n] = s.relay(t, step, turn, freeze)
		} else {
			s.relays[n].tell(t, "signal %s %d %t", step, turn, freeze)
		}
		s.relays[n].waitAt(t)
		if freeze {
			s.thaw(t, frozenFor, s.relays[n])
			return
		}
		s.relays[n] = s.relay(t, "", 0, false)
	}}
}

// thaw lets processes that are frozen go on after a time.
func (s *troubledShop) thaw(t *testing.T, after time.Duration, of ...*process) {
	t.Helper()
	time.Sleep(after) // sleep: others take over meanwhile, and the frozen ones come back as zombies
	for _, p := range of {
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *troubledShop) freeze(t *testing.T, of ...*process) {
	t.Helper()
	for _, p := range of {
		if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
}

// lost is the next request of a kind, of one relay, or its answer.
func lost(kind kmsg.Key, before bool) trouble {
	what := "the answer"
	if before {
		what = "the request"
	}
	name := kmsg.NameForKey(int16(kind))
	return trouble{fmt.Sprintf("%s of %s is lost", what, name), func(t *testing.T, s *troubledShop) {
		n := s.random.IntN(len(s.relays))
		s.relays[n].tell(t, "lose %d %t", kind, before)
		switch kind {
		case kmsg.FindCoordinator, kmsg.InitProducerID, kmsg.ListOffsets, kmsg.Fetch: // These are of claims.
			s.take(t)
		}
		s.relays[n].waitAt(t)
	}}
}

// take takes all lanes from their owners by force. These do not know it until they save, and publish meanwhile beside the next ones.
func (s *troubledShop) take(t *testing.T) {
	t.Helper()
	if _, err := s.db.Pool.Exec(t.Context(), "update holdfast.lane set owner = 'nobody', epoch = epoch + 1, lease_until = '-infinity'"); err != nil {
		t.Fatal(err)
	}
}

// ofRelays are the troubles of relays and of their connections.
func ofRelays() (all []trouble) {
	for _, freeze := range []bool{false, true} {
		for _, step := range stepsOfClaims {
			all = append(all, signalled(step, true, freeze))
		}
		for _, step := range stepsOfEvents {
			all = append(all, signalled(step, false, freeze))
		}
	}
	for _, kind := range []kmsg.Key{kmsg.ApiVersions, kmsg.Metadata, kmsg.FindCoordinator, kmsg.InitProducerID, kmsg.ListOffsets, kmsg.Fetch, kmsg.Produce, kmsg.EndTxn} {
		all = append(all, lost(kind, false), lost(kind, true))
	}
	return append(all,
		trouble{"killed at any moment", func(t *testing.T, s *troubledShop) {
			n := s.random.IntN(len(s.relays))
			if err := s.relays[n].cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			s.relays[n] = s.relay(t, "", 0, false)
		}},
		trouble{"frozen at any moment", func(t *testing.T, s *troubledShop) {
			p := s.relays[s.random.IntN(len(s.relays))]
			s.freeze(t, p)
			s.thaw(t, frozenFor, p)
		}},
		trouble{"all connections to the brokers are cut", func(t *testing.T, s *troubledShop) {
			for _, p := range s.relays {
				p.tell(t, "cut")
			}
		}},
		trouble{"the lanes are taken by force", func(t *testing.T, s *troubledShop) { s.take(t) }},
		trouble{"all connections to Postgres are cut", func(t *testing.T, s *troubledShop) {
			if _, err := s.db.Pool.Exec(t.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = $1", processVar); err != nil {
				t.Fatal(err)
			}
		}})
}

// ofServers are those of a broker, and of what times out.
func ofServers() []trouble {
	broker := func(name string, away, back func(*kafkatest.Server) error, after time.Duration) trouble {
		return trouble{"the broker is " + name, func(t *testing.T, s *troubledShop) {
			if err := away(s.cluster.Server); err != nil {
				t.Fatal(err)
			}
			time.Sleep(after) // sleep: the broker is away
			if err := back(s.cluster.Server); err != nil {
				t.Fatal(err)
			}
		}}
	}
	ctx := context.Background()
	start := func(s *kafkatest.Server) error { return s.StartBroker(ctx) }
	unpause := func(s *kafkatest.Server) error { return s.Unpause(ctx) }
	return []trouble{
		broker("killed", func(s *kafkatest.Server) error { return s.KillBroker(ctx) }, start, 0),
		broker("stopped in order", func(s *kafkatest.Server) error { return s.StopBroker(ctx) }, start, 0),
		broker("frozen", func(s *kafkatest.Server) error { return s.Pause(ctx) }, unpause, 2*time.Second),
		broker("frozen until transactions time out", func(s *kafkatest.Server) error { return s.Pause(ctx) }, unpause, 10*time.Second),
		{"all relays are frozen until transactions time out", func(t *testing.T, s *troubledShop) {
			s.relays[0].tell(t, "signal %s 1 true", stepProduced)
			s.relays[0].waitAt(t)
			s.freeze(t, s.relays[1])
			s.thaw(t, 10*time.Second, s.relays[:]...)
		}},
	}
}

// writeMeanwhile writes until finish is called and there are enough events. finish waits for it.
func (s *troubledShop) writeMeanwhile(t *testing.T, least int, pause time.Duration) (finish func()) {
	t.Helper()
	enough, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		for t.Context().Err() == nil && (!closed(enough) || shopKeys*s.written < least) {
			if err := s.writeRound(t.Context()); err != nil {
				ended <- err
				return
			}
			if !closed(enough) {
				time.Sleep(pause) // sleep: the events are to last as long as the faults
			}
		}
	}()
	t.Cleanup(func() { <-ended })
	return func() {
		close(enough)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
	}
}

// Relays, their connections, their lanes and the broker meet one fault after the other while events are written. A reader of committed
// records gets each event once, in the order of its key.
func TestTransactionalFaults_ManyFaultsRepeatAndLoseNothing(t *testing.T) {
	t.Parallel()
	faults, least, pause := *manyFaults, *manyEvents, 150*time.Millisecond
	s := &troubledShop{random: rand.New(rand.NewPCG(seed.New(t), 1))}
	var plan []trouble
	if faults > 0 {
		s.shop = shopOn(t, kafkatest.Own(t), migrated.New(t))
		s.order.ProduceTimeout, s.order.TransactionTimeout = 5*time.Second, 8*time.Second
		for len(plan) < faults { // each kind once, in another order each time
			turn := append(ofRelays(), ofServers()...)
			s.random.Shuffle(len(turn), func(i, j int) { turn[i], turn[j] = turn[j], turn[i] })
			plan = append(plan, turn...)
		}
		plan = plan[:faults]
	} else {
		least, pause = 0, 20*time.Millisecond
		s.shop = shopOn(t, kafkatest.InProcess(t), migrated.New(t))
		s.order.ProduceTimeout, s.order.TransactionTimeout = 2*time.Second, 3*time.Second
		plan = []trouble{signalled(stepProduced, false, false), lost(kmsg.EndTxn, false), signalled(stepProduced, false, true), lost(kmsg.Produce, false),
			signalled(stepFenced, true, false), signalled(stepCommit, false, false), ofRelays()[len(ofRelays())-2]}
	}
	for n := range s.relays {
		s.relays[n] = s.relay(t, "", 0, false)
	}
	finish := s.writeMeanwhile(t, least, pause)
	began := time.Now()
	for n, f := range plan {
		at := time.Now()
		f.meet(t, s)
		t.Logf("%3d: %s (%.1f s)", n+1, f.name, time.Since(at).Seconds())
		time.Sleep(time.Duration(s.random.Int64N(int64(3 * pause)))) // sleep: the next one meets relays at any moment
	}
	took := time.Since(began)
	finish()
	s.settle(t)
	for _, p := range s.relays {
		p.stop(t)
	}
	s.check(t)
	events, all := shopKeys*s.written, len(readAt(t, s.cluster, s.topic, kgo.ReadUncommitted()))
	t.Logf("%d events, %d faults in %v; readers of uncommitted records see %d records more", events, len(plan), took.Round(time.Second), all-events)
}
