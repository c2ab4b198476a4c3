package relay

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// Each look is for all lanes. Where everything that is due is of one of them, it is read neither for that one nor for the others.
func TestProbePlan_ALookReadsNothingOfWhatIsDueInOneLane(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	db := migrated.New(t)
	for _, sql := range []string{
		`insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
			select 3, 'orders', '', n, 'follows', now(), n::text, '', 't', now() from generate_series(1, 20000) n`,
		`insert into holdfast.scheduled (lane, due_at, id, type, topic, time)
			select 3, now() - interval '1 minute', n::text, 't', 'orders', now() from generate_series(1, 20000) n`,
		"analyze holdfast.parked", "analyze holdfast.scheduled",
	} {
		pgtest.Exec(t, db.Pool, sql)
	}
	literals := "'{0,1,2,3,4,5,6,7}', array_fill('12000:12010:12003,12005'::text, '{8}'), '00000000-0000-0000-0000-000000000000'"
	for _, plan := range plantest.Of(t, db.Pool, probeLanes, literals) {
		plan.Uses("scheduled_pkey", "parked_due")
		plan.NeverReadsAllOf("scheduled", "parked")
	}
}
