package main

import "context"

// lockedLong is the age in seconds from which a transaction counts as the cause of a lane that no running relay takes. Those of
// relays themselves end within much less.
const lockedLong = 5

// unowned reports lanes that have events and no owner, and why: running says whether a relay runs.
func (s *status) unowned(ctx context.Context, running bool) error {
	lanes := 0
	for _, l := range s.allLanes {
		if l.owner == "" && (l.unread || l.scheduled > 0 || l.parked > 0) {
			lanes++
		}
	}
	var h holder
	var holders []holder
	if lanes > 0 && running {
		if err := s.each(ctx, section{sql: statusLaneHolders, name: "lane_holders", fields: "pid prepared application seconds", scans: []any{&h.pid, &h.gid, &h.name, &h.age}}, func() string {
			holders = append(holders, h)
			return ""
		}); err != nil {
			return err
		}
	}
	if lanes > 0 {
		s.say("%s %s events and no owner%s", count(lanes, "lane"), verb(lanes, "has", "have"), whyUnowned(running, holders))
	}
	return nil
}

// whyUnowned says why lanes have no owner, with a remedy. holders have locks on lanes, and are sorted by age, the oldest first.
func whyUnowned(running bool, holders []holder) string {
	switch {
	case !running:
		return ": start a relay"
	case len(holders) > 0 && holders[0].age >= lockedLong:
		return ", although a relay runs. Rows of the table lane may be locked: " + holders[0].blame("them")
	}
	return ", although a relay runs: it takes them within seconds, unless a transaction has their rows locked; its log says so. If it has died: start a relay"
}
