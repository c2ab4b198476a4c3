package holdfast_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/oracle"
)

// verdict is what the oracle says of a test's path, and what it has left.
type verdict struct {
	oracle.Verdict
	letters map[string]bool // the events with an open letter
}

// except is the verdict without what the test broke itself.
func (v verdict) except(kinds ...oracle.Kind) verdict {
	v.Verdict = v.Except(kinds...)
	return v
}

func (v verdict) mustHold(t testing.TB) {
	t.Helper()
	if !v.Holds() {
		t.Errorf("the oracle says no: %s", v)
	}
	if v.Figures.Letters != len(v.letters) {
		t.Errorf("%d letters are open, of %d events", v.Figures.Letters, len(v.letters))
	}
}

// judge reads everything and asks the oracle.
func (p *path) judge(consumers ...string) verdict {
	p.Helper()
	return verdictOf(p.facts(consumers...))
}

// facts are what is there in the end: what was written, what is in Kafka, what was done. Events of open letters are
// excused from arriving; letters that were closed excuse nothing, not even the order of what was replayed.
func (p *path) facts(consumers ...string) oracle.Run {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	run := oracle.Run{Consumers: consumers, Limits: oracle.Limits{NoHistory: true}}
	collect(ctx, p, &run.Written, "select id, topic, key, number, '', '', null::timestamptz from written")
	collect(ctx, p, &run.Effects, "select consumer, id, key, '', timestamptz '0001-01-01 00:00Z' from effect order by n") // nobody says when
	collect(ctx, p, &run.Letters, "select id, event_id, consumer, state, reason from holdfast.letter where state = 'open'")
	collect(ctx, p, &run.Pending, "select 'parked', '', id from holdfast.parked union all select 'stored', consumer, event_id from holdfast.stored")
	for _, topic := range p.topics {
		for _, r := range p.cluster.ReadAll(p, topic) {
			id, _ := r.Header("ce_id")
			run.Records = append(run.Records, oracle.Record{ID: id, Topic: topic, Key: string(r.Key), Partition: r.Partition, Offset: r.Offset})
		}
	}
	return run
}

func verdictOf(run oracle.Run) verdict {
	events := map[string]bool{}
	for _, l := range run.Letters {
		events[l.EventID] = true
	}
	return verdict{oracle.Judge(run), events}
}

// collect reads the rows of a query, column by field.
func collect[T any](ctx context.Context, p *path, into *[]T, sql string) {
	p.Helper()
	rows, err := p.db.Query(ctx, sql)
	if err == nil {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	}
	if err != nil {
		p.Fatal(err)
	}
}

func newID() string { return strings.ToLower(rand.Text()) + "-0123456789" }
