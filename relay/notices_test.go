package relay_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
)

func (l *lines) count(part string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

// However many lanes try however often, a process says once that a partition takes nothing, and once that it does again.
func TestNotices_APartitionInTroubleIsLoggedOnceNotPerTryAndLane(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, says string
		fault      publish.Fault
		parkAfter  time.Duration
		within     int // lines in all
	}{
		{"it waits", "partition waits", publish.FaultPartition, -1, 2},
		{"it is held", "partition held", publish.FaultPartition, 50 * time.Millisecond, 3},
		{"the topic is held", "topic held", publish.FaultTopic, time.Second, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			pool, b := setup(t, 8), newBroker()
			b.set(func(holdfast.Event) error { return refusal(c.fault) })
			var payloads []string
			for i := range 40 {
				payloads = append(payloads, fmt.Sprint("e", i))
				write(t, pool, event(fmt.Sprint("k", i), payloads[i]))
			}
			var logged lines
			var mu sync.Mutex
			met := map[int]bool{} // lanes that were told
			run(t, pool, b, relay.Config{ParkAfter: c.parkAfter, Logger: slog.New(slog.NewTextHandler(&logged, nil)), Observer: relay.Observer{
				OnHeld: func(h relay.Held) { mu.Lock(); defer mu.Unlock(); met[h.Lane] = true }}})
			lanes := int(pgtest.Count(t, pool, "select count(distinct lane) from holdfast.event"))
			// Else one of them could meet the trouble when it is over for all others: then it is another one.
			wait.Until(t, "every lane has tried", func() bool { mu.Lock(); defer mu.Unlock(); return len(met) == lanes })
			wait.Until(t, "they have tried several times", func() bool { return b.tries() >= 40 })
			wait.Until(t, "it is said", func() bool { return logged.count(c.says) > 0 })
			b.set(nil)
			arrives(t, b, payloads...)
			wait.Until(t, "it is said that it is over", func() bool { return logged.count(" back") > 0 })
			if n, back := logged.count(c.says), logged.count(" back"); n != 1 || back != 1 || logged.count("level=") > c.within {
				t.Errorf("%d lines say that it is in trouble, and %d that it is over:\n%s", n, back, logged.last(60))
			}
			for _, want := range []string{"waited=", "lanes=", "events="} {
				if c.fault == publish.FaultPartition && logged.count(want) == 0 {
					t.Errorf("no line says %s", want)
				}
			}
		})
	}
}

// tries is how many calls there were.
func (b *broker) tries() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls
}
