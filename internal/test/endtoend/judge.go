package endtoend

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// Verdict is the oracle's verdict on a test's path, and the events that are left.
type Verdict struct {
	oracle.Verdict
	Letters map[string]bool // the events with an open letter
}

// Except is the verdict without what the test broke itself.
func (v Verdict) Except(kinds ...oracle.Kind) Verdict {
	v.Verdict = v.Verdict.Except(kinds...)
	return v
}

func (v Verdict) MustHold(t testing.TB) {
	t.Helper()
	if !v.Holds() {
		t.Errorf("the oracle says no: %s", v)
	}
	if v.Figures.Letters != len(v.Letters) {
		t.Errorf("%d letters are open, of %d events", v.Figures.Letters, len(v.Letters))
	}
}

// Judge reads everything and asks the oracle.
func (p *Path) Judge(consumers ...string) Verdict {
	p.Helper()
	return VerdictOf(p.Facts(consumers...))
}

// Facts are what is there in the end: what was written, what is in Kafka, what was done. Events of open letters are
// excused from arriving; letters that were closed excuse nothing, not even the order of what was replayed.
func (p *Path) Facts(consumers ...string) oracle.Run {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	run := oracle.Run{Consumers: consumers, Limits: oracle.Limits{NoHistory: true}}
	Collect(ctx, p, &run.Written, "select id, topic, key, number, '', '', null::timestamptz from written")
	Collect(ctx, p, &run.Effects, "select consumer, id, key, '', timestamptz '0001-01-01 00:00Z' from effect order by n") // nobody says when
	Collect(ctx, p, &run.Letters, "select id, event_id, consumer, state, reason from holdfast.letter where state = 'open'")
	Collect(ctx, p, &run.Pending, "select 'parked', '', id from holdfast.parked union all select 'stored', consumer, event_id from holdfast.stored")
	for _, topic := range p.Topics {
		for _, r := range p.Cluster.ReadAll(p, topic) {
			id, _ := r.Header("ce_id")
			run.Records = append(run.Records, oracle.Record{
				ID:        id,
				Topic:     topic,
				Key:       string(r.Key),
				Partition: r.Partition,
				Offset:    r.Offset,
			})
		}
	}
	return run
}

func VerdictOf(run oracle.Run) Verdict {
	events := map[string]bool{}
	for _, l := range run.Letters {
		events[l.EventID] = true
	}
	return Verdict{oracle.Judge(run), events}
}

// Collect reads the rows of a query, column by field.
func Collect[T any](ctx context.Context, p *Path, into *[]T, sql string) {
	p.Helper()
	rows, err := p.Db.Query(ctx, sql)
	if err == nil {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
	}
	if err != nil {
		p.Fatal(err)
	}
}

func newID() string { return strings.ToLower(rand.Text()) + "-0123456789" }
