package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// pins are what can keep a segment of the log from being emptied: how it begins, and how it ends.
var pins = []struct{ name, figure, begin, end string }{
	{"an open transaction that has written an event", "p99 beside an open transaction of a producer, against none",
		"begin; select holdfast.write('%s', 'pin', 'pin', 'pin', id => 'pin')", "rollback"},
	{"pg_dump's lock", "p99 beside pg_dump's lock on the log, against none", "begin; lock table only holdfast.event_0 in access share mode", "rollback"},
	{"a prepared transaction", "p99 beside a prepared transaction, against none",
		"begin; select holdfast.write('%s', 'pin', 'pin', 'pin', id => 'pin'); prepare transaction 'bench'", "rollback prepared 'bench'"},
}

var pinnedFigures = func() (names []string) {
	for _, p := range pins {
		names = append(names, p.figure)
	}
	return names
}()

// measurePinned commits 500 events a second while a segment that has been left cannot be emptied, and compares the times from
// COMMIT to acknowledgement with those of a log in which it can. Asking for the exclusive lock makes all readers wait.
func measurePinned(ctx context.Context, e *env, r *report) error {
	topic, drop, err := e.topic(ctx)
	if err != nil {
		return err
	}
	defer drop()
	r.progress("pinned segment: %d events/s for %v, %d times", latencyRate, e.pinned, 2*len(pins))
	for _, p := range pins {
		begin := p.begin
		if p.name != "pg_dump's lock" {
			begin = fmt.Sprintf(begin, topic)
		}
		free, err := e.latencyBeside(ctx, r, topic, "", "")
		if err != nil {
			return err
		}
		held, err := e.latencyBeside(ctx, r, topic, begin, p.end)
		if err != nil {
			return err
		}
		r.info(fmt.Sprintf("commit to acknowledgement beside %s, p99", p.name), milliseconds(held), "ms")
		r.info("the same without it, p99", milliseconds(free), "ms")
		r.goal(p.figure, held.Seconds()/free.Seconds(), "x", atMost(2))
	}
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// latencyBeside is the p99 on a log whose first segment has events that are published, and is no longer written, while
// something pins it.
func (e *env) latencyBeside(ctx context.Context, r *report, topic, begin, end string) (p99 time.Duration, err error) {
	const before, warmUp = 2000, latencyRate
	database, err := e.migrated(ctx)
	if err != nil {
		return 0, err
	}
	defer e.dropDatabase(context.WithoutCancel(ctx), database)
	if err := e.writeBacklog(ctx, database, topic, before); err != nil {
		return 0, err
	}
	if _, err := e.relayDrain(ctx, database, before); err != nil {
		return 0, err
	}
	config, err := e.poolConfig(database)
	if err != nil {
		return 0, err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if begin != "" {
		if err := conn.PgConn().Exec(ctx, begin).Close(); err != nil {
			return 0, fmt.Errorf("pin a segment: %w", err)
		}
		defer func() {
			if endErr := conn.PgConn().Exec(context.WithoutCancel(ctx), end).Close(); err == nil {
				err = endErr
			}
		}()
	}
	if err := e.leaveSegment(ctx, database); err != nil {
		return 0, err
	}
	n := warmUp + int(e.pinned.Seconds()*latencyRate)
	l := newLatencies(e, n)
	if err := e.exactly(ctx, r, topic, n, "relay", func() error { return l.measure(ctx, e, database, topic) }); err != nil {
		return 0, err
	}
	return quantile(l.spans(warmUp), 0.99), nil
}

// leaveSegment makes the log go on in its next segment, as a relay does when one has grown to its size.
func (e *env) leaveSegment(ctx context.Context, database string) error {
	pool, err := e.pool(ctx, database, 1)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pool.Exec(ctx, "update holdfast.segments set current = 1")
	return err
}
