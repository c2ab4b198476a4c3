//go:build linux

package torture

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// awaitSomething returns when the first events have gone all the way.
func (r *run) awaitSomething(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		var n int
		err := r.admin.QueryRow(ctx, "select count(*) from effect").Scan(&n)
		if err == nil && n >= 20 {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return errors.Join(fmt.Errorf("no event arrives, although there is no fault yet: %d effects", n), err)
		}
	}
}

// unsettled counts what was committed between two moments and has neither its effect nor a letter. What a long
// transaction commits later with an earlier time is for the end of the run.
const unsettled = `select count(*) from written w where w.at > $1 and w.at <= $2
	and not exists (select from effect e where e.id = w.id)
	and not exists (select from holdfast.letter l where l.event_id = w.id and l.state in ('open', 'discarded'))`

// recover waits until all that was committed before a moment has arrived, and says what waits where it has not within
// the limit after the heal.
func (r *run) recover(ctx context.Context, healed, until time.Time) (waits string, err error) {
	sleep(ctx, time.Until(until))
	for time.Since(healed) < r.limit {
		var n int
		err = r.admin.QueryRow(ctx, unsettled, r.since, until).Scan(&n)
		if err == nil && n == 0 {
			r.since = until
			return "", nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return "", ctx.Err()
		}
	}
	if err != nil {
		return "", err
	}
	r.since = until
	return r.census(ctx), nil
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

// comeToRest ends the parts in order: producers, then relays once all is published, then consumers once they have read
// all that is in Kafka, so that a late duplicate has its chance to do harm.
func (r *run) comeToRest(ctx context.Context) error {
	r.say("no more faults; what is under way arrives")
	problems := []error{r.quitAll(roleProducer)}
	r.since = time.Time{}
	if waits, err := r.recover(ctx, time.Now(), time.Now()); err != nil {
		return err
	} else if waits != "" {
		r.say("NOT ARRIVED after %s: %s", round(r.limit), waits)
	}
	if err := r.awaitCount(ctx, "select (select count(*) from holdfast.parked) + (select count(*) from holdfast.stored) + (select count(*) from holdfast.scheduled)", 0); err != nil {
		r.say("%v", err)
	}
	problems = append(problems, r.quitAll(roleRelay))
	if err := r.sample(ctx); err != nil {
		return err
	}
	if err := r.awaitCount(ctx, "select $1 - coalesce(sum(position), 0)::bigint from holdfast.consumer_position", 0, int64(len(r.records()))); err != nil {
		r.say("%v", err)
	}
	problems = append(problems, r.quitAll(roleConsumer))
	for _, p := range problems {
		if p != nil {
			r.report.troubles = append(r.report.troubles, p.Error())
		}
	}
	return nil
}

// awaitCount waits until a query answers at most with want.
func (r *run) awaitCount(ctx context.Context, sql string, want int64, args ...any) error {
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	for {
		var n int64
		err := r.admin.QueryRow(ctx, sql, args...).Scan(&n)
		if err == nil && n <= want {
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return errors.Join(fmt.Errorf("still %d after %s: %s", n, round(r.limit), sql), err)
		}
	}
}
