package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// This file decides which ages need a person. It knows no clock and no database.

// ages are how old what waits may become.
type ages struct {
	Unpublished time.Duration `help:"Age of an unpublished event from which a person is needed. 0 means never." name:"max-unpublished-age" default:"1m"`
	Stored      time.Duration `help:"Time that an event may wait in a consumer before a person is needed. 0 means for ever." name:"max-stored-age" default:"15m"`
	Parked      time.Duration `help:"Time that an event may be parked in a relay before a person is needed. 0 means for ever." name:"max-parked-age" default:"10m"`
}

// seconds is a limit in whole seconds; set is false if there is none.
func seconds(limit time.Duration) (whole int64, set bool) {
	return int64(limit / time.Second), limit > 0
}

// exceeds says whether an age in seconds is above a limit.
func exceeds(age int64, limit time.Duration) bool {
	return limit > 0 && time.Duration(age)*time.Second > limit
}

// laneState is what status knows of a lane. Ages are in seconds.
type laneState struct {
	lane                 int64
	owner                string // "" if nobody owns it now
	unread               bool
	oldest, oldestParked int64 // 0 if nothing waits
	parked, scheduled    int64
	trouble              string // what its owner says of the broker
}

// unpublished says which lanes have events that are too old, with their owner's reason. Lanes without an owner are left out.
func (a ages) unpublished(lanes []laneState) (trouble []string) {
	type cause struct{ owner, trouble string }
	var causes []cause
	late, oldest := map[cause][]int{}, map[cause]int64{}
	for _, l := range lanes {
		if l.owner == "" || !exceeds(l.oldest, a.Unpublished) {
			continue
		}
		c := cause{l.owner, l.trouble}
		if late[c] == nil {
			causes = append(causes, c)
		}
		late[c], oldest[c] = append(late[c], int(l.lane)), max(oldest[c], l.oldest)
	}
	slices.SortStableFunc(causes, func(a, b cause) int { return cmp.Compare(oldest[b], oldest[a]) })
	for _, c := range causes {
		why := fmt.Sprintf("the log of relay %s says what it waits for; if that is nothing, it is not fast enough: start more relays", clean(c.owner))
		if c.trouble != "" {
			why = fmt.Sprintf("relay %s gets no answer from the broker: check its address, its credentials and the network: %s", clean(c.owner), clean(c.trouble))
		}
		trouble = append(trouble, fmt.Sprintf("%s %s events that are not published, the oldest of them for %s: %s", laneList(late[c]), verb(len(late[c]), "has", "have"), span(oldest[c]), why))
	}
	return trouble
}

// stored says whether what waits in a consumer is too old.
func (a ages) stored(consumer string, events, keys, oldest int64) []string {
	if !exceeds(oldest, a.Stored) {
		return nil
	}
	return []string{fmt.Sprintf("consumer %s has %s waiting events of %s keys, the oldest for %s: holdfast waiting list --consumer %s --heads says what they wait for",
		clean(consumer), atMost(events, manyEvents), atMost(keys, manyKeys), span(oldest), clean(consumer))}
}

// spoken is a limit as people say it: "10 minutes".
func spoken(d time.Duration) string {
	if whole := int(d / time.Minute); d == time.Duration(whole)*time.Minute {
		return count(whole, "minute")
	}
	return d.String()
}

// heldByText says in a few words what a lane waits for.
func heldByText(trouble string, holds []string) string {
	const most = 3
	if len(holds) > most {
		holds = append(holds[:most:most], fmt.Sprintf("%d more", len(holds)-most))
	}
	if trouble != "" {
		holds = append([]string{"broker: " + clean(trouble)}, holds...)
	}
	return strings.Join(holds, ", ")
}
