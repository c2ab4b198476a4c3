//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/rig/internal/faultproxy"
)

// linkFaults are faults of the network between each kind of part and each server, and between PgBouncer and Postgres.
func linkFaults() (all []fault) {
	add := func(l link, f fault) {
		if l.role == rolePerson {
			f = withWaiting(f)
		}
		all = append(all, f)
	}
	for _, l := range append(slices.Clone(links), pooled) {
		var impossible func(*ground) string
		if l == pooled {
			impossible = noBouncer
		}
		for _, n := range networkFaults {
			hold := n.hold
			if n.silences && l == (link{roleConsumer, broker}) {
				hold[1] = outlasting(session)[1] // some end before the session does, some after it
			}
			add(l, fault{
				name:       n.name + "-" + l.String(),
				what:       fmt.Sprintf(n.what, l.role, server(l)),
				hold:       hold,
				impossible: impossible,
				keeps:      keepsRelays(l),
				begin: func(_ context.Context, s *stage) (func(context.Context) error, error) {
					on := s.links[l]
					s.hit = counted(on, n.hits)
					return func(context.Context) error {
						if n.anew {
							return on.passAnew()
						}
						return on.set(faultproxy.Pass())
					}, on.set(n.fault(s.rng))
				},
			})
		}
		if l != pooled {
			add(l, longBlackhole(l))
		}
		if l.server != postgres {
			continue
		}
		for _, moment := range []faultproxy.Moment{faultproxy.Before, faultproxy.After} {
			add(l, fault{
				name:       fmt.Sprintf("cut-commit-%s-%s", moment, l.role),
				hold:       seconds(1.5, 3),
				impossible: impossible,
				keeps:      keepsRelays(l),
				what:       fmt.Sprintf("a %s's connection is cut just %s COMMIT is carried out", l.role, moment),
				begin: func(_ context.Context, s *stage) (func(context.Context) error, error) {
					on := s.links[l]
					s.hit = counted(on, cuts)
					return func(context.Context) error { return on.set(faultproxy.Pass()) },
						on.set(faultproxy.CutCommit(moment, faultproxy.Cuts{Chance: cutChance(l.role), Seed: s.rng.Uint64()}))
				},
			})
		}
	}
	return all
}

// keepsRelays says whether relays may be kept from saving by a fault of a link.
func keepsRelays(l link) bool { return l.role == roleRelay || l == pooled }

// longBlackhole outlasts every lease, session and time-out.
func longBlackhole(l link) fault {
	alarms := map[link][]oracle.Alarm{
		{roleRelay, postgres}: databaseStill, {roleConsumer, postgres}: databaseAway[1:],
		{roleRelay, broker}: brokerAway[:1], {roleConsumer, broker}: brokerAway[1:],
	}[l]
	return fault{
		name:   "long-blackhole-" + l.String(),
		what:   fmt.Sprintf("for 30 to 60 s nothing passes between a %s and %s", l.role, server(l)),
		hold:   seconds(30, 60),
		long:   true,
		keeps:  l.role == roleRelay,
		alarms: alarms,
		begin: func(_ context.Context, s *stage) (func(context.Context) error, error) {
			on := s.links[l]
			s.hit = counted(on, held)
			return func(context.Context) error { return on.passAnew() }, on.set(faultproxy.Blackhole())
		},
	}
}

// cutChance is how likely a COMMIT is cut. A relay sends few: most of its work is single statements.
func cutChance(role string) float64 {
	if role == roleRelay {
		return 1
	}
	return 0.3
}

// counted says whether the count of a link's proxies has grown since its call.
func counted(on proxies, hits func(faultproxy.Counts) int64) func() (bool, error) {
	before := on.count(hits)
	return func() (bool, error) { return on.count(hits) > before, nil }
}

// The counter that each kind of fault raises.
func held(c faultproxy.Counts) int64      { return c.Held + c.Unanswered }
func resets(c faultproxy.Counts) int64    { return c.Resets }
func delayed(c faultproxy.Counts) int64   { return c.Delayed }
func truncated(c faultproxy.Counts) int64 { return c.Truncated }
func cuts(c faultproxy.Counts) int64      { return c.CutBefore + c.CutAfter }

func server(l link) string {
	if l.server == postgres {
		return "Postgres"
	}
	return "Kafka"
}

// networkFaults are the faults of a link between any two. what names a role and a server.
var networkFaults = []struct {
	name, what string
	hold       [2]time.Duration
	anew       bool // connections do not outlive it
	silences   bool // the server hears no sign of life
	hits       func(faultproxy.Counts) int64
	fault      func(rng *rand.Rand) faultproxy.Fault
}{
	{name: "lose-up", what: "nothing gets from a %s to %s any more; all of it arrives late", hold: seconds(2, 6), silences: true, hits: held, fault: func(*rand.Rand) faultproxy.Fault { return faultproxy.LoseUp() }},
	{name: "lose-down", what: "no answer gets to a %s from %s any more; then the connections break", hold: seconds(2, 6), anew: true, silences: true, hits: held, fault: func(*rand.Rand) faultproxy.Fault { return faultproxy.LoseDown() }},
	{name: "blackhole", what: "nothing passes between a %s and %s, and new connections hang", hold: seconds(2, 6), anew: true, silences: true, hits: held, fault: func(*rand.Rand) faultproxy.Fault { return faultproxy.Blackhole() }},
	{name: "reset", what: "connections of a %s to %s are reset again and again", hold: seconds(1.5, 4), hits: resets, fault: func(rng *rand.Rand) faultproxy.Fault {
		return faultproxy.ResetWithin(0, 500*time.Millisecond, rng.Uint64())
	}},
	{name: "slow", what: "the way between a %s and %s is long and narrow", hold: seconds(2, 5), hits: delayed, fault: func(rng *rand.Rand) faultproxy.Fault {
		return faultproxy.Slow(time.Duration(20+rng.IntN(200))*time.Millisecond, int64(20_000+rng.IntN(200_000)))
	}},
	{name: "truncate-up", what: "what a %s sends to %s ends in the middle of a frame", hold: seconds(1.5, 4), hits: truncated, fault: func(rng *rand.Rand) faultproxy.Fault {
		return faultproxy.TruncateUp(0, 20_000, rng.Uint64())
	}},
	{name: "truncate-down", what: "answers to a %s from %s end in the middle of a frame", hold: seconds(1.5, 4), hits: truncated, fault: func(rng *rand.Rand) faultproxy.Fault {
		return faultproxy.TruncateDown(0, 20_000, rng.Uint64())
	}},
}
