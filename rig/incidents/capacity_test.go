package incidents

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

// sizeOfEvent is the figure of docs/operations/capacity.md.
var sizeOfEvent = regexp.MustCompile("`event` \\| (\\d+) an event with 300 bytes")

func TestCapacity_TheBytesOfAnEvent(t *testing.T) {
	t.Parallel()
	says := sizeOfEvent.FindStringSubmatch(read(t, operations+"/capacity.md"))
	if says == nil {
		t.Fatal("the page does not say how large an event is")
	}
	want := need[int](t)(strconv.Atoi(says[1]))
	db := migrated.New(t)
	const n, each = 10_000, 100
	if err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		for range n / each {
			batch := events("orders", each)
			for i := range batch {
				batch[i].Payload = random(300)
			}
			if err := outbox.Write(t.Context(), tx, batch...); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	got := int(pgtest.Count(t, db, "select sum(pg_total_relation_size('holdfast.event_' || n))::bigint from generate_series(0, 3) n") / n)
	if got < want*9/10 || got > want*11/10 {
		t.Errorf("an event takes %d bytes, the page says %d", got, want)
	}
	t.Logf("an event takes %d bytes", got)
}
