package position

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func place(partition int) source.TopicPartition {
	return source.TopicPartition{Topic: "orders", Partition: partition}
}

// owned is a partition that the node was given at offset 0.
func (b *bundle) owned(partition int) *Fence {
	b.Helper()
	a, err := b.Assign(b.Context(), "orders", partition, "", readAt(0))
	if err != nil {
		b.Fatal(err)
	}
	return a.Fence
}

// row wants a partition's row to be such; the identity of a checkpoint is 1000 more than its offset.
func (b *bundle) row(partition int, position int64, clean bool, checkpoint int64) {
	b.Helper()
	var got struct {
		position, offset, identity int64
		clean                      bool
	}
	if err := b.db.QueryRow(b.Context(), `select position, clean, coalesce(checkpoint_offset, -1), coalesce(checkpoint_identity, 999) from holdfast.consumer_position
		where consumer = 'billing' and topic = 'orders' and partition = $1`, partition).Scan(&got.position, &got.clean, &got.offset, &got.identity); err != nil {
		b.Fatal(err)
	}
	if got.position != position || got.clean != clean || got.offset != checkpoint || got.identity != 1000+checkpoint {
		b.Errorf("partition %d is at %d, clean %v, checkpoint %d (%d); want %d, %v, %d", partition, got.position, got.clean, got.offset, got.identity, position, clean, checkpoint)
	}
}

func last(offset int64) readahead.Checkpoint {
	return readahead.Checkpoint{Offset: offset, Identity: 1000 + offset}
}

func TestPosition_SavingMovesWhatIsOursAndSaysWhatThatWas(t *testing.T) {
	b := setup(t)
	ours, lost, older, others := b.owned(0), b.owned(1), b.owned(2), b.owned(3)
	b.owned(1)
	older.Token = "00000000-0000-0000-0000-000000000000"
	others.Topic = "payments" // which this consumer does not have
	saved, err := b.Save(t.Context(), []Progress{{ours, 7, last(5)}, {lost, 8, last(6)}, {older, 9, last(7)}, {others, 10, last(8)}})
	if want := map[source.TopicPartition]bool{place(0): true}; err != nil || !maps.Equal(saved, want) {
		t.Errorf("saved %v, %v; want %v", saved, err, want)
	}
	b.row(0, 7, false, 5)
	for partition := 1; partition <= 3; partition++ {
		b.row(partition, 0, false, -1)
	}
	// What is read again below the position moves neither.
	if saved, err := b.Save(t.Context(), []Progress{{ours, 6, last(4)}}); err != nil || !saved[place(0)] {
		t.Errorf("saved %v, %v", saved, err)
	}
	b.row(0, 7, false, 5)
}

func TestPosition_ReleasingSaysWhoseThePartitionIs(t *testing.T) {
	b := setup(t)
	ours, lost, older, unclean := b.owned(0), b.owned(1), b.owned(2), b.owned(3)
	b.owned(1)
	older.Token = "00000000-0000-0000-0000-000000000000"
	if same, err := b.Release(t.Context(), Progress{ours, 7, last(5)}, true); !same || err != nil {
		t.Errorf("of ours: %v, %v", same, err)
	}
	b.row(0, 7, true, 5)
	if _, err := b.Release(t.Context(), Progress{lost, 8, last(6)}, true); !errors.Is(err, failure.ErrFenced) {
		t.Errorf("of another's: %v", err)
	}
	b.row(1, 0, false, -1)
	if same, err := b.Release(t.Context(), Progress{older, 9, last(7)}, true); same || err != nil {
		t.Errorf("of another incarnation: %v, %v", same, err)
	}
	b.row(2, 0, true, -1)
	if same, err := b.Release(t.Context(), Progress{unclean, 3, last(1)}, false); !same || err != nil {
		t.Errorf("while a handler hangs: %v, %v", same, err)
	}
	b.row(3, 3, false, 1)
}

