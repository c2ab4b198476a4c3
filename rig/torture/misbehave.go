//go:build linux

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// What a handler may do wrong. Each call that does so costs an attempt, undoes its effect, and harms no other event. The
// event has its effect once, at a later attempt. A handler that commits by itself, where that is not refused, commits with its
// effect that the event was taken in: its effect stays, and no other attempt follows. The row of an event that was stored is
// removed behind the handler: it becomes a dead letter besides.
const (
	panics     = "panic"
	hangs      = "hang"       // it ignores that its time is up, and returns nil long after
	returnsNil = "late"       // it returns nil after its time, but before it counts as hung
	swallows   = "swallow"    // it ignores an error of Postgres, and returns nil
	setsRole   = "set-role"   // it leaves its connection with another role
	commits    = "own-commit" // it ends its transaction itself
)

const (
	handlerTimeout = 5 * time.Second
	handlerGrace   = 500 * time.Millisecond
)

// misbehaviours says of how many calls one misbehaves, and how long the last of them may take.
var misbehaviours = []struct {
	kind, what string
	share      uint32
	lasts      time.Duration
	alarms     []oracle.Alarm
}{
	{panics, "handlers panic", 6, 0, nil},
	{hangs, "handlers do not return when their time is up", 150, handlerTimeout + 2*handlerGrace + time.Second, []oracle.Alarm{{By: roleConsumer, Messages: []string{"handler hangs"}}}},
	{returnsNil, "handlers return nil after their time", 150, handlerTimeout + handlerGrace, nil},
	{swallows, "handlers ignore errors of Postgres", 6, 0, nil},
	{setsRole, "handlers leave another role behind", 6, 0, nil},
	{commits, "handlers commit their transactions themselves", 6, 0, nil},
}

// handlerFaults have handlers misbehave for a while, each event at most once in a process.
func handlerFaults() (all []fault) {
	for _, m := range misbehaviours {
		all = append(all, fault{
			name:   "handlers-" + m.kind,
			what:   m.what,
			hold:   seconds(4, 6),
			alone:  true,
			alarms: m.alarms,
			begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
				before := s.witness.misbehaved
				s.hit = func() (bool, error) {
					err := s.witness.look()
					return s.witness.misbehaved > before, err
				}
				return func(ctx context.Context) error {
					err := s.tell(roleConsumer, "behave")
					sleep(ctx, m.lasts)
					return err
				}, s.tell(roleConsumer, "misbehave "+m.kind)
			},
		})
	}
	return all
}

// conduct is how the handlers of a process behave.
type conduct struct {
	mu   sync.Mutex
	kind string          // "" is well
	did  map[string]bool // events at which one misbehaved
}

func (c *conduct) set(kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kind = kind
	if c.did == nil {
		c.did = map[string]bool{}
	}
}

// is says whether the process was told to behave so.
func (c *conduct) is(kind string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kind == kind
}

// of is how the handler of an event is to behave, at this call.
func (c *conduct) of(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range misbehaviours {
		if m.kind == c.kind && hash(id)%m.share == 0 && !c.did[id] {
			c.did[id] = true
			return c.kind
		}
	}
	return ""
}

// misbehave is what a handler does that has written the effects of some events in tx.
func (n *node) misbehave(ctx context.Context, tx pgx.Tx, kind string, events []holdfast.Event) error {
	n.rec.Add(history.Entry{Op: history.Log, IDs: idsOf(events), Text: misbehaves + kind})
	switch kind {
	case panics:
		panic("a handler that panics")
	case hangs:
		<-ctx.Done()
		time.Sleep(2*handlerGrace + time.Second)
	case returnsNil:
		<-ctx.Done()
		time.Sleep(handlerGrace / 5)
	case swallows:
		_, _ = tx.Exec(ctx, "insert into state (consumer) values (null)")
	case commits:
		if hash(events[0].ID)%4 == 0 {
			_, err := tx.Exec(ctx, "commit") // It is refused.
			return err
		}
		_, err := tx.Conn().Exec(ctx, "commit")
		return err
	case setsRole:
		_, err := tx.Exec(ctx, "set role pg_monitor")
		return err
	}
	return nil
}

// misbehaves begins what a history says of such a call.
const misbehaves = "handler misbehaves: "

func idsOf(events []holdfast.Event) (ids []string) {
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	return ids
}

// roleLeft is how long after the fault a connection may still have the role that a handler left: it is found out when the
// connection is used again, and the last one of a pool is used last.
const roleLeft = 30 * time.Second

// endings checks how events ended whose handlers misbehaved in ways that the oracles know nothing of, and takes out of what
// is known what is as it must be.
func endings(known *oracle.Run) (problems []string) {
	effects, letters, committed := map[string]int{}, map[string]int{}, map[string]bool{}
	for _, e := range known.Effects {
		effects[e.ID]++
	}
	for _, l := range known.Letters {
		letters[l.EventID]++
	}
	stored := map[string]bool{}
	var role []oracle.Span // while a role may be left behind
	for _, e := range known.Entries {
		switch {
		case e.Op == history.Receive && e.Text == string(inbox.Stored):
			for _, id := range e.IDs {
				stored[id] = true
			}
		case e.Op == history.Log && e.Text == misbehaves+commits:
			for _, id := range e.IDs {
				committed[id] = true
			}
		case e.Text != "handlers-"+setsRole:
		case e.Op == history.Fault:
			role = append(role, oracle.Span{From: e.At, Until: e.At.Add(time.Hour)})
		case e.Op == history.Recovered && len(role) > 0:
			role[len(role)-1].Until = e.At.Add(roleLeft)
		}
	}
	gone := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(committed)) {
		if effects[id]+letters[id] != 1 && !(stored[id] && effects[id] == 1 && letters[id] == 1) {
			problems = append(problems, fmt.Sprintf("%s, whose handler committed by itself, has %d effects and %d dead letters (stored: %v)", id, effects[id], letters[id], stored[id]))
			continue
		}
		gone[id] = letters[id] == 1
	}
	known.Written = slices.DeleteFunc(known.Written, func(w oracle.Written) bool { return gone[w.ID] })
	without(known, gone)
	known.Entries = slices.DeleteFunc(known.Entries, func(e history.Entry) bool {
		return e.Op == history.Log && strings.Contains(e.Text, "SQLSTATE 42501") && slices.ContainsFunc(role, func(s oracle.Span) bool {
			return e.At.After(s.From) && e.At.Before(s.Until)
		})
	})
	return problems
}
