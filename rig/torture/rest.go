//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// awaitSomething returns when the first events have arrived.
func (r *run) awaitSomething(ctx context.Context) error {
	const limit = 2 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, mostPatience*limit)
	defer cancel()
	for p := newPatience(limit, time.Now()); ; {
		var n int
		err := r.admin.QueryRow(ctx, "select count(*) from effect").Scan(&n)
		if err == nil && n >= 20 {
			return nil
		}
		if p.over(time.Now(), slower()) || !sleep(ctx, 50*time.Millisecond) {
			return errors.Join(fmt.Errorf("no event arrives within %s, although there is no fault yet: %d effects", round(p.waited()), n), err)
		}
	}
}

// unsettled counts what was committed between two moments and has neither its effect nor a letter, except for keys that are not
// waited for. What a long transaction commits later with an earlier time counts at the end of the run.
const unsettled = `select count(*) from written w where w.at > $1 and w.at <= $2 and w.key <> all($3)
	and not exists (select from effect e where e.id = w.id)
	and not exists (select from holdfast.letter l where l.event_id = w.id and l.state in ('open', 'discarded'))`

// restAfter is how long to rest after a look at what has arrived: a sixth of the time at most is for looks, since they take from the
// same machine what they wait for. After an outage that was every second processor, for minutes.
func restAfter(took time.Duration) time.Duration {
	return min(max(5*took, 20*time.Millisecond), 2*time.Second)
}

// recover waits until all that was committed before a moment has arrived, and every running producer has committed since
// the heal: without commits nothing would have to arrive. If that takes longer than the limit after the heal, as patience counts it,
// it says what waits.
func (r *run) recover(ctx context.Context, healed, until time.Time) (waits string, err error) {
	sleep(ctx, time.Until(until))
	var silent []string
	p := newPatience(r.limit, time.Now())
	for !p.over(time.Now(), slower()) {
		var n int
		look := time.Now()
		if err := r.witness.look(); err != nil {
			return "", err
		}
		silent = r.witness.silent(r.processes(roleProducer), healed)
		err = r.admin.QueryRow(ctx, unsettled, r.since, until, r.notWaitedFor()).Scan(&n)
		if err == nil && n == 0 && len(silent) == 0 {
			r.since = until
			return "", nil
		}
		if !sleep(ctx, restAfter(time.Since(look))) {
			return "", ctx.Err()
		}
	}
	if err != nil {
		return "", err
	}
	r.since = until
	return fmt.Sprintf("no commit of: %s; %s", strings.Join(silent, ", "), r.census(ctx)), nil
}

// flowing says how long after the heal events flowed again: when each topic had an effect of an event that was committed
// since.
func (r *run) flowing(ctx context.Context, healed time.Time) (time.Duration, error) {
	var last *time.Time
	err := r.admin.QueryRow(ctx, `select max(first) from (select min(e.at) as first
		from written w join effect e on e.id = w.id where w.at > $1 and w.due is null group by w.topic) x`, healed).Scan(&last)
	if err != nil || last == nil {
		return never, err
	}
	return last.Sub(healed), nil
}

// census says where events are.
func (r *run) census(ctx context.Context) string {
	var text string
	err := r.admin.QueryRow(ctx, `select format('parked: %s; stored: %s; scheduled: %s; without effect: %s',
		(select string_agg(why || ' ' || n, ', ') from (select why, count(*) n from holdfast.parked group by 1) x),
		(select count(*) from holdfast.stored), (select count(*) from holdfast.scheduled),
		(select string_agg(key || ' ' || n, ', ') from (select w.key, count(*) n from written w where not exists (select from effect e where e.id = w.id)
			group by 1 order by 2 desc limit 5) x))`).Scan(&text)
	if err != nil {
		return err.Error()
	}
	return text
}

