package inbox

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestRetentionRepeats_ARecordAgainAfterItsRowWasRemovedIsStale(t *testing.T) {
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, 20)...)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	stop := b.consume(in)
	b.awaitHandled(20)
	stop()
	// Eight days pass for the first fifteen; the position was lost for the last two of those: they stay.
	pgtest.Exec(t, b.db, `update holdfast.inbox set received_at = received_at - interval '8 days', processed_at = processed_at - interval '8 days' where "offset" < 15`)
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set position = 13")
	if _, removed := b.pass(in, 4); removed != 13 {
		t.Errorf("%d rows were removed, want 13", removed)
	}
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set position = 20")
	// The group loses its offset, and everything from the third on is delivered again.
	b.resetOffsets(0, 3)
	again := b.inbox()
	again.Handle("order.placed", effectOf)
	stop = b.consume(again)
	for offset := 3; offset < 20; offset++ {
		id, want := fmt.Sprintf("0-%03d", offset), Duplicate
		if offset < 13 {
			want = Stale
		}
		b.awaitOutcome(id, want)
	}
	stop()
	if n := b.count("select count(*) from effect"); n != 20 {
		t.Errorf("%d effects, want 20: an event was handled again", n)
	}
	if n := b.count("select count(*) from holdfast.letter where reason like 'stale%' and state = 'open'"); n != 10 {
		t.Errorf("%d letters, want 10", n)
	}
}

func TestRetentionRepeats_AnEventWithoutAPositionIsKnownForTheWindowOnly(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.receive(in, event("1", "k"), Handled)
	pgtest.Exec(t, b.db, `update holdfast.inbox set processed_at = now() - interval '167 hours'`)
	b.pass(in, 10)
	b.receive(in, event("1", "k"), Duplicate)
	pgtest.Exec(t, b.db, `update holdfast.inbox set processed_at = now() - interval '169 hours'`)
	b.pass(in, 10)
	b.receive(in, event("1", "k"), Handled)
	if n := b.effects("1"); n != 2 {
		t.Errorf("%d effects, want 2", n)
	}
}

func TestRetentionRepeats_AReplayFindsTheRowOfAnOpenLetterHoweverOld(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error { return errors.New("poison") })
	b.receive(in, event("1", ""), Retrying)
	stop := b.run(in.Run)
	b.awaitOutcome("1", Dead)
	stop()
	pgtest.Exec(t, b.db, `update holdfast.inbox set received_at = now() - interval '1 year', processed_at = now() - interval '1 year'`)
	b.pass(in, 10)
	b.receive(in, event("1", ""), Duplicate) // It is not handled beside its letter, which a person may replay.
	pgtest.Exec(t, b.db, `update holdfast.letter set state = 'discarded'`)
	if _, removed := b.pass(in, 10); removed != 1 {
		t.Errorf("%d rows were removed after the letter was closed, want 1", removed)
	}
}
