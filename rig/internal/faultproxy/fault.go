package faultproxy

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Fault says how a proxy misbehaves. The zero Fault is Pass. Its String names it and what it was given, for reports.
type Fault struct {
	kind        kind
	least, most int64 // bytes of TruncateUp, TruncateDown and ResetAfter, nanoseconds of ResetWithin
	seed        uint64
	latency     time.Duration
	rate        int64
	moment      Moment
	cuts        Cuts
}

type kind string

const (
	pass         kind = ""
	loseUp       kind = "lose up"
	loseDown     kind = "lose down"
	blackhole    kind = "blackhole"
	refuse       kind = "refuse"
	resetAfter   kind = "reset after"
	resetWithin  kind = "reset within"
	slow         kind = "slow"
	truncateUp   kind = "truncate up"
	truncateDown kind = "truncate down"
	cutCommit    kind = "cut commit"
)

// Pass is no fault: bytes go on at once, and what an earlier fault held goes first.
func Pass() Fault { return Fault{} }

// LoseUp holds what clients send, the ends of their connections included. New connections are accepted, and the server
// does not learn of them.
func LoseUp() Fault { return Fault{kind: loseUp} }

// LoseDown holds what the server sends, the ends of its connections included. New connections are accepted and get no
// answer; the server does not learn of them, as a handshake whose second packet is lost comes to nothing.
func LoseDown() Fault { return Fault{kind: loseDown} }

// Blackhole holds both directions. New connections are accepted and get no answer.
func Blackhole() Fault { return Fault{kind: blackhole} }

// Refuse has new connections refused. Those that are open go on.
func Refuse() Fault { return Fault{kind: refuse} }

// ResetAfter resets each connection after it has passed a number of bytes, both directions counted together from the
// fault's beginning on, which is drawn between least and most. With few bytes none gets beyond its handshake.
func ResetAfter(least, most int64, seed uint64) Fault {
	return Fault{kind: resetAfter, least: least, most: most, seed: seed}
}

// ResetWithin resets each connection after a time between least and most, from its or the fault's beginning on.
func ResetWithin(least, most time.Duration, seed uint64) Fault {
	return Fault{kind: resetWithin, least: int64(least), most: int64(most), seed: seed}
}

// Slow delays each byte by latency and lets bytesPerSecond through in each direction of each connection. A connection
// has at most 1 MiB on the way in a direction, so that it carries no more than 1 MiB in the time of latency; a rate of 0
// is no other limit.
func Slow(latency time.Duration, bytesPerSecond int64) Fault {
	return Fault{kind: slow, latency: latency, rate: bytesPerSecond}
}

// TruncateUp closes each connection after a number of bytes from the client, counted from the fault's beginning on, which
// is drawn between least and most: the server has the beginning of a request. With few bytes none gets beyond its handshake.
func TruncateUp(least, most int64, seed uint64) Fault {
	return Fault{kind: truncateUp, least: least, most: most, seed: seed}
}

// TruncateDown does the same to what comes from the server: the client has the beginning of an answer.
func TruncateDown(least, most int64, seed uint64) Fault {
	return Fault{kind: truncateDown, least: least, most: most, seed: seed}
}

// Moment is when a connection is cut at a COMMIT.
type Moment string

const (
	// Before the server has the COMMIT: the transaction is rolled back.
	Before Moment = "before"
	// After the server has carried it out, and before the client has its answer: the transaction is committed.
	After Moment = "after"
	// Either is drawn for each cut.
	Either Moment = "either"
)

// Cuts says which COMMITs are cut.
type Cuts struct {
	// Chance is the probability that a COMMIT is cut, from 0 to 1. Defaults to 1.
	Chance float64
	// Most is how many are cut while the fault is in force, of all connections together. Defaults to no limit.
	Most int64
	// Seed is what the draws depend on.
	Seed uint64
}

// CutCommit closes connections to Postgres at a COMMIT: a message Query one of whose statements is COMMIT, or an Execute
// of a prepared one. COMMITs that the server answers with an error or with ROLLBACK are not cut After. Connections that
// are encrypted, or are not Postgres's, pass; END for COMMIT, and what comes after the first MiB of a Query, are not
// seen.
func CutCommit(moment Moment, cuts Cuts) Fault {
	return Fault{kind: cutCommit, moment: moment, cuts: cuts, seed: cuts.Seed}
}

