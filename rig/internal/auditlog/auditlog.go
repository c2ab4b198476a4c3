// Package auditlog keeps an audit log of lanes, positions and rows of the inbox in the database of a test: every change of the ones
// and every insert of the others, as triggers see it, whichever process made it. From that package oracle judges fencing (O6). A look
// at the saved cursors while the run is on is for the truth of them (O7). Neither needs the word of a process, so that it
// can be one that ends anywhere.
package auditlog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// DB is what this package needs of a pool, or of a connection.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

var statements = []string{
	// Every change of a lane, and who made it.
	"create table public.lane_log (n bigint generated always as identity primary key, at timestamptz not null default clock_timestamp(), by text not null default current_setting('application_name'), lane int, epoch bigint, owner text, done text, upto text, pos bigint, early boolean)",
	// A lease that ends later than any that is given now is of a clock that was ahead: it need not be waited for. Who frees a lane of
	// another waits for its end by the clock, because the transaction may have waited for a lock.
	`create function public.log_lane() returns trigger language plpgsql as $$ begin
		insert into public.lane_log (lane, epoch, owner, done, upto, pos, early) values (new.lane, new.epoch, new.owner, new.done::text, new.upto::text, new.pos,
			case when old.owner <> new.owner and isfinite(new.lease_until) then old.lease_until between now() and now() + 2 * (new.lease_until - now())
			when new.owner is null and old.owner <> current_setting('application_name') then old.lease_until > clock_timestamp()
			else false end);
		return null;
	end $$`,
	// Who raises an epoch draws its number with the partition's fence held alone, who takes an event in with the fence shared:
	// so the numbers of both tell which came first.
	"create sequence public.partition_change",
	"create table public.position_log (n bigint primary key default nextval('public.partition_change'), at timestamptz not null default clock_timestamp(), by text not null default current_setting('application_name'), consumer text, topic text, partition int, epoch bigint, position bigint, owner text)",
	`create function public.log_position() returns trigger language plpgsql as $$ begin
		insert into public.position_log (consumer, topic, partition, epoch, position, owner) values (new.consumer, new.topic, new.partition, new.epoch, new.position, new.owner);
		return null;
	end $$`,
	"create table public.taken_log (n bigint default nextval('public.partition_change'), by text not null default current_setting('application_name'), consumer text, topic text, partition int, event_id text)",
	`create function public.log_taken() returns trigger language plpgsql as $$ begin
		insert into public.taken_log (consumer, topic, partition, event_id) values (new.consumer, new.topic, new.partition, new.event_id);
		return null;
	end $$`,
	"create trigger log_lane after update on holdfast.lane for each row execute function public.log_lane()",
	"create trigger log_position after insert or update on holdfast.consumer_position for each row execute function public.log_position()",
	"create trigger log_taken after insert on holdfast.inbox for each row when (new.partition is not null) execute function public.log_taken()",
}

// Install makes the tables and triggers, in a database that has holdfast's schema.
func Install(ctx context.Context, db DB) error {
	for _, sql := range statements {
		if _, err := db.Exec(ctx, sql); err != nil {
			return fmt.Errorf("install the audit log: %w", err)
		}
	}
	return nil
}

// Lanes are all changes of lanes. A relay's application_name must be its Name, or be empty. Nothing is said of who made
// what the run itself has changed, under the application_name own: a step of the clock, an adoption.
func Lanes(ctx context.Context, db DB, own string) ([]oracle.LaneChange, error) {
	return collect(ctx, db, pgx.RowToStructByPos[oracle.LaneChange], `
		select n, at, lane, epoch, coalesce(owner, ''), coalesce(nullif(by, $1), ''), done, coalesce(upto, ''), pos,
		       $1 <> '' and by = $1 and owner is null, early and (owner is not null or by not in ('', $1))
		  from public.lane_log order by n`, own)
}

// Positions are all changes of consumers' positions. Of who made them it says as much as Lanes does; a consumer may have
// any application_name that no other process has.
func Positions(ctx context.Context, db DB, own string) ([]oracle.PositionChange, error) {
	return collect(ctx, db, pgx.RowToStructByPos[oracle.PositionChange], `
		select n, at, consumer, topic, partition, epoch, position, coalesce(owner, ''), coalesce(nullif(by, $1), '')
		  from public.position_log order by n`, own)
}

// Taken are all events that consumers have taken in from Kafka. Of who did it says as much as Positions does.
func Taken(ctx context.Context, db DB, own string) ([]oracle.Taken, error) {
	return collect(ctx, db, pgx.RowToStructByPos[oracle.Taken], `
		select n, consumer, topic, partition, event_id, coalesce(nullif(by, $1), '')
		  from public.taken_log order by n`, own)
}

func collect[T any](ctx context.Context, db DB, scan func(pgx.CollectableRow) (T, error), sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err == nil {
		var all []T
		if all, err = pgx.CollectRows(rows, scan); err == nil {
			return all, nil
		}
	}
	return nil, fmt.Errorf("read the audit log: %w", err)
}
