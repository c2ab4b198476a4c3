package retention

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestBeside_RetentionPassesOverALockedRowAndTakesItLater(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	b := setup(t)
	l := b.loop()
	rows.Settled(t, b.db, "http-", nil, 100)
	tx, err := b.db.Begin(b.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	// As a replay of a letter does: the row says 'stored' again.
	if _, err := tx.Exec(b.Context(), "update holdfast.inbox set result = 'stored', processed_at = null where event_id in ('http-7', 'http-8')"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if _, removed := b.pass(l, 30); removed != 98 {
		t.Errorf("%d rows were removed, want 98", removed)
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it waited %v", took)
	}
	if _, err := tx.Exec(b.Context(), "update holdfast.inbox set result = 'handled', processed_at = received_at where event_id = 'http-7'"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(b.Context()); err != nil {
		t.Fatal(err)
	}
	if _, removed := b.pass(l, 30); removed != 1 {
		t.Errorf("%d rows were removed after the commit, want 1", removed)
	}
	if n := b.count("select count(*) from holdfast.inbox where event_id = 'http-8' and result = 'stored'"); n != 1 {
		t.Error("the row that waits again is gone")
	}
}

func TestBeside_RetentionsTurnBelongsToOneNodeAndComesWhenItIsTime(t *testing.T) {
	b := setup(t)
	one, two := b.loop(), b.loop()
	rows.Settled(t, b.db, "http-", nil, 300)
	if got, err := one.Turn(b.Context(), 100, false); err != nil || got.Removed != 100 {
		t.Fatalf("the first turn: %+v, %v", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = now() + interval '5 minutes'")
	if got, err := two.Turn(b.Context(), 100, false); !errors.Is(err, ErrNotOurTurn) {
		t.Errorf("before its time: %+v, %v", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = now() + interval '1 day'") // by a clock that was wrong
	if got, err := two.Turn(b.Context(), 100, false); err != nil || got.Removed != 100 {
		t.Errorf("a time that is too far away: %+v, %v", got, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.retention set next_at = '-infinity'")
	tx, err := b.db.Begin(b.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(b.Context(), "update holdfast.retention set kept_at = now()"); err != nil {
		t.Fatal(err)
	}
	if got, err := one.Turn(b.Context(), 100, false); !errors.Is(err, ErrNotOurTurn) {
		t.Errorf("beside another node: %+v, %v", got, err)
	}
	_ = tx.Rollback(b.Context())
	if got, err := one.Turn(b.Context(), 100, false); err != nil || got.Removed != 100 {
		t.Errorf("after the other node: %+v, %v", got, err)
	}
}

func TestBeside_RetentionGivesUpOnALockedTableSoon(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	b := setup(t)
	rows.Settled(t, b.db, "http-", nil, 10)
	pool := b.db.PoolOf(t, 1)
	l := b.loop(func(c *Config) { c.Pool = pool })
	settings := func() string {
		var s string
		err := pool.QueryRow(b.Context(), `select string_agg(name || '=' || setting, ' ' order by name) from pg_settings
			where name in ('idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout', 'enable_seqscan', 'enable_bitmapscan', 'enable_sort', 'jit')`).Scan(&s)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	before := settings()
	tx, err := b.db.Begin(b.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(b.Context(), "lock table holdfast.inbox in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if _, err := l.Turn(b.Context(), 100, false); err == nil || !strings.Contains(err.Error(), "55P03") || time.Since(begun) > 30*time.Second {
		t.Errorf("beside a lock on the table: %v after %v, want 55P03 soon", err, time.Since(begun))
	}
	_ = tx.Rollback(b.Context())
	if got := b.turn(l, 100); got.Removed != 10 {
		t.Errorf("%d rows were removed, want 10", got.Removed)
	}
	if after := settings(); after != before {
		t.Errorf("settings were left behind: %s; before %s", after, before)
	}
}