func (f Fault) String() string {
	switch f.kind {
	case pass:
		return "pass"
	case resetAfter, truncateUp, truncateDown:
		return fmt.Sprintf("%s %d–%d bytes, seed %d", f.kind, f.least, f.most, f.seed)
	case resetWithin:
		return fmt.Sprintf("%s %s–%s, seed %d", f.kind, time.Duration(f.least), time.Duration(f.most), f.seed)
	case slow:
		return fmt.Sprintf("%s by %s, %d bytes/s", f.kind, f.latency, f.rate)
	case cutCommit:
		return fmt.Sprintf("%s %s, chance %g, most %d, seed %d", f.kind, f.moment, f.cuts.Chance, f.cuts.Most, f.seed)
	default:
		return string(f.kind)
	}
}

func (f Fault) withDefaults() Fault {
	if f.cuts.Chance == 0 {
		f.cuts.Chance = 1
	}
	return f
}

// validate reports all that is wrong at once.
func (f Fault) validate() error {
	var errs []error
	rule := func(ok bool, field string, value any, rule string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s: %s is %v: %s", f.kind, field, value, rule))
		}
	}
	switch f.kind {
	case resetAfter, truncateUp, truncateDown, resetWithin:
		rule(f.least >= 0, "least", f.least, "it must not be negative")
		rule(f.most >= f.least, "most", f.most, "it must not be below least")
		rule(f.most < math.MaxInt64, "most", f.most, "it must be less than that")
	case slow:
		rule(f.latency >= 0, "latency", f.latency, "it must not be negative")
		rule(f.rate >= 0, "bytesPerSecond", f.rate, "it must not be negative")
	case cutCommit:
		rule(f.moment == Before || f.moment == After || f.moment == Either, "moment", f.moment, "it must be before, after or either")
		rule(f.cuts.Chance >= 0 && f.cuts.Chance <= 1, "Chance", f.cuts.Chance, "it must be from 0 to 1")
		rule(f.cuts.Most >= 0, "Most", f.cuts.Most, "it must not be negative")
	}
	return errors.Join(errs...)
}

type direction int

const (
	up direction = iota
	down
)

// loses says whether a direction is held.
func (f Fault) loses(d direction) bool {
	return f.kind == blackhole || f.kind == loseUp && d == up || f.kind == loseDown && d == down
}

// answersNobody says whether new connections come to nothing.
func (f Fault) answersNobody() bool { return f.loses(up) || f.loses(down) }

// effect is what a fault means for one connection.
type effect struct {
	after  int64         // bytes after which it ends, -1 for never
	within time.Duration // after which it is reset, -1 for never
}

// effectOn draws the effect on the n-th connection.
func (f Fault) effectOn(n uint64) effect {
	draws := rand.New(rand.NewPCG(f.seed, n))
	got := effect{after: -1, within: -1}
	switch f.kind {
	case resetAfter, truncateUp, truncateDown:
		got.after = f.least + draws.Int64N(f.most-f.least+1)
	case resetWithin:
		got.within = time.Duration(f.least + draws.Int64N(f.most-f.least+1))
	}
	return got
}

// cut draws whether, and when, a connection is cut at the n-th COMMIT.
func (f Fault) cut(n uint64) (Moment, bool) {
	if f.kind != cutCommit {
		return "", false
	}
	draws := rand.New(rand.NewPCG(f.seed, n))
	if draws.Float64() >= f.cuts.Chance {
		return "", false
	}
	if f.moment != Either {
		return f.moment, true
	}
	if draws.IntN(2) == 0 {
		return Before, true
	}
	return After, true
}

// end is how a connection ends at the proxy's hands.
type end int

const (
	goesOn end = iota
	closes
	resets
)

// meters says whether what goes in a direction is counted towards the end of a connection.
func (f Fault) meters(d direction) bool {
	switch f.kind {
	case resetAfter:
		return true
	case truncateUp:
		return d == up
	default:
		return d == down
	}
}

// admit says how many of n bytes go on after passed have that are counted, and what becomes of the connection then.
func (f Fault) admit(ef effect, d direction, passed int64, n int) (int, end) {
	if ef.after < 0 || !f.meters(d) || passed+int64(n) < ef.after {
		return n, goesOn
	}
	n = int(max(0, ef.after-passed))
	if f.kind == resetAfter {
		return n, resets
	}
	return n, closes
}
