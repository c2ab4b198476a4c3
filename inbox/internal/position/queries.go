package position

import "github.com/holdfast-go/holdfast/internal/sqlschema"

// Statements are those below, in a schema.
type Statements struct {
	FenceShared, FenceCheck, Fence, TryFence            string
	Position, Standings, Checkpoint, Assign, Hold, Save string
	Release, Renew, Incarnation                         string
}

// In are the statements for a schema. Parameters are cast everywhere, because in the modes exec and simple_protocol nobody asks
// Postgres for their types.
func In(schema string) Statements {
	in := func(statement string) string { return sqlschema.In(schema, statement) }
	return Statements{
		FenceShared: in(fenceSharedSQL),
		FenceCheck:  in(fenceCheckSQL),
		Fence:       in(fenceSQL),
		TryFence:    in(tryFenceSQL),
		Position:    in(positionSQL),
		Standings:   in(standingsSQL),
		Checkpoint:  in(checkpointSQL),
		Assign:      in(assignSQL),
		Hold:        in(holdSQL),
		Save:        in(saveSQL),
		Release:     in(releaseSQL),
		Renew:       in(renewSQL),
		Incarnation: in(incarnationSQL),
	}
}

// Takes the fence. It must be a statement of its own, before the one that reads the epoch.
const fenceSharedSQL = `-- inbox.fence_shared
select pg_advisory_xact_lock_shared($1::int, $2::int)`

// Reads whether the partition still has the epoch.
const fenceCheckSQL = `-- inbox.fence_check
select exists (select from holdfast.consumer_position p
                where p.consumer = $1::text and p.topic = $2::text and p.partition = $3::int and p.epoch = $4::bigint)`

// Takes the fence alone, as its next owner does.
const fenceSQL = `-- inbox.fence
select pg_advisory_xact_lock($1::int, $2::int)`

// The same without waiting. It returns false when another transaction has the fence.
const tryFenceSQL = `-- inbox.try_fence
select pg_try_advisory_xact_lock($1::int, $2::int)`

// Reads a consumer's position in a partition, and the group that read it last. It runs under the exclusive fence.
const positionSQL = `-- inbox.position
select p.position, p.clean, coalesce(p.group_id, '') from holdfast.consumer_position p
 where p.consumer = $1::text and p.topic = $2::text and p.partition = $3::int
   for no key update`

// Reads the last event below the position, as it was settled. A person may have set the position below it: then it says nothing.
const checkpointSQL = `-- inbox.checkpoint
select p.checkpoint_offset, p.checkpoint_identity from holdfast.consumer_position p
 where p.consumer = $1::text and p.topic = $2::text and p.partition = $3::int and p.checkpoint_offset < p.position`

// Raises the epoch to the clock's microseconds, but always above the last epoch. So no epoch comes twice: not when a person
// deletes the row, nor when a failover undoes the last raise. A node that was frozen meanwhile stays out. Epochs are compared
// for equality only: a clock that steps back would have to hit the very microsecond.
const assignSQL = `-- inbox.assign
insert into holdfast.consumer_position as p (consumer, topic, partition, epoch, position, clean, owner, group_id)
values ($1::text, $2::text, $3::int, (extract(epoch from clock_timestamp()) * 1000000)::bigint, $4::bigint, false, $5::text, nullif($6::text, ''))
on conflict (consumer, topic, partition) do update
   set epoch = greatest(p.epoch + 1, excluded.epoch), position = excluded.position, clean = false, owner = excluded.owner, group_id = excluded.group_id, held = null, updated_at = now()
returning epoch, (select i.token from holdfast.current_incarnation i)`

// Reads where a consumer stands in all its partitions, by the primary key.
const standingsSQL = `-- inbox.standings
select p.topic, p.partition, p.position, coalesce(p.held, '') from holdfast.consumer_position p
 where p.consumer = $1::text`

// Notes why a partition is held, for holdfast status; null takes the note back, as assign does. It returns what the row says, so that a
// node that holds the partition sees what a person has changed. $5 is the epoch of a node that has claimed the partition: it changes
// nothing that another node has said since.
const holdSQL = `-- inbox.hold
update holdfast.consumer_position p set held = $4::text
 where p.consumer = $1::text and p.topic = $2::text and p.partition = $3::int and ($5::bigint is null or p.epoch = $5::bigint)
returning p.position`

// Fills the token that a crash or a failover emptied (Table).
const renewSQL = `-- inbox.renew
insert into holdfast.incarnation default values on conflict (one) do nothing`

// Reads the token. It is empty after a crash, until a node renews it.
const incarnationSQL = `-- inbox.incarnation
select coalesce((select i.token from holdfast.current_incarnation i), '')`

// Saves positions, all at once, each with the last event below it. It does not return partitions that were lost, or that were
// assigned in another incarnation: what was settled then may be lost. Events that are read again below the position move
// neither: they may belong to another log.
const saveSQL = `-- inbox.save
update holdfast.consumer_position p
   set position = greatest(p.position, u.position), updated_at = now(),
       checkpoint_offset = case when u.position >= p.position and u.checkpoint_offset >= 0 then u.checkpoint_offset else p.checkpoint_offset end,
       checkpoint_identity = case when u.position >= p.position and u.checkpoint_offset >= 0 then u.checkpoint_identity else p.checkpoint_identity end
  from unnest($2::text[], $3::int[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[])
       u (topic, partition, epoch, position, checkpoint_offset, checkpoint_identity, token)
 where p.consumer = $1::text and p.topic = u.topic and p.partition = u.partition and p.epoch = u.epoch
   and exists (select from holdfast.current_incarnation i where i.token = u.token)
returning p.topic, p.partition`

// Releases a partition. In another incarnation the position stays where it is, but the end still counts as clean.
const releaseSQL = `-- inbox.release
update holdfast.consumer_position p
   set position = greatest(p.position, u.position), clean = p.clean or $6::boolean, updated_at = now(),
       checkpoint_offset = case when u.position >= p.position and $7::bigint >= 0 then $7::bigint else p.checkpoint_offset end,
       checkpoint_identity = case when u.position >= p.position and $7::bigint >= 0 then $8::bigint else p.checkpoint_identity end
  from (select x.same, case when x.same then $5::bigint else -1 end as position
          from (select exists (select from holdfast.current_incarnation i where i.token = $9::text) as same) x) u
 where p.consumer = $1::text and p.topic = $2::text and p.partition = $3::int and p.epoch = $4::bigint
returning u.same`
