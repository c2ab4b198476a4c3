package inbox_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// backfillRow is what the table has of billing's backfill.
type backfillRow struct {
	node                       string
	partitions, partitionsLeft int
	done, remaining            int64
	waits, failure             string
	ended                      bool
}

func (p *past) row() (r backfillRow) {
	p.Helper()
	if err := p.db.Pool.QueryRow(p.Context(), `select node, partitions, partitions_left, done, remaining, coalesce(waits, ''), coalesce(error, ''), ended_at is not null
		from holdfast.consumer_backfill where consumer = 'billing'`).Scan(&r.node, &r.partitions, &r.partitionsLeft, &r.done, &r.remaining, &r.waits, &r.failure, &r.ended); err != nil {
		p.Fatal(err)
	}
	return r
}

func (p *past) rows() int64 {
	return pgtest.Count(p, p.db, "select count(*) from holdfast.consumer_backfill")
}

func TestBackfillRow_ABackfillLeavesARowThatSaysHowFarItGot(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	p := thePast(t, 10, 5, 0)
	goOn := make(chan struct{})
	in := p.consumer(func(ctx context.Context, _ holdfast.Event) error {
		select {
		case <-goOn:
		case <-ctx.Done():
		}
		return ctx.Err()
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := in.ConsumeUntil(ctx, p.source(), inbox.Until{})
		ended <- err
	}()
	wait.Until(t, "a row", func() bool { return p.rows() == 1 })
	r := p.row()
	if r.ended || r.partitions != 3 || r.partitionsLeft != 2 || r.done != 0 || r.remaining != 15 || r.waits != "" {
		t.Errorf("while it runs the row is %+v", r)
	}
	close(goOn)
	stop()
	if err := <-ended; err != nil && !errors.Is(err, inbox.ErrBoundNotReached) {
		t.Fatal(err)
	} else if r := p.row(); err != nil && (!r.ended || !strings.Contains(r.failure, "the bound was not reached")) {
		t.Errorf("after a stop the row is %+v", r)
	}
	p.arrives(p.consumer(nil), p.source(), inbox.Until{}, 15)
	if again := p.row(); !again.ended || again.failure != "" || again.partitionsLeft != 0 || again.remaining != 0 || again.node == r.node {
		t.Errorf("after the next call the row is %+v", again)
	}
}

// A person pauses a consumer for long: the progress says so.
func TestBackfillRow_APausedBackfillSaysThatItWaits(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	p := thePast(t, 3)
	pgtest.Exec(t, p.db, "insert into holdfast.pause (consumer, by, reason) values ('billing', 'ann', 'a test')")
	in := p.consumer(nil)
	var told atomic.Bool
	ended := make(chan error, 1)
	go func() {
		_, err := p.until(in, p.source(), inbox.Until{ProgressEvery: 100 * time.Millisecond, ProgressFunc: func(now inbox.Progress) {
			if now.Waits == "the consumer is paused" {
				told.Store(true)
			}
		}})
		ended <- err
	}()
	wait.Until(t, "a progress that says so", told.Load)
	wait.Until(t, "a row that says so", func() bool { return p.rows() == 1 && p.row().waits == "the consumer is paused" })
	pgtest.Exec(t, p.db, "delete from holdfast.pause")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if r := p.row(); r.waits != "" || r.remaining != 0 {
		t.Errorf("the row is %+v", r)
	}
}
