package main

import (
	"context"
	"fmt"
	"strings"
)

// heldLong is the age in seconds from which a transaction counts as the cause of a full log. Younger ones come and go.
const heldLong = 60

// holder is a transaction, of a process or prepared, that keeps a segment of the log from being emptied.
type holder struct {
	pid  int64
	gid  string // set for a prepared transaction, which has no process
	name string // application_name
	age  int64  // in seconds; -1 if this role may not see it
}

// full reports why no segment of the log is empty.
func (s *status) full(ctx context.Context) error {
	var h holder
	var holders []holder
	if err := s.each(ctx, section{sql: statusHolders, name: "log_holders", fields: "pid prepared application seconds", scans: []any{&h.pid, &h.gid, &h.name, &h.age}}, func() string {
		holders = append(holders, h)
		return ""
	}); err != nil {
		return err
	}
	var lane int
	var behind []int
	if err := s.each(ctx, section{sql: statusBehind, name: "lanes_behind", fields: "lane", scans: []any{&lane}}, func() string {
		behind = append(behind, lane)
		return ""
	}); err != nil {
		return err
	}
	for _, reason := range whyFull(holders, behind) {
		s.say("no segment of the log is empty: %s", reason)
	}
	return nil
}

// whyFull lists what keeps the log from being emptied, each with a remedy: the oldest transaction, if it is old, and
// the lanes with unread events. holders are sorted by age, the oldest first, unknown ages last.
func whyFull(holders []holder, behind []int) (reasons []string) {
	if len(holders) > 0 && holders[0].age >= heldLong {
		reasons = append(reasons, holders[0].blame("it"))
	}
	if len(behind) > 0 {
		reasons = append(reasons, fmt.Sprintf("events in older segments are unread in %s: the log of the lane's relay says whether the lane is held, and why; if it is not, start more relays to share the lanes", laneList(behind)))
	}
	if len(reasons) > 0 {
		return reasons
	}
	for _, h := range holders {
		if h.age < 0 {
			return []string{fmt.Sprintf("process %d holds it in a transaction of unknown age: grant pg_read_all_stats to this role to see the age", h.pid)}
		}
	}
	return []string{"the older segments are read and no transaction holds them: the relay that owns lane 0 empties them; check its log, or start a relay"}
}

// blame names the transaction that holds what, "it" or "them", and says how to end it.
func (h holder) blame(what string) string {
	if h.gid != "" {
		gid := "'" + clean(strings.ReplaceAll(h.gid, "'", "''")) + "'"
		return fmt.Sprintf("prepared transaction %s has held %s for %s: in this database, run rollback prepared %s, or commit prepared if its changes are wanted", gid, what, span(h.age), gid)
	}
	return fmt.Sprintf("process %d (%s) has held %s in one transaction for %s: end it with select pg_terminate_backend(%d)", h.pid, dash(h.name), what, span(h.age), h.pid)
}

// laneList is "lane 3" or "lanes 3, 5".
func laneList(lanes []int) string {
	if len(lanes) == 1 {
		return fmt.Sprint("lane ", lanes[0])
	}
	return "lanes " + strings.Trim(strings.ReplaceAll(fmt.Sprint(lanes), " ", ", "), "[]")
}
