package steps

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A step belongs to the payload for which it ran. A webhook's event whose hash has a version has steps of its own.
func TestRecorded_StepsOfAnotherPayloadAreMarked(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	now, before := sha256.Sum256([]byte("now")), sha256.Sum256([]byte("before"))
	pgtest.Exec(t, db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, result) values ('billing', 'shop', 'e1', 'orders', $1, 'stored')`, now[:])
	pgtest.Exec(t, db, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at) values
		('billing', 'shop', 'e1', $1, 'mail', 'k', '"sent"', '2026-01-02'), ('billing', 'shop', 'e1', $2, 'charge', 'k', '{"paid": 5}', '2026-01-01'),
		('billing', 'shop', 'e1', $1, 'charge', 'k', '{"paid": 4}', '2026-01-02'), ('billing', 'shop', 'e2', $1, 'charge', 'k', '1', '2026-01-01'),
		('billing', 'mall', 'e1', $1, 'charge', 'k', '2', '2026-01-01'), ('mail', 'shop', 'e1', $1, 'charge', 'k', '3', '2026-01-01')`, now[:], before[:])
	read := func(hash []byte, results bool) string {
		all, err := Read(t.Context(), db.Pool, "holdfast", "billing", "shop", "e1", hash, results)
		if err != nil {
			t.Fatal(err)
		}
		var says []string
		for _, s := range all {
			ran := now
			if s.DoneAt.UTC().Day() == 1 {
				ran = before
			}
			if want := Key("billing", "shop", "e1", ran[:], s.Name); s.Key != want {
				t.Errorf("step %s has the key %s, want %s", s.Name, s.Key, want)
			}
			says = append(says, fmt.Sprint(s.Name, " ", s.DoneAt.UTC().Day(), " ", s.OtherPayload, " ", s.Result))
		}
		return strings.Join(says, ", ")
	}
	const want = `charge 1 true {"paid": 5}, charge 2 false {"paid": 4}, mail 2 false "sent"`
	if got := read(now[:], true); got != want {
		t.Errorf("the steps are %s, want %s", got, want)
	}
	if got := read(nil, true); got != want {
		t.Errorf("with the hash of the inbox they are %s, want %s", got, want)
	}
	if got := read(append(now[:], "version 7"...), false); got != "charge 1 true , charge 2 true , mail 2 true " {
		t.Errorf("with a version, which has steps of its own, they are %s", got)
	}
	if got := read(before[:], false); got != "charge 1 false , charge 2 true , mail 2 true " {
		t.Errorf("without results they are %s", got)
	}
	pgtest.Exec(t, db, "delete from holdfast.inbox")
	if got := read(nil, true); got != strings.ReplaceAll(want, "true", "false") {
		t.Errorf("without a row in the inbox they are %s", got)
	}
}

// Those of the payload now are shown before those of others, and of both the latest.
func TestRecorded_OfManyStepsSomeAreRead(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at)
		select 'billing', 'shop', 'e1', case when n < 10 then sha256('now') else sha256('before') end, 'step ' || n, '', '{}', timestamptz '2026-01-01' + n * interval '1 minute' from generate_series(1, 150) n`)
	now := sha256.Sum256([]byte("now"))
	all, err := Read(t.Context(), db.Pool, "holdfast", "billing", "shop", "e1", now[:], true)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != Most || all[0].Name != "step 1" || all[8].Name != "step 9" || all[9].Name != "step 60" || all[99].Name != "step 150" {
		t.Errorf("%d are read: %v", len(all), all)
	}
}

func TestRecorded_StepsAreFoundByTheirKey(t *testing.T) {
	skip.InShort(t, "it fills a table")
	t.Parallel()
	db := migrated.New(t)
	pgtest.Exec(t, db, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, processed_at) select 'billing', 's', n::text, 'orders', '', 'dead', now() from generate_series(1, 20000) n`)
	pgtest.Exec(t, db, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result) select 'billing', 's', (n / 2)::text, '', 'step ' || n % 2, '', '{}' from generate_series(1, 40000) n`)
	for _, table := range []string{"inbox", "inbox_step"} {
		pgtest.Exec(t, db, "analyze holdfast."+table)
	}
	const literals = "'billing', 's', '12', null, true, 100"
	plantest.Allowed(t, db.Pool, roletest.Make(t, db)+"_operator", recordedSQL, literals)
	for _, plan := range plantest.Of(t, db.Pool, recordedSQL, literals) {
		plan.Uses("inbox_step_pkey", "inbox_pkey")
		plan.NeverReadsAllOf("inbox_step", "inbox")
	}
	plantest.EveryStatement(t, []string{recordedSQL}, map[string]string{})
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{Schema: "other"}); err != nil {
		t.Fatal(err)
	}
	if all, err := Read(t.Context(), db.Pool, "other", "billing", "s", "12", nil, true); err != nil || len(all) != 0 {
		t.Errorf("of another schema it reads %v, %v", all, err)
	}
}
