package rights

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
)

// A producer that could name a letter could pass a key that the letter holds, make an event vanish with it, reopen a
// discarded one, and stop a lane by a number that is none.
func TestReplay_AProducerCannotNameADeadLetter(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	id := rows.Holding(t, db)
	producer := roletest.As(t, db, "producer")
	for name, letters := range map[string]string{"its id": fmt.Sprintf("array[%d]", id), "one that is none": "array[9223372036854775807]", "no number": "array[null]", "none": "array[]"} {
		_, err := producer.Exec(t.Context(), `select holdfast.append(array['1'], array[''], array['t'], array['orders'], array['k'], null, null, null, null, `+letters+`::bigint[])`)
		if err == nil || !strings.Contains(err.Error(), "letters is given: it must be null") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, forbidden := range []string{
		fmt.Sprintf("select holdfast.replay_letter(%d)", id),
		`select holdfast.append_unchecked(array['1'], array[''], array['t'], array['orders'], array['k'], null, null, null, null, array[1])`,
		"select holdfast.publish_letter(1, 'orders', 1)",
	} {
		_, err := producer.Exec(t.Context(), forbidden)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "42501" {
			t.Errorf("%s: got %v, want permission denied", forbidden, err)
		}
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event"); n != 0 {
		t.Errorf("%d events are in the log, want none", n)
	}
}

func TestReplay_ALetterIsReplayedOnceAndOnlyWhenItIsOpen(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	id := rows.Holding(t, db)
	letters := roletest.As(t, db, "operator")
	replayed := func(id int64) bool {
		t.Helper()
		var did bool
		if err := letters.QueryRow(t.Context(), "select holdfast.replay_letter($1)", id).Scan(&did); err != nil {
			t.Fatal(err)
		}
		return did
	}
	if !replayed(id) || replayed(id) || replayed(id+1) {
		t.Error("an open letter was not replayed, or another was")
	}
	for _, state := range []string{"replayed", "discarded"} {
		pgtest.Exec(t, db.Pool, "update holdfast.letter set state = $1", state)
		if replayed(id) {
			t.Errorf("a letter that is %s was replayed", state)
		}
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.event where letter = $1 and id = 'e' and key = 'k' and payload = 'x'", id); n != 1 {
		t.Errorf("%d replays are in the log, want 1", n)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.letter set state = 'open', topic = 'a b'")
	if _, err := letters.Exec(t.Context(), "select holdfast.replay_letter($1)", id); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("replay letter %d: topic is", id)) {
		t.Errorf("got %v", err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter where state = 'open'"); n != 1 {
		t.Error("a letter that cannot be replayed is not open any more")
	}
}

// An event may be in `scheduled` or a letter from a time with other limits.
func TestReplay_ALowerLimitHoldsNoEventUpThatWasLetIn(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 't', convert_to(repeat('x', 1000), 'UTF8'), headers => '{\"a\": \"1\"}', not_before => now() + interval '1 hour')")
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{MaxPayload: 10}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.scheduled set due_at = now(), headers = '{\"hf_x\": \"1\"}'")
	id := rows.Holding(t, db)
	pgtest.Exec(t, db.Pool, "update holdfast.letter set payload = convert_to(repeat('x', 1000), 'UTF8'), headers = '{\"hf_x\": \"1\"}'")
	d, err := dlq.New(roletest.As(t, db, "operator"), dlq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := d.Replay(t.Context(), dlq.Filter{IDs: []int64{id}}, dlq.ReplayOptions{By: "ann"}); n != 1 || err != nil {
		t.Fatalf("replayed %d: %v", n, err)
	}
	r, err := relay.New(roletest.As(t, db, "relay"), refusing(func(holdfast.Event) bool { return false }), relay.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	wait.Until(t, "the relay moves the scheduled event and publishes the letter's", func() bool {
		return pgtest.Count(t, db.Pool, "select (select count(*) from holdfast.scheduled) + (select count(*) from holdfast.letter where state <> 'replayed')") == 0
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
