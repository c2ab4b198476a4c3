package inbox

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

// withholding is a partition behind an open transaction.
type withholding struct{ *fakeGeneration }

func (withholding) Fetch(ctx context.Context, _ source.TopicPartition, offset, _ int64) (source.Page, error) {
	select {
	case <-time.After(time.Second / 2):
	case <-ctx.Done():
	}
	return source.Page{Next: offset, Withheld: 3}, ctx.Err()
}

func TestWithheld_AReaderSaysThatATransactionHoldsItUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		in := newInbox(nil, Config{Consumer: "billing", Logger: slog.New(slog.NewTextHandler(&log, nil))}.withDefaults())
		p := in.consumer.newPartition(newWorkerPool(in.receiver), withholding{newFakeGeneration(nil)}, source.TopicPartition{Topic: "orders", Partition: 7}, source.Start{})
		p.track = readahead.NewTracker(0)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.read(ctx, ctx) }()
		time.Sleep(11 * time.Minute)
		const line = "partition waits for a producer's transaction that is open"
		if n := strings.Count(log.String(), line); n != 1 || !strings.Contains(log.String(), "topic=orders partition=7 offset=0 withheld=3 for=2m0s") {
			t.Errorf("in eleven minutes it was said %d times: %s", n, log.String())
		}
		time.Sleep(2 * time.Minute)
		if n := strings.Count(log.String(), line); n != 2 {
			t.Errorf("in thirteen minutes it was said %d times", n)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestWithheld_WhenAnOpenTransactionIsSaid(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	w, now := withheld{}, began
	see := func(after time.Duration, next, n int64) bool {
		now = now.Add(after)
		var say bool
		w, say = w.after(&source.Page{Next: next, Withheld: n}, 7, now)
		return say
	}
	for _, c := range []struct {
		what  string
		after time.Duration
		next  int64
		n     int64
		say   bool
	}{
		{"it begins", time.Hour, 7, 3, false},
		{"a moment later", time.Second, 7, 3, false},
		{"nearly two minutes", 118 * time.Second, 7, 3, false},
		{"two minutes", time.Second, 7, 4, true},
		{"again", time.Second, 7, 4, false},
		{"nearly ten minutes after it was said", 9*time.Minute + 58*time.Second, 7, 4, false},
		{"ten", time.Second, 7, 4, true},
		{"the transaction ended", time.Second, 7, 0, false},
		{"another one", 20 * time.Minute, 7, 1, false},
		{"for two minutes", 2 * time.Minute, 7, 1, true},
		{"reading has gone on meanwhile", time.Hour, 8, 1, false},
		{"and stands again", time.Second, 7, 1, false},
		{"but not for two minutes", 119 * time.Second, 7, 1, false},
		{"and then it does", time.Second, 7, 1, true},
	} {
		if say := see(c.after, c.next, c.n); say != c.say {
			t.Errorf("%s: said %t, want %t", c.what, say, c.say)
		}
	}
	if _, say := w.after(&source.Page{Next: 9, Withheld: 1}, 9, now.Add(time.Hour)); say {
		t.Error("where it has only just come to, it is said")
	}
}