// comeToRest ends the parts in order: producers, then the person and relays once all is published, then consumers once they have read
// all that is in Kafka, so that a late duplicate has its chance to do harm.
func (r *run) comeToRest(ctx context.Context) error {
	r.say("no more faults; waiting for what is in progress")
	if err := r.witness.look(); err != nil {
		return err
	}
	for _, idle := range r.witness.never(r.workers()) {
		r.trouble(errors.New(idle))
	}
	r.trouble(r.quitAll(roleProducer))
	if err := r.tell(rolePerson, "misbehave "+finishes); err != nil {
		return err
	}
	r.since = time.Time{}
	if waits, err := r.recover(ctx, time.Now(), time.Now()); err != nil {
		return err
	} else if waits != "" {
		r.trouble(fmt.Errorf("not arrived after %s: %s", round(r.limit), waits))
	}
	r.trouble(r.await(ctx, func(ctx context.Context) (string, error) {
		var n int
		err := r.admin.QueryRow(ctx, backlog, r.notWaitedFor()).Scan(&n)
		if err != nil || n == 0 {
			return "", err
		}
		return fmt.Sprintf("%d events parked, stored or scheduled", n), nil
	}))
	r.trouble(r.quitAll(rolePerson))
	if err := r.witness.look(); err != nil {
		return err
	}
	r.report.decided = r.witness.decisions()
	r.trouble(r.quitAll(roleRelay))
	if err := r.sample(ctx); err != nil {
		return err
	}
	r.trouble(r.await(ctx, func(ctx context.Context) (string, error) {
		positions, err := r.positions(ctx)
		return strings.Join(unread(r.ends(), positions), ", "), err
	}))
	r.trouble(r.quitAll(roleConsumer))
	return nil
}

// backlog counts what waits for a relay or a consumer outside the log, except what relays have of keys that are not waited
// for.
const backlog = "select (select count(*) from holdfast.parked where key <> all($1)) + (select count(*) from holdfast.stored) + (select count(*) from holdfast.scheduled)"

// trouble keeps what is wrong with the run, unless it is nil.
func (r *run) trouble(err error) {
	if err != nil {
		r.say("%v", err)
		r.report.troubles = append(r.report.troubles, err.Error())
	}
}

// await waits until nothing is left. The error says what is left after the limit.
func (r *run) await(ctx context.Context, left func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, mostPatience*r.limit) // Looks may hang.
	defer cancel()
	still := "nobody could tell what"
	for p := newPatience(r.limit, time.Now()); ; {
		what, err := left(ctx)
		switch {
		case err == nil && what == "":
			return nil
		case err == nil:
			still = what // An error says nothing of what is left: it may be that the time is up.
		}
		if p.over(time.Now(), slower()) || !sleep(ctx, 50*time.Millisecond) {
			return errors.Join(fmt.Errorf("at the end, after %s, still: %s", round(p.waited()), still), err)
		}
	}
}

// ends are the offsets that come after the last record of each partition.
func (r *run) ends() map[partition]int64 {
	ends := map[partition]int64{}
	for p, log := range r.samples.logs {
		if len(log) > 0 {
			ends[p] = log[len(log)-1].Offset + 1
		}
	}
	return ends
}

// positions are the offsets up to which the consumer has settled each partition.
func (r *run) positions(ctx context.Context) (map[partition]int64, error) {
	type row struct {
		Topic    string
		Number   int
		Position int64
	}
	rows, err := rowsOf(ctx, r.admin, pgx.RowToStructByPos[row], "select topic, partition, position from holdfast.consumer_position where consumer = $1", consumerName)
	positions := map[partition]int64{}
	for _, at := range rows {
		positions[partition{at.Topic, at.Number}] = at.Position
	}
	return positions, err
}

// unread says in which partitions the consumer's position is not the end: a lower one has not read all, one that
// is beyond would not read what comes. Other partitions do not make up for it.
func unread(ends, positions map[partition]int64) (which []string) {
	for _, p := range slices.SortedFunc(maps.Keys(ends), partition.compare) {
		if positions[p] != ends[p] {
			which = append(which, fmt.Sprintf("%s/%d is at %d and ends at %d", p.topic, p.number, positions[p], ends[p]))
		}
	}
	return which
}

func (p partition) compare(q partition) int {
	return cmp.Or(strings.Compare(p.topic, q.topic), cmp.Compare(p.number, q.number))
}
