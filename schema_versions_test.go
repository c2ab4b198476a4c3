package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

// starts are the parts of holdfast that run, each with the rights that docs/operations.md lists.
func starts(t *testing.T, db *pgtest.DB) map[string]func(context.Context) error {
	t.Helper()
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	r, err := relay.New(as(t, db, "relay"), refusing(func(holdfast.Event) bool { return false }), relay.Config{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	consumer := func() *inbox.Inbox {
		in, err := inbox.New(as(t, db, "consumer"), inbox.Config{Consumer: "billing", Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		in.Handle("t", func(context.Context, pgx.Tx, holdfast.Event) error { return nil })
		return in
	}
	running, consuming := consumer(), consumer()
	cluster := kafkatest.InProcess(t)
	group := kafkago.GroupConfig{GroupID: "billing", Topics: []string{cluster.Topic(t, 1)}}
	return map[string]func(context.Context) error{
		"Relay.Run": r.Run, "Inbox.Run": running.Run,
		"Inbox.Consume": func(ctx context.Context) error { return endtoend.ConsumeGroup(ctx, consuming, cluster.Brokers, group) },
	}
}

func TestANewNodeOnAnOldSchemaSaysWhatToRun(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	script(t, db.Pool, "holdfast", "1.sql")
	want := fmt.Sprintf("schema holdfast is at version 1, this build needs %d: run holdfast migrate", holdfast.SchemaVersion)
	for name, run := range starts(t, db) {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		err := run(ctx)
		cancel()
		if !errors.Is(err, holdfast.ErrSchemaVersion) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s ends with %v, want %q", name, err, want)
		}
	}
	if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); !errors.Is(err, holdfast.ErrSchemaVersion) || !strings.Contains(err.Error(), want) {
		t.Errorf("Check says %v, want %q", err, want)
	}
}

func TestAnOldNodeOnANewSchemaRunsUnlessItMustNot(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	parts := starts(t, db)
	pgtest.Exec(t, db.Pool, "update holdfast.installation set version = $1 + 1, compatible_from = $1 + 1", holdfast.SchemaVersion)
	want := fmt.Sprintf("schema holdfast is at version %d, for builds that know version %[1]d or a newer one; this build knows %d: use a newer build", holdfast.SchemaVersion+1, holdfast.SchemaVersion)
	for name, run := range parts {
		ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
		err := run(ctx)
		cancel()
		if !errors.Is(err, holdfast.ErrSchemaVersion) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s ends with %v, want %q", name, err, want)
		}
	}
	pgtest.Exec(t, db.Pool, "update holdfast.installation set compatible_from = $1", holdfast.SchemaVersion)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for name, run := range starts(t, db) {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Errorf("%s ends with %v", name, err)
			}
		})
	}
	wait.Until(t, "the relay owns lanes, and the consumer declares its types", func() bool {
		return pgtest.Count(t, db.Pool, "select (select count(*) from holdfast.lane where owner is not null) * (select count(*) from holdfast.consumer_type)") > 0
	})
	stop()
	running.Wait()
}

// The statements of version 1's outbox, word by word: its processes write while the schema is upgraded, and afterwards until
// they are replaced.
const (
	appendEventsOf1 = `select holdfast.append($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[], $8::bytea[], $9::timestamptz[], null)`
	appendEventOf1  = `select holdfast.append_one($1::text, $2::text, $3::text, $4::text, $5::text, $6::timestamptz, $7::text, $8::bytea)`
	writeEventOf1   = `select holdfast.write('orders', $1, 't', 'by SQL', headers => '{"tenant": "a"}')`
)

func TestProducersOfVersion1WriteThroughTheUpgrade(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	script(t, db.Pool, "holdfast", "1.sql")
	producer := as(t, db, "producer")
	ctx, stop := context.WithCancel(t.Context())
	var wrote [3]int64
	var writers sync.WaitGroup
	for w, write := range []func(id string) error{
		func(id string) error {
			_, err := producer.Exec(t.Context(), appendEventOf1, id, "shop", "t", "orders", id, nil, `{"a": "1"}`, []byte("x"))
			return err
		},
		func(id string) error {
			two := []string{id, id + "b"}
			_, err := producer.Exec(t.Context(), appendEventsOf1, two, two, two, []string{"orders", "mail"}, two, nil, nil, [][]byte{nil, {}}, []*time.Time{nil, nil})
			return err
		},
		func(id string) error {
			_, err := producer.Exec(t.Context(), writeEventOf1, id)
			return err
		},
	} {
		writers.Go(func() {
			for ctx.Err() == nil {
				if err := write(fmt.Sprint(w, "-", wrote[w])); err != nil {
					t.Errorf("after %d: %v", wrote[w], err)
					return
				}
				wrote[w]++
			}
		})
	}
	written := func() int64 { return pgtest.Count(t, db.Pool, "select count(*) from holdfast.event") }
	wait.Until(t, "the writers write", func() bool { return written() > 100 })
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Error(err)
	}
	upgraded := written()
	wait.Until(t, "the writers write on", func() bool { return t.Failed() || written() > upgraded+100 })
	stop()
	writers.Wait()
	if got, want := written(), wrote[0]+2*wrote[1]+wrote[2]; got != want {
		t.Errorf("%d events are in the log, %d were written", got, want)
	}
}
