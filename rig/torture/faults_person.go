//go:build linux

package main

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/rig/kafkaproxy"
)

// personFaults are those in which leases run out while a person decides about what waits. The process that gives the commands
// (part_person.go) runs beside all other faults, too.
func personFaults() (all []fault) {
	for _, f := range []fault{
		{name: "misspelt-topic", what: "producers write to a topic that does not exist, until a person redirects it", hold: seconds(3, 6), begin: changes(redirects), alarms: misspeltHeld},
		{name: "decide-in-calls", what: "a partition answers late or not at all, and a person gives up and discards what waits for it", hold: seconds(4, 8), begin: withCalls(changes(givesUp)), keeps: true},
		{name: "kill-person", what: "kill -9 of a person's process between two statements of a command", begin: killPerson},
		{name: "freeze-person", what: "a person's process stands still between two statements of a command, for longer than a lease, and goes on", hold: outlasting(lease), begin: freezePerson},
		{name: "stall-person", what: "a person's command stands still in its transaction, for longer than a lease, and goes on", hold: outlasting(lease), begin: stallPerson},
		{name: "freeze-relay-leasing", what: "a relay that has leased waiting events stands still for longer than a lease, while a person decides about them", hold: outlasting(lease), begin: withCalls(freezeLeasing), keeps: true},
		{name: "freeze-relays", what: "all relays stand still, one with leased waiting events, until a person has taken lanes from them", hold: outlasting(lease), begin: withCalls(freezeRelays), keeps: true},
		{name: "long-freeze-consumers", what: "all consumers stand still for longer than they lease stored events, while a person decides about them", hold: outlasting(storedLease), begin: freezeConsumers, long: true},
	} {
		f.alone = true
		all = append(all, withWaiting(f))
	}
	return all
}

// misspeltHeld may have been logged by an earlier fault of this kind.
var misspeltHeld = []oracle.Alarm{{By: roleRelay, Messages: []string{"topic held", "still held"}, Before: sayEvery}}

// storedLease is for how long a consumer leases a stored event.
const storedLease = handlerTimeout + handlerGrace + 30*time.Second

// misspells is the conduct of producers that write some events to a topic that does not exist.
const misspells = "misspell"

// withWaiting has events wait during a fault: in relays for a topic that does not exist, and in consumers for the next attempt.
func withWaiting(f fault) fault {
	begin := f.begin
	f.begin = func(ctx context.Context, s *stage) (func(context.Context) error, error) {
		if err := errors.Join(s.tell(roleProducer, "misbehave "+misspells), s.tell(roleConsumer, "misbehave "+panics)); err != nil {
			return nil, err
		}
		if _, err := s.meet(ctx, "select exists (select from holdfast.parked where topic = $1)", s.misspelt); err != nil {
			return nil, err
		}
		heal, err := begin(ctx, s)
		return func(ctx context.Context) (err error) {
			if heal != nil {
				err = heal(ctx)
			}
			return errors.Join(err, s.tell(roleProducer, "behave"), s.tell(roleConsumer, "behave"))
		}, err
	}
	return f
}

// withCalls has events wait for a partition, too, that answers late or not at all. So calls of relays last for seconds, and a person gives up
// and discards more of what waits.
func withCalls(begin func(context.Context, *stage) (func(context.Context) error, error)) func(context.Context, *stage) (func(context.Context) error, error) {
	return func(ctx context.Context, s *stage) (func(context.Context) error, error) {
		topic, number := s.partitionOf(keyOf(s.rng.IntN(keys)))
		trouble := kafkaproxy.Hang(topic, number)
		if s.rng.IntN(2) == 0 {
			trouble = kafkaproxy.Late(topic, number, 4*time.Second)
		}
		s.kafkaproxies.set(trouble)
		if err := s.tell(rolePerson, "misbehave "+decides); err != nil {
			return nil, err
		}
		if _, err := s.meet(ctx, "select exists (select from holdfast.parked where topic = $1 and partition = $2)", topic, number); err != nil {
			return nil, err
		}
		heal, err := begin(ctx, s)
		return func(ctx context.Context) (err error) {
			if heal != nil {
				err = heal(ctx)
			}
			s.kafkaproxies.set(kafkaproxy.Pass())
			return errors.Join(err, s.tell(rolePerson, "behave"))
		}, err
	}
}

// meet waits until a query is true, and says whether it was: it gives up after holdsOn.
func (s *stage) meet(ctx context.Context, sql string, args ...any) (met bool, err error) {
	for end := time.Now().Add(holdsOn); ; {
		if err := s.admin.QueryRow(ctx, sql, args...).Scan(&met); err != nil || met || time.Now().After(end) {
			return met, err
		}
		if !sleep(ctx, time.Millisecond) {
			return false, ctx.Err()
		}
	}
}

// settles is how long a server may take for the statement that a frozen process has sent before.
const settles = 30 * time.Millisecond

// freezeWhile freezes processes while a query about their sessions' names is true, and says whether that worked: then it stays true.
func (s *stage) freezeWhile(ctx context.Context, some []*process, sql string) (bool, error) {
	var names []string
	for _, p := range some {
		names = append(names, p.name())
	}
	for end := time.Now().Add(holdsOn); ; {
		met, err := s.meet(ctx, sql, names)
		if err == nil {
			err = each(some, (*process).freeze)
		}
		if err != nil || !met {
			return false, err
		}
		sleep(ctx, settles)
		var still bool
		if err := s.admin.QueryRow(ctx, sql, names).Scan(&still); err != nil || still || time.Now().After(end) {
			return still, err
		}
		if err := each(some, (*process).thaw); err != nil {
			return false, err
		}
	}
}

