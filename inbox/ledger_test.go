package inbox

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// In these tests the ledger writes without a pipeline and without a handler.

var poison = letter{reason: "it is broken", attempts: 2, errors: []string{"no"}, reopen: true}

// fromKafka is an event that a partition's owner takes in, at offset 4. suspected: a start of its handler is counted.
func (b *bundle) fromKafka(in *Inbox, f *position.Fence, suspected bool) *delivery {
	b.Helper()
	d := in.registry.newDelivery(event("1", "k"))
	d.from = &origin{fence: f, offset: 4}
	if suspected {
		d.start = 1
		if err := in.receiver.ledger.starts.countAll(b.Context(), []*delivery{d}); err != nil {
			b.Fatal(err)
		}
	}
	return d
}

func (b *bundle) rollback(tx pgx.Tx) {
	b.Helper()
	if err := tx.Rollback(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func (b *bundle) notified() int { return of(b, func(o *observations) int { return len(o.dead) }) }

func TestLedger_RecordingWritesARowOnce(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	led, f := in.receiver.ledger, b.raise(in, "", 0).Fence
	for _, d := range []*delivery{b.fromKafka(in, f, false), in.registry.newDelivery(event("2", "k"))} {
		tx := pgtest.Begin(b, b.db)
		for _, want := range []bool{true, false} {
			if inserted, err := led.record(t.Context(), tx, d, "skipped", 3); inserted != want || err != nil {
				t.Errorf("recorded %v, %v; want %v", inserted, err, want)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := b.count(`select count(*) from holdfast.inbox where event_id = $1 and result = 'skipped' and attempts = 3
			and partition is not distinct from $2 and "offset" is not distinct from $3`, d.e.ID, d.partition(), d.offset()); n != 1 {
			t.Errorf("the row of %s is not as it was recorded", d.e.ID)
		}
	}
}

func TestLedger_RecordingUnderALostFenceIsRefused(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	led, d := in.receiver.ledger, b.fromKafka(in, b.raise(in, "", 0).Fence, true)
	b.raise(in, "", 0)
	tx := pgtest.Begin(b, b.db)
	if inserted, err := led.record(t.Context(), tx, d, "skipped", 0); inserted || !errors.Is(err, failure.ErrFenced) {
		t.Errorf("recorded %v, %v", inserted, err)
	}
	if out, err := led.deadLetter(t.Context(), tx, d, poison, Dead); out != "" || !errors.Is(err, failure.ErrFenced) {
		t.Errorf("dead-lettered %q, %v", out, err)
	}
	if out, err := led.letterAlone(t.Context(), tx, d, poison); out != "" || !errors.Is(err, failure.ErrFenced) {
		t.Errorf("dead-lettered alone %q, %v", out, err)
	}
	if n := pgtest.Count(t, tx, "select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d letters of a partition that is another node's", n)
	}
	b.rollback(tx)
}

func TestLedger_RecordingSaysWhatFailed(t *testing.T) {
	for _, row := range []struct {
		name, breaks, says string
		kafka              bool
		ask                func(led *ledger, tx pgx.Tx, d *delivery) error
	}{
		{"record", "alter table holdfast.inbox rename to gone", "insert inbox row", true, recorded},
		{"record without Kafka", "alter table holdfast.inbox rename to gone", "insert inbox row", false, recorded},
		{"record refused", "alter table holdfast.inbox add constraint bound check (attempts > 5) not valid", "insert inbox row", true, recorded},
		{"dead row", "alter table holdfast.inbox rename to gone", "insert inbox row", true, deadLettered},
		{"dead letter", "alter table holdfast.letter add constraint bound check (attempts > 99) not valid", "insert letter", true, deadLettered},
		{"letter alone", "alter table holdfast.letter rename to gone", "insert letter", false, letteredAlone},
		{"forget", "alter table holdfast.start rename to gone", "forget starts", true, deadLettered},
		{"forget alone", "alter table holdfast.start rename to gone", "forget starts", true, letteredAlone},
		{"known", "alter table holdfast.inbox rename to gone", "read inbox row", false, looked},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			d := b.fromKafka(in, b.raise(in, "", 0).Fence, true)
			if !row.kafka {
				d.from = nil
			}
			pgtest.Exec(t, b.db, row.breaks)
			b.wantError(row.ask(in.receiver.ledger, pgtest.Begin(b, b.db), d), row.says)
		})
	}
}

func recorded(led *ledger, tx pgx.Tx, d *delivery) error {
	_, err := led.record(context.Background(), tx, d, "skipped", 1)
	return err
}

func deadLettered(led *ledger, tx pgx.Tx, d *delivery) error {
	_, err := led.deadLetter(context.Background(), tx, d, poison, Dead)
	return err
}

func letteredAlone(led *ledger, tx pgx.Tx, d *delivery) error {
	_, err := led.letterAlone(context.Background(), tx, d, poison)
	return err
}

func looked(led *ledger, tx pgx.Tx, d *delivery) error {
	_, err := led.known(context.Background(), tx, d)
	return err
}

func TestLedger_DeadLetteringWritesTheLetterAndForgetsTheStarts(t *testing.T) {
	for name, row := range map[string]struct {
		kafka, alone bool
		as           Outcome
		notified     int
	}{
		"given up":           {true, false, Dead, 1},
		"without Kafka":      {false, false, Dead, 1},
		"below the position": {true, false, Stale, 0},
		"without a row":      {true, true, Dead, 1},
		"and without Kafka":  {false, true, Dead, 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			led, d := in.receiver.ledger, b.fromKafka(in, b.raise(in, "", 0).Fence, true)
			if !row.kafka {
				d.from = nil
			}
			tx := pgtest.Begin(b, b.db)
			var out Outcome
			var err error
			rows := int64(1)
			if row.alone {
				rows = 0
				out, err = led.letterAlone(t.Context(), tx, d, poison)
			} else {
				out, err = led.deadLetter(t.Context(), tx, d, poison, row.as)
			}
			if out != row.as || err != nil {
				t.Errorf("it says %q, %v", out, err)
			}
			if b.notified() != 0 {
				t.Error("it was reported before the commit")
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if d.after != nil {
				d.after()
			}
			if b.notified() != row.notified {
				t.Errorf("it was reported %d times, want %d", b.notified(), row.notified)
			}
			if n := b.count("select count(*) from holdfast.letter where reason = 'it is broken' and attempts = 2"); n != 1 || b.counts() != "" {
				t.Errorf("%d letters, and the starts %q", n, b.counts())
			}
			if n := b.count("select count(*) from holdfast.inbox where result = 'dead'"); n != rows {
				t.Errorf("%d rows, want %d", n, rows)
			}
		})
	}
}

func TestLedger_DeadLetteringWhatIsKnownSaysSoOnly(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	b.receive(in, event("1", "k"), Handled)
	d := in.registry.newDelivery(event("1", "k"))
	out, err := in.receiver.ledger.deadLetter(t.Context(), pgtest.Begin(b, b.db), d, poison, Dead)
	if out != Duplicate || err != nil || d.after != nil {
		t.Errorf("it says %q, %v", out, err)
	}
}

func TestLedger_KnowingAnEventTellsWhatBecameOfIt(t *testing.T) {
	for _, row := range []struct {
		result  string
		inDoubt bool
		payload string
		edited  string
		want    Outcome
		letters int64
		forgets bool
	}{
		{"handled", false, "", "", Duplicate, 0, true},
		{"handled", true, "", "", Handled, 0, false},
		{"stored", true, "", "", Stored, 0, false},
		{"dead", true, "", "", Dead, 0, false},
		{"skipped", true, "", "", Duplicate, 0, true},
		{"handled", false, "another", "", Conflict, 1, false},
		{"handled", false, "another", "another", Duplicate, 1, false},
		{"handled", false, "another", "a third", Conflict, 2, false},
	} {
		t.Run(row.result+" "+string(row.want)+" "+row.edited, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			led, d := in.receiver.ledger, b.fromKafka(in, b.raise(in, "", 0).Fence, true)
			first := b.fromKafka(in, d.from.fence, false)
			tx := pgtest.Begin(b, b.db)
			if _, err := led.record(t.Context(), tx, first, row.result, 1); err != nil {
				t.Fatal(err)
			}
			if row.edited != "" {
				was := event("1", "k")
				was.Payload = []byte(row.edited)
				id, err := led.letters.insert(t.Context(), tx, first.e, first.hash, nil, nil, poison)
				if err != nil {
					t.Fatal(err)
				}
				pgtest.Exec(t, tx, "insert into holdfast.letter_action (letter, action, by, reason, hash) values ($1, 'edit', 'ann', 'a typo', $2)", id, in.registry.newDelivery(was).hash)
			}
			if row.payload != "" {
				d.e.Payload = []byte(row.payload)
				d.hash = d.eventHash()
			}
			d.inDoubt = row.inDoubt
			if out, err := led.known(t.Context(), tx, d); out != row.want || err != nil {
				t.Errorf("it says %q, %v; want %q", out, err, row.want)
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := b.count("select count(*) from holdfast.letter"); n != row.letters {
				t.Errorf("%d letters, want %d", n, row.letters)
			}
			if forgotten := b.counts() == ""; forgotten != row.forgets {
				t.Errorf("the starts are forgotten: %v", forgotten)
			}
		})
	}
}

func TestLedger_KnowingAConflictSaysWhatFailed(t *testing.T) {
	for breaks, says := range map[string]string{
		"alter table holdfast.letter_action rename to gone":             "look for the payload before an edit",
		"alter table holdfast.letter rename column fingerprint to gone": "insert letter",
		"alter table holdfast.start rename to gone":                     "forget starts",
	} {
		t.Run(says, func(t *testing.T) {
			b := setup(t)
			in := b.inbox()
			in.Handle("order.placed", effectOf)
			b.receive(in, event("1", "k"), Handled)
			d := b.fromKafka(in, &position.Fence{}, true)
			if says != "forget starts" {
				d.e.Payload = []byte("another")
				d.hash = d.eventHash()
			}
			pgtest.Exec(t, b.db, breaks)
			b.wantError(looked(in.receiver.ledger, pgtest.Begin(b, b.db), d), says)
		})
	}
}

// An operator who reads that a lock could not be taken has to know which.
func TestLedger_RecordingSaysThatTheFenceCouldNotBeTaken(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	d := b.fromKafka(in, b.raise(in, "", 0).Fence, false)
	pgtest.Exec(t, pgtest.Begin(b, b.db), "select pg_advisory_xact_lock($1, $2)", position.FenceClass, d.from.fence.Number)
	for name, ask := range map[string]func(*ledger, pgx.Tx, *delivery) error{"record": recorded, "letterAlone": letteredAlone} {
		tx := pgtest.Begin(b, b.db)
		pgtest.Exec(t, tx, "set local lock_timeout = '20ms'")
		if err := ask(in.receiver.ledger, tx, d); err == nil || !strings.Contains(err.Error(), "take fence") {
			t.Errorf("%s says %v", name, err)
		}
	}
}
