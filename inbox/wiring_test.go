package inbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestWiring_AConsumerWhoseDatabaseIsNotReadySaysWhatToDoAndEnds(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	b := setup(t)
	name := "stranger_" + strings.ToLower(rand.Text())
	pgtest.Exec(t, b.db, "create role "+name)
	t.Cleanup(func() { pgtest.Exec(t, b.db, "drop role "+name) })
	c, err := pgxpool.ParseConfig(b.db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "set role "+name)
		return err
	}
	stranger, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stranger.Close)
	for _, row := range []struct {
		name string
		pool *pgxpool.Pool
		want string
	}{
		{"there is no schema", pgtest.New(t).Pool, "run holdfast migrate"},
		{"the role has no rights", stranger, "docs/operations.md lists what to grant"},
	} {
		ends := map[string]func(context.Context) error{
			"Run": func(ctx context.Context) error { return b.inboxOn(row.pool).Run(ctx) },
			"Consume": func(ctx context.Context) error {
				in := b.inboxOn(row.pool)
				in.Handle("order.placed", effectOf)
				return in.Consume(ctx, kafkaGroup(groupConfig{Brokers: []string{"127.0.0.1:1"}, GroupID: "g", Topics: []string{"orders"}}))
			},
		}
		for what, f := range ends {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			err := f(ctx)
			cancel()
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%s: %s ends with %v, want %q", row.name, what, err, row.want)
			}
			if want := row.pool != stranger; errors.Is(err, holdfast.ErrSchemaMissing) != want {
				t.Errorf("%s: that %s ends because the schema is missing is %v", row.name, what, !want)
			}
		}
	}
	// Rights that are lacking for partitions alone are met before the group is joined.
	pgtest.Exec(t, b.db, "grant usage on schema holdfast to "+name)
	pgtest.Exec(t, b.db, "grant select, insert, update, delete on holdfast.inbox, holdfast.consumer_position, holdfast.consumer_type to "+name)
	t.Cleanup(func() { pgtest.Exec(t, b.db, "drop owned by "+name) })
	consume := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		in := b.inboxOn(stranger)
		in.registry.start()
		return in.consume(ctx, &fakeSource{})
	}
	if err := consume(); err == nil || !strings.Contains(err.Error(), "docs/operations.md lists what to grant") || !strings.Contains(err.Error(), "incarnation") {
		t.Errorf("without the rights on the incarnation Consume ends with %v", err)
	}
	for _, err := range []error{nil, errors.New("connection refused"), &pgconn.PgError{Code: "57P01"}, &pgconn.PgError{Code: "25006"}} {
		if b.inbox().miswired(t.Context(), err) != nil {
			t.Errorf("%v is not waited for", err)
		}
	}
}

// Whatever statement meets it: a right may be taken away, and a part of the schema renamed, after the node has begun.
func TestWiring_WhatAnyStatementLacksEndsConsume(t *testing.T) {
	t.Parallel()
	for breaks, says := range map[string]string{
		"revoke insert on holdfast.inbox from %s":                                                      "inbox",
		"revoke update on holdfast.consumer_position from %s":                                          "consumer_position",
		"revoke select on holdfast.stored from %s":                                                     "stored",
		"alter table holdfast.inbox rename column hash to hash_of_later":                               "run holdfast migrate",
		"alter table holdfast.consumer_position rename to position_of_later":                           "run holdfast migrate",
		"create trigger theirs before insert on holdfast.inbox for each row execute function theirs()": "",
	} {
		t.Run(breaks, func(t *testing.T) {
			b := setup(t)
			name := "limited_" + strings.ToLower(rand.Text())
			pgtest.Exec(t, b.db, "create role "+name)
			t.Cleanup(func() {
				pgtest.Exec(t, b.db, "drop owned by "+name)
				pgtest.Exec(t, b.db, "drop role "+name)
			})
			for _, grant := range []string{"usage on schema holdfast", "select, insert, update, delete on all tables in schema holdfast, public", "usage on all sequences in schema holdfast, public",
				"execute on all functions in schema holdfast"} {
				pgtest.Exec(t, b.db, "grant "+grant+" to "+name)
			}
			pgtest.Exec(t, b.db, "create function theirs() returns trigger language plpgsql as $$ begin insert into not_there values (1); return new; end $$")
			pool := b.db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["role"] = name })
			in := b.inboxOn(pool)
			in.Handle("order.placed", effectOf)
			gen := newFakeGeneration(logOf(event("1", "a"), event("2", "b")))
			gen.gate = make(chan struct{})
			source := &fakeSource{gens: make(chan *fakeGeneration, 1)}
			source.gens <- gen
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			ended := make(chan error, 1)
			in.registry.start()
			go func() { ended <- in.consume(ctx, source) }()
			b.awaitOutcome("1", Handled)
			if strings.Contains(breaks, "%") {
				breaks = fmt.Sprintf(breaks, name)
			}
			pgtest.Exec(t, b.db, breaks)
			close(gen.gate)
			if says == "" {
				wait.Until(t, "what a trigger of somebody's lacks is waited for", func() bool { return len(ended) > 0 || of(b, func(o *observations) int { return len(o.errs) }) > 1 })
				stop()
				if err := <-ended; err != nil {
					t.Errorf("it ends with %v", err)
				}
				return
			}
			if err := <-ended; err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("it ends with %v, want %q", err, says)
			}
		})
	}
}

// Behind a pooler in transaction pooling, a role that another service sets and leaves is that of whoever gets the connection
// next.
func TestWiring_ARoleThatOthersLeaveBehindAPoolerEndsNoConsumer(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	b := setup(t)
	pool := pgtest.BouncerPoolOf(t, b.db)
	pgtest.LeaveRoles(t, pool)
	in := b.inboxOn(pool)
	in.Handle("order.placed", effectOf)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 2)
	in.registry.start()
	go func() { ended <- in.Run(ctx) }()
	source := &fakeSource{gens: make(chan *fakeGeneration, 1)}
	source.gens <- newFakeGeneration(logOf(event("1", "a"), event("2", "b")))
	go func() { ended <- in.consume(ctx, source) }()
	for i, id := range []string{"1", "2", "3", "4"} {
		if i > 1 {
			b.store(b.inbox(), event(id, "k"))
		}
		wait.Until(t, "event "+id+" is handled", func() bool { return len(ended) > 0 || b.effects(id) == 1 })
		pgtest.LeaveRoles(t, pool)
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Errorf("it ended with %v", err)
		}
	}
}
