//go:build linux

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// providerFaults are those of something that handlers need beyond Postgres (inbox.Needs). No attempt is spent on it, one event at a time
// tries it, and other types go on.
func providerFaults() []fault {
	alarms := []oracle.Alarm{{By: roleConsumer, Messages: []string{"dependency is away"}}}
	return []fault{
		{
			name:   "provider-away",
			what:   "what some handlers need answers 503, hangs or closes connections",
			hold:   seconds(8, 12),
			alone:  true,
			alarms: alarms,
			begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
				how := []string{refuses, busy, noAnswer}[s.rng.IntN(3)]
				return s.loseProvider(ctx, "provider-away", how, 0)
			},
		},
		{
			name:   "provider-away-kill-try",
			what:   "the same, and kill -9 of the consumer whose event tries it",
			hold:   seconds(1, 2),
			alone:  true,
			alarms: alarms,
			begin:  killTry,
		},
	}
}

// knownAfter is how long all nodes may take to know that the provider is away. Each looks once a second.
const knownAfter = 4 * time.Second

// absence is a time in which the provider was away, and a calm time before it.
type absence struct {
	fault, how         string
	calm, during       [2]time.Time
	pulse              time.Duration // the slowest, in both of them
	calls, tries, most int           // calls that found it away, and tries of these once all nodes know
	blamed             []string      // events that have spent attempts on it
}

// loseProvider has the provider go away, after a calm time. A process that is killed meanwhile may cost an event so many attempts.
func (s *stage) loseProvider(ctx context.Context, name, how string, killed int) (func(context.Context) error, error) {
	s.about = how
	a := absence{fault: name, how: how}
	pulse := s.feelPulse(ctx)
	a.calm[0] = time.Now()
	sleep(ctx, calm)
	a.calm[1] = time.Now()
	s.provider.leave(how, a.calm[1].Add(knownAfter))
	s.hit = func() (bool, error) {
		calls, _, _ := s.provider.seen()
		return calls > 0, nil
	}
	return func(ctx context.Context) error {
		pulse.stop()
		a.during = [2]time.Time{a.calm[1], time.Now()}
		a.pulse = max(pulse.slowest(a.calm), pulse.slowest(a.during))
		a.calls, a.tries, a.most = s.provider.seen()
		var err error
		a.blamed, err = rowsOf(ctx, s.admin, pgx.RowTo[string], blamed, typePaid, killed+1, "%"+providerSays+"%")
		s.absences = append(s.absences, a)
		s.provider.come()
		return err
	}, nil
}

// blamed are the stored events of a type that have spent more attempts than the one that runs and those of killed processes, or that have
// an error of the provider, and the dead letters that have one.
const blamed = `select format('%s: %s attempts, %s', event_id, attempts, errors) from holdfast.stored
	where type = $1 and (attempts > $2 or errors::text like $3)
	union all select format('%s: dead after %s attempts, %s', event_id, attempts, errors) from holdfast.letter where type = $1 and errors::text like $3`

// triesEvery is how seldom a provider is tried, and some more. One that comes and goes is tried less often each time.
const triesEvery = 40 * time.Second

// killTry kills the consumer whose event tries the provider. The next try comes when its lease has ended.
func killTry(ctx context.Context, s *stage) (func(context.Context) error, error) {
	heal, err := s.loseProvider(ctx, "provider-away-kill-try", noAnswer, 1)
	if err != nil {
		return nil, err
	}
	killed := false
	s.hit = func() (bool, error) { return killed, nil }
	for end := time.Now().Add(knownAfter + triesEvery); !killed && time.Now().Before(end) && sleep(ctx, 20*time.Millisecond); {
		actor := s.provider.caller()
		if actor == "" {
			continue
		}
		p := s.get(actor)
		if err := s.kill(p); err != nil {
			return nil, err
		}
		if err := s.start(roleConsumer, actor); err != nil {
			return nil, err
		}
		killed = true
	}
	return heal, nil
}

// mayTry is how many tries there may be in a time: the first comes after half a second, and later ones after longer.
func mayTry(in time.Duration) int { return 2 + int(2*in.Seconds()) }

// others is how long events of other keys may take in an absence at most, if they took no longer before it.
const others = 2 * time.Second

// meanwhile compares, for each absence, the time from a COMMIT to the effect of events of keys that have none of typePaid. It says what it
// found, and what is wrong with it.
func meanwhile(absences []absence, known oracle.Run) (lines, problems []string) {
	committed, effects := map[string]time.Time{}, map[string]time.Time{}
	for _, e := range known.Entries {
		if e.Op == history.Commit && e.How == history.OK {
			for _, id := range e.IDs {
				committed[id] = e.At
			}
		}
	}
	for _, e := range known.Effects {
		effects[e.ID] = e.At
	}
	for _, a := range absences {
		var calm, during []time.Duration
		for _, w := range known.Written {
			at, heard := committed[w.ID]
			done, handled := effects[w.ID]
			if !heard || !handled || w.Due != nil || pays(w.Key) {
				continue
			}
			switch delay := max(0, done.Sub(at)); {
			case within(a.calm, at):
				calm = append(calm, min(delay, a.calm[1].Sub(at)))
			case within(a.during, at):
				during = append(during, delay)
			}
		}
		line := fmt.Sprintf("%s (%s): %d calls found it away, %d of them once all nodes knew, %d at once", a.fault, a.how, a.calls, a.tries, a.most)
		for _, text := range a.blamed {
			problems = append(problems, fmt.Sprintf("%s: an event has spent an attempt: %s", a.fault, text))
		}
		if a.tries > mayTry(a.during[1].Sub(a.during[0])-knownAfter) {
			problems = append(problems, "it is tried too often: "+line)
		}
		if len(calm) < 50 || len(during) < 50 {
			lines = append(lines, fmt.Sprintf("%s; %d events of other keys before it and %d during it are too few to compare", line, len(calm), len(during)))
			continue
		}
		line += fmt.Sprintf("; from COMMIT to effect of %d events of other keys p99 %s, of %d in the %s before it %s",
			len(during), p99(during).Round(time.Millisecond), len(calm), round(a.calm[1].Sub(a.calm[0])), p99(calm).Round(time.Millisecond))
		if a.pulse > tooBusy {
			lines = append(lines, fmt.Sprintf("%s; not judged: without holdfast a COMMIT and an acknowledgement took up to %s", line, round(a.pulse)))
			continue
		}
		lines = append(lines, line)
		if a.most > 1 {
			problems = append(problems, "more than one event at a time tries it: "+line)
		}
		if a.fault == "provider-away" && p99(during) > max(2*p99(calm), others) { // A killed consumer's partitions wait for its session.
			problems = append(problems, "what some handlers need delays others: "+line)
		}
	}
	return lines, problems
}