func TestPosition_AHoldIsNotedUnderTheEpochOfItsOwner(t *testing.T) {
	b := setup(t)
	why := "its log was cut short"
	if _, found, err := b.Hold(t.Context(), place(0), &why, nil); found || err != nil {
		t.Errorf("of a partition without a row: %v, %v", found, err)
	}
	lost := b.owned(0)
	ours := b.owned(0)
	if _, err := b.Save(t.Context(), []Progress{{ours, 7, last(5)}}); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		epoch *int64
		found bool
	}{"the owner": {&ours.Epoch, true}, "the last owner": {&lost.Epoch, false}, "who has not claimed it yet": {nil, true}} {
		at, found, err := b.Hold(t.Context(), place(0), &why, row.epoch)
		if err != nil || found != row.found || found && at != 7 {
			t.Errorf("%s: at %d, found %v, %v", name, at, found, err)
		}
		if held := b.count("select count(*) from holdfast.consumer_position where held = $1", why); held > 0 != row.found {
			t.Errorf("%s: %d rows are noted as held", name, held)
		}
		if _, _, err := b.Hold(t.Context(), place(0), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPosition_StandingsAreThoseOfTheConsumer(t *testing.T) {
	b := setup(t)
	for partition := range 2 {
		b.owned(partition)
	}
	why := "it is too large"
	if _, _, err := b.Hold(t.Context(), place(1), &why, nil); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing2', 'orders', 0, 3), ('a', 'orders', 5, 4)`)
	got, err := b.Standings(t.Context())
	want := map[source.TopicPartition]readahead.Standing{place(0): {Claimed: true}, place(1): {Claimed: true, Held: why}}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestPosition_ACheckpointIsBelowThePosition(t *testing.T) {
	b := setup(t)
	f := b.owned(0)
	look := func(want readahead.Checkpoint) {
		t.Helper()
		if got, err := b.Checkpoint(t.Context(), place(0)); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
	look(readahead.Checkpoint{Offset: source.NoOffset})
	if _, err := b.Save(t.Context(), []Progress{{f, 7, last(5)}}); err != nil {
		t.Fatal(err)
	}
	look(last(5))
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set position = 5") // A person has read on from there.
	look(readahead.Checkpoint{Offset: source.NoOffset})
}

func TestPosition_TheTokenIsRenewedOnceAfterACrash(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, "truncate holdfast.incarnation")
	if token, err := b.Incarnation(t.Context()); token != "" || err != nil {
		t.Errorf("after a crash the token is %q, %v", token, err)
	}
	var first string
	for range 2 {
		if err := b.Renew(t.Context()); err != nil {
			t.Fatal(err)
		}
		token, err := b.Incarnation(t.Context())
		if err != nil || token == "" || first != "" && token != first {
			t.Errorf("the token is %q, %v; it was %q", token, err, first)
		}
		first = token
	}
}

func TestPosition_WhatFailedIsSaid(t *testing.T) {
	b := setup(t)
	f := b.owned(3)
	pgtest.Exec(t, b.db, "alter table holdfast.consumer_position rename to gone; drop view holdfast.current_incarnation cascade; alter table holdfast.incarnation rename to lost")
	why := "why"
	_, saving := b.Save(t.Context(), []Progress{{f, 7, last(5)}})
	_, releasing := b.Release(t.Context(), Progress{f, 7, last(5)}, true)
	_, found, holding := b.Hold(t.Context(), place(3), &why, nil)
	_, standing := b.Standings(t.Context())
	checkpoint, looking := b.Checkpoint(t.Context(), place(3))
	_, reading := b.Incarnation(t.Context())
	for says, err := range map[string]error{
		"save positions": saving, "release orders/3": releasing, "note that orders/3 is held": holding, "read positions": standing,
		"read checkpoint of orders/3": looking, "read the incarnation": reading, "refill the incarnation": b.Renew(t.Context()),
	} {
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("the error is %v, want one that says %q", err, says)
		}
		if errors.Is(err, failure.ErrFenced) {
			t.Errorf("who could not ask is called fenced off: %v", err)
		}
	}
	if found || checkpoint.Offset != source.NoOffset {
		t.Errorf("found %v, checkpoint %+v", found, checkpoint)
	}
}
