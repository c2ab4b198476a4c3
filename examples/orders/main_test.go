package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// telling is the story as a config has it.
func telling(c config) exampletest.Story {
	return func(ctx context.Context, out io.Writer) error { return run(ctx, out, c) }
}

func TestOrders_WithoutAnyServerTheStoryIsToldToItsEnd(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	text := exampletest.ToItsEnd(t, telling(config{}), 4,
		"an in-process fake",
		"100 orders of 5 customers", "1 more was rolled back", "100 events to the topic",
		"25 events a second time; billing recognises 25 duplicates", "100 invoices, as before",
		"dead letter 1 of carol after 4 attempts: there is no VAT rate for IS",
		"dave's 3 orders have their invoices", "carol's 3 wait for it",
		"ann replays 1 dead letter", "107 invoices")
	if strings.Contains(text, "level=") {
		t.Error("the library's log is part of the story")
	}
	if lines := strings.Count(text, "\n"); lines > 35 {
		t.Errorf("the story has %d lines, which is more than a screen", lines)
	}
}

func TestOrders_ServersThatAreNamedAreUsedAndLeftAsTheyWere(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	db, kafka := pgtest.New(t), exampletest.Cluster(t)
	text := exampletest.OnNamedServer(t, db, "orders", telling(config{DatabaseURL: db.DSN, Brokers: strings.Join(kafka.Brokers, ",")}))
	if strings.Contains(text, "in-process fake") {
		t.Error("it started a Kafka of its own")
	}
	wantNoTopic(t, kafka, text)
}

func TestOrders_AnInterruptEndsItAndCleansUp(t *testing.T) {
	t.Parallel()
	for _, at := range []string{" 2. ", " 3. ", " 4. ", " 6. "} {
		t.Run("in step"+at, func(t *testing.T) {
			t.Parallel()
			db, kafka := pgtest.New(t), exampletest.Cluster(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &watched{word: at, seen: cancel}
			err := run(ctx, out, config{DatabaseURL: db.DSN, Brokers: strings.Join(kafka.Brokers, ",")})
			if !errors.Is(err, errInterrupted) || err.Error() != errInterrupted.Error() {
				t.Errorf("it ended with %v, want %v", err, errInterrupted)
			}
			exampletest.NoSchemas(t, db, "orders")
			wantNoTopic(t, kafka, out.String())
		})
	}
}

// watched calls seen when the word is written.
type watched struct {
	bytes.Buffer
	word string
	seen func()
}

func (w *watched) Write(p []byte) (int, error) {
	defer func() {
		if strings.Contains(w.String(), w.word) {
			w.seen()
		}
	}()
	return w.Buffer.Write(p)
}

// wantNoTopic looks for what is named after the run's schema; other runs may be under way.
func wantNoTopic(t *testing.T, c *kafkatest.Cluster, text string) {
	t.Helper()
	name := regexp.MustCompile(`schema (orders_\w+)`).FindStringSubmatch(text)
	if name == nil {
		t.Fatal("the story does not name its schema")
	}
	// A real broker takes a moment to forget a topic.
	wait.Until(t, "topic "+name[1]+" is deleted", func() bool {
		meta, err := c.Client.Metadata(t.Context(), &kafka.MetadataRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(meta.Topics, func(topic kafka.Topic) bool { return strings.HasPrefix(topic.Name, name[1]) })
	})
}

func TestOrders_ABrokenPromiseIsFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ sql, want string }{
		"an order with two invoices": {
			"insert into invoices (order_id, customer, cents) select order_id, customer, cents from invoices order by number desc limit 1",
			"every committed order has exactly one invoice: 1 exceptions"},
		"an order without an invoice": {
			"delete from invoices where number = (select max(number) from invoices)",
			"every committed order has exactly one invoice: 1 exceptions"},
		"an invoice for an order that was rolled back": {
			"insert into invoices (order_id, customer, cents) values (1000000, 'bob', 1)",
			"no invoice is there without its order: 1 exceptions"},
		"an invoice before that of an earlier order": {
			`with last as (delete from invoices where order_id = (select min(id) from orders where customer = 'bob') returning *)
			 insert into invoices (order_id, customer, cents) select order_id, customer, cents from last`,
			"each customer's invoices follow the order of the orders: 1 exceptions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := exampletest.Breaks(t, telling(config{
				DatabaseURL: pgtest.New(t).DSN,
				beforeCheck: func(ctx context.Context, s *story) error {
					_, err := s.Pool.Exec(ctx, test.sql)
					return err
				},
			}), test.want)
			if !strings.Contains(text, "BROKEN  "+test.want) {
				t.Error("the story does not say so")
			}
		})
	}
}

func TestOrders_WhatIsWrongWithTheServersIsSaidInASentence(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env  []string
		want []string
	}{
		"no Postgres at the address": {
			[]string{"DATABASE_URL=postgres://shop:secret@127.0.0.1:1/shop"},
			[]string{"DATABASE_URL is set, but its server cannot be reached", "or unset DATABASE_URL"}},
		"an address that is none": {
			[]string{"DATABASE_URL=postgres://shop:secret@127.0.0.1:port/shop"},
			[]string{"DATABASE_URL cannot be read", "postgres://user:password@host:5432/database"}},
		"no Kafka at the address": {
			[]string{"DATABASE_URL=" + pgtest.New(t).DSN, "KAFKA_BROKERS=127.0.0.1:1"},
			[]string{`KAFKA_BROKERS is "127.0.0.1:1", but none of them answers`, "or unset KAFKA_BROKERS"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, said := exampletest.Refused(t, test.env...)
			said = strings.TrimSpace(said)
			for _, want := range test.want {
				if !strings.Contains(said, want) {
					t.Errorf("it does not say %q", want)
				}
			}
			if strings.Contains(said, "\n") || strings.Contains(said, "secret") {
				t.Error("what it says is more than a sentence, or holds the password")
			}
			t.Log(said)
		})
	}
}
