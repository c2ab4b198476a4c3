//go:build linux

package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/waiting"
)

// The oracles know by it which letters are a person's: without it they would excuse none of them.
func TestPartPerson_TheReasonOfALetterNamesTheCommand(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		select 0, 'oders', 'm' || g, nextval('holdfast.parked_place'), 'topic', 'infinity', 'relay ' || g, 's', 't', now() from generate_series(1, 2) g`)
	pgtest.Exec(t, db.Pool, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		select $1, 'orders', 'k' || g, g, 's', 'consumer ' || g, 't', now(), '', now() from generate_series(1, 2) g`, consumerName)
	dir := t.TempDir()
	rec, err := history.Open(dir, "person/0")
	if err != nil {
		t.Fatal(err)
	}
	room, err := waiting.New(db.Pool, waiting.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p := &person{part: part{Actor: "person/0"}, rec: rec, room: room}
	for _, f := range []waiting.Filter{{Origin: dlq.OriginRelay, Topic: "oders", Key: "m1"}, {Consumer: consumerName, Key: "k1"}} {
		if err := p.command(givesUp, func(o waiting.Options) (int, error) { return p.room.GiveUp(t.Context(), f, o) }); err != nil {
			t.Error(err)
		}
	}
	for _, f := range []waiting.Filter{{Origin: dlq.OriginRelay, Topic: "oders", Key: "m2"}, {Consumer: consumerName, Key: "k2"}} {
		if err := p.command(discards, func(o waiting.Options) (int, error) { return p.room.Discard(t.Context(), f, o) }); err != nil {
			t.Error(err)
		}
	}
	if err := rec.Close(); err != nil {
		t.Fatal(err)
	}

	entries, _, err := history.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	var answered []string
	for _, e := range entries {
		if e.Op != history.Decide || e.How != history.OK || e.Num != 1 {
			t.Errorf("answered: %+v", e)
		}
		answered = append(answered, e.Text)
	}
	rows, _ := db.Pool.Query(t.Context(), "select reason from holdfast.letter order by id")
	reasons, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for _, reason := range reasons {
		named = append(named, commandOf(reason))
	}
	if len(named) != 4 || !slices.Equal(named, answered) {
		t.Errorf("the reasons %q name %q, answered were %q", reasons, named, answered)
	}
	if command := commandOf(fmt.Sprintf("it failed %d times", attempts)); command != "" {
		t.Errorf("a consumer's letter is called that of the command %q", command)
	}
}
