package relay

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// Headers that compress well and those that do not, and no payload.
var headersOf40KB = map[string]string{
	"compressed":   `jsonb_build_object('h', repeat('x', 40000))`,
	"uncompressed": `(select jsonb_object_agg('h' || i, md5(i::text || n::text)) from generate_series(1, 1000) i)`,
}

func TestBytes_ScheduledMovesCountHeaders(t *testing.T) {
	t.Parallel()
	for name, headers := range headersOf40KB {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := migrated.Lanes(t, 1)
			pgtest.Exec(t, db.Pool, `insert into holdfast.scheduled (lane, due_at, id, type, topic, key, time, headers)
				select 0, now() - interval '1 second', 'e' || n, 't', 'orders', 'k', now(), `+headers+` from generate_series(1, 5) n`)
			var events, bytes int64
			if err := db.Pool.QueryRow(t.Context(), moveScheduled, 0, 1000, int64(100_000), nil).Scan(&events, &bytes); err != nil {
				t.Fatal(err)
			}
			if events != 3 || bytes < 120_000 || bytes > 140_000 {
				t.Errorf("%d events of about 40 KB were moved, %d bytes, with a limit of 100,000", events, bytes)
			}
		})
	}
}

func TestBytes_DrainsCountHeaders(t *testing.T) {
	t.Parallel()
	for name, headers := range headersOf40KB {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := migrated.Lanes(t, 1)
			pgtest.Exec(t, db.Pool, fmt.Sprintf(`insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, headers)
				select 0, 'orders', 'k', n, 'record', case when n = 1 then now() else 'infinity' end, 'e' || n, '', 't', now(), %s from generate_series(1, 6) n`, headers))
			rows, err := db.Pool.Query(t.Context(), readDue, 0, []string{}, 500, []string{}, []string{}, []int64{}, 100, 100_000)
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for rows.Next() {
				n++
			}
			if rows.Err() != nil || n != 3 {
				t.Errorf("%d rows of about 40 KB were read with a limit of 100,000, %v", n, rows.Err())
			}
		})
	}
}
