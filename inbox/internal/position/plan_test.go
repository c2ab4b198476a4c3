package position

import (
	"fmt"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
)

// Among 5,000 positions, half of them of one consumer and the others of 50, every statement finds its rows by their primary key, also
// for a user whom row security holds back.
func TestPlan_PositionsAreFoundByTheirKey(t *testing.T) {
	b := setup(t)
	pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition)
		select case when n % 2 = 0 then 'billing' else 'consumer ' || n % 100 end, 'topic ' || n / 100, n % 100 from generate_series(1, 5000) n`)
	pgtest.Exec(t, b.db, "analyze holdfast.consumer_position")
	var asked []string
	role := roletest.Make(t, b.db) + "_consumer"
	bound, user := roletest.Login(t, b.db, "", role)
	roletest.BindConsumer(t, b.db, user, "billing", "")
	many := func(value, of string) string { return fmt.Sprintf("array_fill(%s::%s, '{100}')", value, of) }
	const token = "'00000000-0000-0000-0000-000000000000'"
	for _, c := range []struct{ statement, literals string }{
		{fenceCheckSQL, "'billing', 'topic 7', 8, 1"},
		{standingsSQL, "'consumer 7'"},
		{positionSQL, "'billing', 'topic 7', 8"},
		{checkpointSQL, "'billing', 'topic 7', 8"},
		{assignSQL, "'billing', 'topic 7', 8, 1, 'node', 'group'"},
		{holdSQL, "'billing', 'topic 7', 8, 'why', null"},
		{saveSQL, "'billing', " + many("'topic 7'", "text") + ", " + many("8", "int") + strings.Repeat(", "+many("1", "bigint"), 4) + ", " + many(token, "text")},
		{releaseSQL, "'billing', 'topic 7', 8, 1, 1, true, 1, 1, " + token},
	} {
		asked = append(asked, c.statement)
		plantest.Allowed(t, b.db.Pool, role, c.statement, c.literals)
		for _, plan := range append(plantest.Of(t, b.db.Pool, c.statement, c.literals), plantest.Of(t, bound, c.statement, c.literals)...) {
			plan.Uses("consumer_position_pkey")
			plan.NeverReadsAllOf("consumer_position")
		}
	}
	const noTable, small = "it reads no table", "one row in all"
	plantest.EveryStatement(t, asked, map[string]string{
		"inbox.fence_shared": noTable, "inbox.fence": noTable, "inbox.try_fence": noTable, "inbox.renew": small, "inbox.incarnation": small,
	})
}