// each does something with all of some processes.
func each(some []*process, do func(*process) error) error {
	var errs []error
	for _, p := range some {
		errs = append(errs, do(p))
	}
	return errors.Join(errs...)
}

// all are the processes of a role.
func (s *stage) all(role string) (some []*process) {
	for _, actor := range s.of(role) {
		some = append(some, s.get(actor))
	}
	return some
}

// inCommand says whether a person's session has locked what is parked in a lane or the queue of a key, and has to go on by
// itself.
const inCommand = `select exists (select from pg_stat_activity a join pg_locks k using (pid)
	where a.application_name = any ($1) and a.state = 'idle in transaction' and k.locktype = 'advisory' and k.granted)`

func killPerson(ctx context.Context, s *stage) (func(context.Context) error, error) {
	p, err := s.one(rolePerson)
	if err != nil {
		return nil, err
	}
	hit, err := s.freezeWhile(ctx, []*process{p}, inCommand)
	if err != nil {
		return nil, err
	}
	s.hit = func() (bool, error) { return hit, nil }
	if err := s.kill(p); err != nil {
		return nil, err
	}
	return nil, s.start(rolePerson, p.part.Actor)
}

// freezePerson freezes one who has locked waiting events. The database ends the transaction of a frozen command in relays after 2 s,
// so that no relay waits for longer. That of a command in consumers goes on.
func freezePerson(ctx context.Context, s *stage) (func(context.Context) error, error) {
	p, err := s.one(rolePerson)
	if err != nil {
		return nil, err
	}
	hit, err := s.freezeWhile(ctx, []*process{p}, inCommand)
	s.hit = func() (bool, error) { return hit, nil }
	return func(context.Context) error { return p.thaw() }, err
}

// stallPerson locks the tables in which only commands write: what they have changed stays locked meanwhile. Those that wait for less
// than 5 s go on.
func stallPerson(ctx context.Context, s *stage) (func(context.Context) error, error) {
	end, err := s.hold(ctx, "lock table holdfast.pause_action, holdfast.stored_action in share row exclusive mode")
	if err != nil {
		return nil, err
	}
	met, err := s.meet(ctx, `select exists (select from pg_stat_activity a join pg_locks k using (pid)
		where a.application_name like $1 and a.wait_event_type = 'Lock' and k.locktype = 'advisory' and k.granted)`, rolePerson+"/%")
	s.hit = func() (bool, error) { return met, nil }
	return end, err
}

// changes has hit when a person's commands of a kind have changed something.
func changes(action string) func(context.Context, *stage) (func(context.Context) error, error) {
	return func(_ context.Context, s *stage) (func(context.Context) error, error) {
		before := s.witness.decided[action]
		s.hit = func() (bool, error) {
			err := s.witness.look()
			return s.witness.decided[action] > before, err
		}
		return nil, nil
	}
}

// Whether a relay has leased waiting events, and whether it has locked nothing.
const (
	leasing  = "exists (select from holdfast.parked_lease o join holdfast.lane l using (lane) where l.owner = any ($1) and o.topic <> '')"
	lockless = "not exists (select from pg_stat_activity where application_name = any ($1) and state = 'idle in transaction')"
)

// freezeLeasing freezes a relay that has leased waiting events. Another relay takes its lanes, or a person does.
func freezeLeasing(ctx context.Context, s *stage) (func(context.Context) error, error) {
	p, err := s.one(roleRelay)
	if err != nil {
		return nil, err
	}
	hit, err := s.freezeWhile(ctx, []*process{p}, "select "+leasing)
	s.hit = func() (bool, error) { return hit, nil }
	return func(context.Context) error { return p.thaw() }, err
}

// freezeRelays freezes all of them, one with leased events, so that only a person can take lanes from them. One that is frozen in a
// transaction would keep the person from its lane for 10 s.
func freezeRelays(ctx context.Context, s *stage) (func(context.Context) error, error) {
	some := s.all(roleRelay)
	frozen, err := s.freezeWhile(ctx, some, "select "+leasing+" and "+lockless)
	var before int
	if err == nil {
		before, err = s.freed(ctx)
	}
	s.hit = func() (bool, error) {
		now, err := s.freed(ctx)
		return frozen && now > before, err
	}
	return func(context.Context) error { return each(some, (*process).thaw) }, err
}

// freed counts the lanes that a person has taken from relays.
func (s *stage) freed(ctx context.Context) (n int, err error) {
	err = s.admin.QueryRow(ctx, "select count(*) from lane_log where owner is null and by like $1", rolePerson+"/%").Scan(&n)
	return n, err
}

// freezeConsumers freezes all of them while one has leased a stored event.
func freezeConsumers(ctx context.Context, s *stage) (func(context.Context) error, error) {
	some := s.all(roleConsumer)
	hit, err := s.freezeWhile(ctx, some, "select exists (select from holdfast.stored where lease_until > clock_timestamp()) and $1::text[] is not null")
	s.hit = func() (bool, error) { return hit, nil }
	return func(context.Context) error { return each(some, (*process).thaw) }, err
}
