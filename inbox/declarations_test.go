package inbox

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// A node that stops is counted no more, so that a restart does not look like two nodes. Its types are believed as those of one that died.
func TestDeclarations_ANodeThatStopsLivesNoMoreAndIsBelieved(t *testing.T) {
	b := setup(t)
	living := func() (living int64, gone bool) {
		var r nodes.Row
		if err := b.db.QueryRow(t.Context(), sqlschema.In("", nodes.Rows), nodes.Args()...).Scan(&r.Consumer, &r.Living, &r.Silent, &r.Ended); err != nil {
			t.Fatal(err)
		}
		return r.Living, r.Gone()
	}
	declared := func(nodes int64) func() bool {
		return func() bool {
			return b.count("select count(distinct node) from holdfast.consumer_type where not stopped") == nodes
		}
	}
	one, other := b.inbox(), b.inbox()
	for _, in := range []*Inbox{one, other} {
		in.Handle("order.placed", effectOf)
	}
	stop := b.run(one.Run)
	wait.Until(t, "one node has declared its types", declared(1))
	stopOther := b.run(other.Run)
	wait.Until(t, "two nodes have declared their types", declared(2))
	if n, gone := living(); n != 2 || gone {
		t.Errorf("%d nodes live (gone: %v), want 2", n, gone)
	}
	stop()
	if n, gone := living(); n != 1 || gone {
		t.Errorf("%d nodes live after one has stopped (gone: %v), want 1", n, gone)
	}
	stopOther()
	if n, gone := living(); n != 0 || gone {
		t.Errorf("%d nodes live after both have stopped (gone: %v): they may be about to start again", n, gone)
	}
	known, err := one.declarations.declared(t.Context(), b.db.Pool, []string{"order.placed"})
	if err != nil || !known["order.placed"] {
		t.Errorf("the type of nodes that stopped is believed: %v, %v", known, err)
	}
	pgtest.Exec(t, b.db, "update holdfast.consumer_type set seen_until = seen_until - interval '61 seconds'")
	if _, gone := living(); !gone {
		t.Error("nobody was heard of for a minute, and nobody is missed")
	}
	stop = b.run(one.Run)
	defer stop()
	wait.Until(t, "one node has declared its types again", declared(1))
	if n, gone := living(); n != 1 || gone {
		t.Errorf("%d nodes live after one has started again (gone: %v), want 1", n, gone)
	}
}
