package inbox

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// lines is a log that many goroutines write.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestSkipped_ASkippedTypeIsSaidOnceWithTheTypesThatAreHandled(t *testing.T) {
	b := setup(t)
	var log lines
	in := b.inbox(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	in.Handle("order.payed", effectOf) // misspelled
	in.Handle("order.shipped", effectOf)
	events := eventsOf("", 50)
	events[7].Type = "order.other"
	events[9].Type = "order.shipped"
	stop := b.consumeFake(in, newFakeGeneration(logOf(events...)))
	b.awaitSettled(50)
	for _, id := range []string{"a", "b"} { // Those that come alone count, too.
		b.receive(in, event(id, "k"), Skipped)
	}
	stop()
	const said = "no node handles a type: its events are skipped"
	if n := strings.Count(log.String(), said); n != 2 {
		t.Errorf("it was said %d times for 2 types", n)
	}
	if !strings.Contains(log.String(), `type=order.placed handled="[order.payed order.shipped]"`) {
		t.Errorf("the log says %s", log.String())
	}
	if n := b.count("select events from holdfast.consumer_skip where consumer = 'billing' and topic = 'orders' and type = 'order.placed'"); n != 50 {
		t.Errorf("%d skipped events are counted, want 50", n)
	}
	if n := b.count("select events from holdfast.consumer_skip where type = 'order.other'"); n != 1 {
		t.Errorf("%d events of the other type are counted, want 1", n)
	}
}

func TestSkipped_ConsumeWithoutAHandlerIsAConfigurationError(t *testing.T) {
	b := setup(t)
	source := &neverOpened{t}
	if err := b.inbox().Consume(t.Context(), source); !errors.Is(err, ErrConfiguration) || !strings.Contains(err.Error(), "register handlers") {
		t.Errorf("Consume returned %v", err)
	}
}

type neverOpened struct{ t *testing.T }

func (n *neverOpened) Open(context.Context, time.Duration) (source.Session, error) {
	n.t.Error("the group was joined")
	return nil, errors.New("it was joined")
}

// Types come from others: what is remembered of them is bounded.
func TestSkipped_SkippedTypesBeyondALimitAreCountedTogether(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	in.registry.start()
	for i := range maxSkippedTypes + 10 {
		in.skips.note(holdfast.Event{Topic: "orders", Type: strings.Repeat("t", i/100+1) + string(rune('a'+i%100))})
	}
	if err := in.skips.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.count("select count(*) from holdfast.consumer_skip"); n != maxSkippedTypes+1 {
		t.Errorf("%d rows, want %d", n, maxSkippedTypes+1)
	}
	if n := b.count("select events from holdfast.consumer_skip where topic = '' and type = ''"); n != 10 {
		t.Errorf("%d events of other types, want 10", n)
	}
}

// What could not be written is not forgotten.
func TestSkipped_CountsOfSkippedEventsSurviveAnOutage(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	in.registry.start()
	note := func() { in.skips.note(holdfast.Event{Topic: "orders", Type: "other"}) }
	note()
	pgtest.Exec(t, b.db, "alter table holdfast.consumer_skip rename to gone")
	if err := in.skips.write(t.Context()); err == nil {
		t.Fatal("it was written though the table has gone")
	}
	pgtest.Exec(t, b.db, "alter table holdfast.gone rename to consumer_skip")
	note()
	if err := in.skips.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := b.count("select events from holdfast.consumer_skip"); n != 2 {
		t.Errorf("%d events are counted, want 2", n)
	}
}
