package main

import (
	"context"
	"fmt"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// The statements of status. Each is cheap on a live system: none counts the log.
const (
	statusLanes = `-- status.lanes
select l.lane, coalesce(l.owner, ''), l.lease_until > now(), l.epoch, round(extract(epoch from now() - l.saved_at))::bigint,
       exists (select from holdfast.event e where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done)),
       (select count(*) from holdfast.parked p where p.lane = l.lane),
       (select count(*) from holdfast.scheduled s where s.lane = l.lane)
  from holdfast.lane l order by l.lane`
	statusRing = `-- status.ring
select n, n = (select r.current from holdfast.ring r), pg_relation_size(to_regclass('holdfast.event_' || n)) from generate_series(0, 3) n order by n`
	statusConsumers = `-- status.consumers
select c.consumer, coalesce(s.waiting, 0), coalesce(s.keys, 0), coalesce(s.oldest, 0), coalesce(l.letters, 0)
  from (select consumer from holdfast.consumer_position union select consumer from holdfast.stored union select consumer from holdfast.letter where consumer <> '') c
  left join (select consumer, count(*) as waiting, count(distinct (topic, key)) as keys, round(extract(epoch from now() - min(first_at)))::bigint as oldest
               from holdfast.stored group by consumer) s using (consumer)
  left join (select consumer, count(*) as letters from holdfast.letter where state = 'open' group by consumer) l using (consumer)
 order by c.consumer`
	statusLetters = `-- status.letters
select count(*) from holdfast.letter where state = 'open' and origin = 'relay'`
	statusOldest = `-- status.oldest
select coalesce(a.pid, 0), coalesce(a.datname, coalesce(p.database, '')), coalesce(a.application_name, coalesce('prepared transaction ' || p.gid, '')),
       round(extract(epoch from now() - coalesce(a.xact_start, p.prepared)))::bigint
  from (select pid, datname, application_name, xact_start from pg_stat_activity where backend_xid is not null and pid <> pg_backend_pid() order by xact_start limit 1) a
  full join (select gid, database, prepared from pg_prepared_xacts order by prepared limit 1) p on true`
)

type statusCmd struct{}

func (statusCmd) Run(p *program) error {
	pool, err := p.pool()
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := holdfast.Check(p.ctx, pool, p.schema()); err != nil {
		return err
	}
	trouble, err := printStatus(p.ctx, p, pool)
	if err != nil {
		return fmt.Errorf("read status: %w", err)
	}
	if len(trouble) == 0 {
		fmt.Fprintln(p.out, "\nnothing needs a person")
		return nil
	}
	fmt.Fprintln(p.out, "\nneeds a person:")
	for _, t := range trouble {
		fmt.Fprintf(p.out, "- %s\n", t)
	}
	return errNeedsPerson
}

func printStatus(ctx context.Context, p *program, pool *pgxpool.Pool) (trouble []string, err error) {
	in := func(s string) string { return sqlschema.In(p.cli.Schema, s) }
	say := func(format string, args ...any) { trouble = append(trouble, fmt.Sprintf(format, args...)) }
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)

	var lane, parked, scheduled, idle int
	var owner string
	var leased, unread bool
	var epoch, saved int64
	fmt.Fprintln(w, "LANE\tOWNER\tEPOCH\tSAVED\tUNREAD\tPARKED\tSCHEDULED")
	rows, err := pool.Query(ctx, in(statusLanes))
	if err != nil {
		return nil, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&lane, &owner, &leased, &epoch, &saved, &unread, &parked, &scheduled}, func() error {
		if !leased {
			owner = "-"
			if unread || scheduled > 0 || parked > 0 {
				idle++
			}
		}
		if parked > 0 {
			say("lane %d has %d parked events: the relay's log says why, holdfast dlq shows what was given up", lane, parked)
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%ds ago\t%v\t%d\t%d\n", lane, owner, epoch, saved, unread, parked, scheduled)
		return nil
	}); err != nil {
		return nil, err
	}
	if idle > 0 {
		say("%d lanes have events and no owner: start a relay", idle)
	}

	var segment int
	var current bool
	var bytes int64
	full := 0
	fmt.Fprintln(w, "\nSEGMENT\tCURRENT\tMiB")
	if rows, err = pool.Query(ctx, in(statusRing)); err != nil {
		return nil, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&segment, &current, &bytes}, func() error {
		if bytes > 0 {
			full++
		}
		fmt.Fprintf(w, "%d\t%v\t%.1f\n", segment, current, float64(bytes)/(1<<20))
		return nil
	}); err != nil {
		return nil, err
	}

	var consumer string
	var waiting, keys, oldest, letters int64
	fmt.Fprintln(w, "\nCONSUMER\tSTORED\tKEYS\tOLDEST\tLETTERS")
	if rows, err = pool.Query(ctx, in(statusConsumers)); err != nil {
		return nil, err
	}
	if _, err := pgx.ForEachRow(rows, []any{&consumer, &waiting, &keys, &oldest, &letters}, func() error {
		fmt.Fprintf(w, "%s\t%d\t%d\t%ds\t%d\n", consumer, waiting, keys, oldest, letters)
		if letters > 0 {
			say("consumer %s has %d open letters: holdfast dlq list --consumer %s", consumer, letters, consumer)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	if err := pool.QueryRow(ctx, in(statusLetters)).Scan(&letters); err != nil {
		return nil, err
	}
	if letters > 0 {
		say("the relay has %d open letters: holdfast dlq list --origin relay", letters)
	}
	if full == 4 {
		var pid, age int64
		var database, name string
		switch err := pool.QueryRow(ctx, statusOldest).Scan(&pid, &database, &name, &age); err {
		case nil:
			say("no segment of the log is empty; the oldest writing transaction is %d s old: process %d in database %s, %s", age, pid, database, name)
		case pgx.ErrNoRows:
			say("no segment of the log is empty: a lane is held or behind")
		default:
			return nil, err
		}
	}
	return trouble, w.Flush()
}
