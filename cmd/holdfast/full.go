package main

import (
	"context"
	"fmt"
	"strings"
)

// heldLong is the age in seconds from which a transaction is blamed for a full log: younger ones come and go.
const heldLong = 60

// holder is a transaction that keeps a segment of the log from being emptied: of a process, or a prepared one.
type holder struct {
	pid  int64
	gid  string // of a prepared transaction, which has no process
	name string // what the process calls itself
	age  int64  // in seconds; -1: this role may not see it
}

// full says why no segment of the log is empty.
func (s *status) full(ctx context.Context) error {
	var h holder
	var holders []holder
	if err := s.each(ctx, statusHolders, "", "log_holders", "pid prepared application seconds", []any{&h.pid, &h.gid, &h.name, &h.age}, func() string {
		holders = append(holders, h)
		return ""
	}); err != nil {
		return err
	}
	var lane int
	var behind []int
	if err := s.each(ctx, statusBehind, "", "lanes_behind", "lane", []any{&lane}, func() string {
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

// whyFull names what keeps the log from being emptied, each with what to do: the oldest transaction, if it is old, and
// the lanes that have not read all of it. holders come oldest first, those of unknown age last.
func whyFull(holders []holder, behind []int) (reasons []string) {
	if len(holders) > 0 && holders[0].age >= heldLong {
		reasons = append(reasons, holders[0].blame())
	}
	if len(behind) > 0 {
		reasons = append(reasons, fmt.Sprintf("events in older segments are unread in %s: the log of the lane's relay says whether the lane is held, and why; if it is not, start more relays to share the lanes", laneList(behind)))
	}
	if len(reasons) > 0 {
		return reasons
	}
	for _, h := range holders {
		if h.age < 0 {
			return []string{fmt.Sprintf("process %d holds it in a transaction, and this role may not see for how long: grant pg_read_all_stats to the role", h.pid)}
		}
	}
	return []string{"all events of older segments are read and no transaction holds them: the relay that owns lane 0 empties them; look at its log, or start a relay"}
}

// blame names the transaction and says how to end it.
func (h holder) blame() string {
	if h.gid != "" {
		gid := "'" + clean(strings.ReplaceAll(h.gid, "'", "''")) + "'"
		return fmt.Sprintf("prepared transaction %s has held it for %s: in this database, rollback prepared %s, or commit prepared if its changes are wanted", gid, span(h.age), gid)
	}
	return fmt.Sprintf("process %d (%s) has held it in one transaction for %s: select pg_terminate_backend(%d) ends it", h.pid, dash(h.name), span(h.age), h.pid)
}

// laneList is "lane 3" or "lanes 3, 5".
func laneList(lanes []int) string {
	if len(lanes) == 1 {
		return fmt.Sprint("lane ", lanes[0])
	}
	return "lanes " + strings.Trim(strings.ReplaceAll(fmt.Sprint(lanes), " ", ", "), "[]")
}
