//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// witness reads the histories during the run: whether the processes do anything, and what the broker refused.
type witness struct {
	follower   *history.Follower
	committed  map[oracle.Process]time.Time // when a process last learnt that its COMMIT was carried out
	stirred    map[string]time.Time         // when the process in a place last claimed, sent or received something
	refused    map[kafka.Error]int          // answers of the broker to relays
	misbehaved int                          // calls of handlers
	decided    map[string]int               // commands of a person that changed something, by what they do
}

func newWitness(histories string) *witness {
	return &witness{
		follower:  history.Follow(histories),
		committed: map[oracle.Process]time.Time{},
		stirred:   map[string]time.Time{},
		refused:   map[kafka.Error]int{},
		decided:   map[string]int{},
	}
}

// refusals are the answers that faults cause.
var refusals = []kafka.Error{kafka.MessageSizeTooLarge, kafka.InvalidRecord, kafka.TopicAuthorizationFailed}

// look reads what was written since the last look.
func (w *witness) look() error {
	entries, err := w.follower.Next()
	for _, e := range entries {
		w.take(e)
	}
	return err
}

func (w *witness) take(e history.Entry) {
	switch e.Op {
	case history.Commit:
		if e.How == history.OK {
			w.committed[oracle.Process{Actor: e.Actor, PID: e.PID}] = e.At
		}
	case history.Claim, history.Publish, history.Receive:
		w.stirred[e.Actor] = e.At
	case history.Decide:
		if e.Num > 0 {
			action, _, _ := strings.Cut(e.Text, " ")
			w.decided[action]++
		}
	case history.Log:
		if strings.HasPrefix(e.Text, misbehaves) {
			w.misbehaved++
		}
	case history.Acknowledge:
		for _, code := range refusals {
			if e.How != history.OK && strings.Contains(e.Text, code.Error()) {
				w.refused[code]++
			}
		}
	}
}

// decisions says what a person did.
func (w *witness) decisions() string {
	var counts []string
	for _, action := range []string{retries, redirects, givesUp, discards, replays} {
		counts = append(counts, fmt.Sprintf("%s %d", action, w.decided[action]))
	}
	return "a person's commands that changed something: " + strings.Join(counts, ", ")
}

// silent are those processes that have not committed since.
func (w *witness) silent(processes []oracle.Process, since time.Time) (those []string) {
	for _, p := range processes {
		if !w.committed[p].After(since) {
			those = append(those, p.String())
		}
	}
	return those
}

// idleAfter is for how many faults in a row a relay or a consumer may claim, send and receive nothing.
const idleAfter = 10

// idleness counts after how many faults in a row nothing has happened in a place. It is for one goroutine.
type idleness struct {
	last  time.Time
	quiet map[string]int
}

// after is called when a fault is over, with the places that are taken, and says which have been idle for too long. It
// reports each once in a row.
func (i *idleness) after(now time.Time, places []string, stirred map[string]time.Time) (idle []string) {
	if i.quiet == nil {
		i.quiet = map[string]int{}
	}
	for _, place := range places {
		if stirred[place].After(i.last) {
			i.quiet[place] = 0
		} else if i.quiet[place]++; i.quiet[place] == idleAfter {
			idle = append(idle, fmt.Sprintf("%s has done nothing for %d faults", place, idleAfter))
		}
	}
	i.last = now
	return idle
}

// never are the places in which no process ever did anything.
func (w *witness) never(places []string) (idle []string) {
	for _, place := range places {
		if w.stirred[place].IsZero() {
			idle = append(idle, place+" has done nothing at all")
		}
	}
	return idle
}

// workers are the places of relays and consumers, except roles with so many processes that one may have nothing to do.
func (r *run) workers() (places []string) {
	for role, n := range map[string]int{roleRelay: r.Relays, roleConsumer: r.Consumers} {
		if n <= partitions { // there are more lanes than that
			places = append(places, r.of(role)...)
		}
	}
	slices.Sort(places)
	return places
}
