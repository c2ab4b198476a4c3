//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// fault is one kind of trouble.
type fault struct {
	name string // "kill-relay"
	what string // one line for a person
	// hold is how long it lasts, at least and at most. Both are zero for a fault that lasts no time.
	hold [2]time.Duration
	// begin makes the fault and returns what ends it, or a nil heal if there is nothing to end.
	begin func(ctx context.Context, s *stage) (heal func(context.Context) error, err error)
	// impossible says why this ground does not allow the fault, or "".
	impossible func(g *ground) string
	// alarms are what must be logged while the fault lasts or soon after, all of it.
	alarms []oracle.Alarm
	// keeps: relays may be kept from saving what they have published, until all has recovered.
	keeps bool
	// long: it is drawn only where it is asked for, by more than "*".
	long bool
	// alone: no process is killed meanwhile, because that would end what the fault has to hit.
	alone bool
}

// sayEvery is how seldom a process says the same kind of trouble again. One that begins anew meanwhile, and is soon over, it
// does not say: a line about an outage just before counts.
const sayEvery = time.Minute

// stage is what a fault works with.
type stage struct {
	*ground
	*cast
	rng  *rand.Rand
	held time.Duration // for how long this one will last

	witness *witness
	about   string // what it drew, for the line that says how it went, or ""
	// hit says whether the fault has had any effect yet. begin sets it for a fault that may miss; it is nil for one that
	// cannot.
	hit func() (bool, error)
}

// between draws a duration.
func between(rng *rand.Rand, low, high time.Duration) time.Duration {
	if high <= low {
		return low
	}
	return low + time.Duration(rng.Int64N(int64(high-low)))
}

// one draws an actor of a role.
func (s *stage) one(role string) (*process, error) {
	actors := s.of(role)
	if len(actors) == 0 {
		return nil, fmt.Errorf("there is no %s", role)
	}
	return s.get(actors[s.rng.IntN(len(actors))]), nil
}

func anywhere(*ground) string { return "" }

func seconds(low, high float64) [2]time.Duration {
	return [2]time.Duration{time.Duration(low * float64(time.Second)), time.Duration(high * float64(time.Second))}
}

// outlasting is how long to hold a fault after which others must take over: longer than they wait for a sign of life, so
// that the process meets them when it goes on.
func outlasting(wait time.Duration) [2]time.Duration {
	return [2]time.Duration{wait + time.Second, wait + 4*time.Second}
}

// Catalogue is every fault, in a fixed order: a seed draws from it.
func catalogue() (all []fault) {
	all = append(append(processFaults(), linkFaults()...), partitionFaults()...)
	all = append(all, handlerFaults()...)
	all = append(all, providerFaults()...)
	all = append(all, personFaults()...)
	own := len(all)
	for _, some := range [][]fault{postgresFaults(), kafkaFaults(), brokerFaults(), platformFaults(), restoreFaults()} {
		all = append(all, some...)
	}
	for i := range all[own:] { // Relays need every server.
		all[own+i].keeps = true
	}
	for i := range all {
		if all[i].impossible == nil {
			all[i].impossible = anywhere
		}
	}
	return all
}
