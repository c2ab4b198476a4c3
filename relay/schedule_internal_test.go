package relay

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// interruption is what happens when a statement of a name is about to be sent for the nth time.
type interruption struct {
	statement string
	nth       int
	does      func()
}

// interruptedDatabase is a database with interruptions.
type interruptedDatabase struct {
	database
	left []*interruption
}

func (d *interruptedDatabase) see(sql string) {
	d.left = slices.DeleteFunc(d.left, func(i *interruption) bool {
		if !strings.HasPrefix(sql, "-- relay."+i.statement+"\n") {
			return false
		}
		if i.nth--; i.nth == 0 {
			i.does()
		}
		return i.nth == 0
	})
}

func (d *interruptedDatabase) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	d.see(sql)
	return d.database.QueryRow(ctx, sql, args...)
}

func (d *interruptedDatabase) BeginTx(ctx context.Context, options pgx.TxOptions) (pgx.Tx, error) {
	tx, err := d.database.BeginTx(ctx, options)
	return interruptedTx{tx, d}, err
}

type interruptedTx struct {
	pgx.Tx
	d *interruptedDatabase
}

func (t interruptedTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	for _, q := range batch.QueuedQueries {
		t.d.see(q.SQL)
	}
	return t.Tx.SendBatch(ctx, batch)
}

// An event that cannot be moved into the log becomes a dead letter, and never another one that was due before it and is committed
// while the relay looks for the one to blame.
func TestSchedule_AnEventThatIsScheduledMeanwhileIsNotBlamed(t *testing.T) {
	t.Parallel()
	const alone = 10 // of the moves by halves: 1,000, 500 … 1
	schedule := func(db *pgtest.DB, id, due string) {
		pgtest.Exec(t, db.Pool, `insert into holdfast.scheduled (lane, due_at, id, type, topic, key, time, payload)
			values (0, now() - $1::interval, $2, 't', 'orders', 'k', now(), 'p')`, due, id)
	}
	cancel := func(db *pgtest.DB, id string) {
		pgtest.Exec(t, db.Pool, "delete from holdfast.scheduled where id = $1", id)
	}
	early := func(db *pgtest.DB) { schedule(db, "early", "1 hour") }
	type moment struct {
		statement string
		nth       int
		does      func(db *pgtest.DB)
	}
	for name, c := range map[string]struct {
		moments        []moment
		moved, letters []string
	}{
		"before the first one is tried alone": {[]moment{{"move_scheduled", alone, early}}, []string{"early", "late"}, []string{"bad"}},
		"before it has a name":                {[]moment{{"name_scheduled", 1, early}}, []string{"early", "late"}, []string{"bad"}},
		"before it is tried by its name":      {[]moment{{"move_scheduled", alone + 1, early}}, []string{"early", "late"}, []string{"bad"}},
		"before it is a dead letter":          {[]moment{{"dead_letter_scheduled", 1, early}}, []string{"early", "late"}, []string{"bad"}},
		"cancelled, and another one, too": {[]moment{
			{"name_scheduled", 1, func(db *pgtest.DB) { cancel(db, "bad") }},
			{"move_scheduled", alone + 1, func(db *pgtest.DB) { schedule(db, "worse", "1 hour") }},
			{"dead_letter_scheduled", 1, func(db *pgtest.DB) { cancel(db, "worse") }},
		}, []string{"late"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := migrated.Lanes(t, 1)
			for segment := range 4 {
				pgtest.Exec(t, db.Pool, fmt.Sprintf("alter table holdfast.event_%d add check (id not in ('bad', 'worse'))", segment))
			}
			schedule(db, "bad", "1 minute")
			schedule(db, "late", "1 second")
			d := &interruptedDatabase{database: db.Pool}
			for _, m := range c.moments {
				d.left = append(d.left, &interruption{m.statement, m.nth, func() { m.does(db) }})
			}
			var given []string
			r := newRelay(d, nil, Config{Name: "relay", Lease: time.Minute, Logger: noLog, Observer: Observer{
				OnDead: func(l DeadLettered) { given = append(given, l.Event.ID) },
			}}.withDefaults(), simStatements)
			r.env.start = func(_ context.Context, l *lane) { l.lost = func(error) {}; r.enter(l) }
			if err := r.maintainClaims(t.Context(), t.Context()); err != nil || len(r.owned()) != 1 {
				t.Fatalf("%d lanes, %v", len(r.owned()), err)
			}
			if err := r.owned()[0].moveScheduled(t.Context()); err != nil {
				t.Fatal(err)
			}
			var moved, letters []string
			if err := db.Pool.QueryRow(t.Context(), `select (select array_agg(id order by seq) from holdfast.event), (select array_agg(event_id) from holdfast.letter)`).Scan(&moved, &letters); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(moved, c.moved) {
				t.Errorf("moved are %q, want %q", moved, c.moved)
			}
			if !slices.Equal(letters, c.letters) || !slices.Equal(given, c.letters) || len(d.left) > 0 {
				t.Errorf("letters are of %q (told of %q), want %q; %d more moments were awaited", letters, given, c.letters, len(d.left))
			}
		})
	}
}
