package relay

// readPage reads the next page of one lane's window, in seq order, or opens a window that ends now. The first row is a
// header: upto, and whether the reader may go on. Everything is one statement with one snapshot: the rows, the window's
// end, and the proof that this is still the primary and the incarnation under which the lane was claimed.
// $1 lane, $2 done, $3 upto or null, $4 pos, $5 limit, $6 token.
// It reads by the indexes event_N_lane_xid_seq: a range from the end of done to the end of upto, and one lookup for each
// transaction that was in flight at done and has ended since. The lookups are in a lateral subquery with a limit, so
// that the planner cannot turn them into a scan of the lane, as it would while a segment is new and empty.
const readPage = `-- relay.page
with head as materialized (
  select coalesce($3::text::pg_snapshot, pg_current_snapshot()) as upto,
         case when pg_is_in_recovery() then 'standby'
              when current_setting('transaction_isolation') <> 'read committed' then 'isolation'
              when not exists (select from holdfast.incarnation i where i.token = $6::text::uuid) then 'crashed'
              else 'ok' end as state)
select 0::bigint as seq, head.upto::text as id, head.state as source, '' as type, '' as topic, '' as key, now() as time,
       null::text as headers, null::bytea as payload, 0::bigint as letter
  from head
union all
select w.seq, w.id, w.source, w.type, w.topic, w.key, w.time, w.headers::text, w.payload, coalesce(w.letter, 0)
  from head, lateral (
    select u.* from (
      select e.* from holdfast.event e
       where e.lane = $1::smallint
         and e.xid >= pg_snapshot_xmax($2::text::pg_snapshot)
         and e.xid < pg_snapshot_xmax(head.upto)
         and pg_visible_in_snapshot(e.xid, head.upto)
         and e.seq > $4::bigint
      union all
      select e.*
        from (select pg_snapshot_xip($2::text::pg_snapshot) as xid except select pg_snapshot_xip(head.upto)) ended,
             lateral (
               select e.* from holdfast.event e
                where e.lane = $1::smallint and e.xid = ended.xid and e.seq > $4::bigint
                order by e.seq limit $5::integer) e
    ) u
    order by u.seq
    limit $5::integer) w
 where head.state = 'ok'`

// ofBig and inOrder read one of the big transactions of readPlanned, in seq order.
const (
	ofBig = `
      union all
      (select e.* from holdfast.event e where e.lane = $1::smallint and e.xid = ($7::text[])[`
	inOrder = `]::xid8 and e.seq > $4::bigint order by e.seq limit $5::integer)`
)

// readPlanned is readPage for a window whose transactions are known: $2 the small ones, $7 up to eight big ones, each
// read in seq order straight from the index and merged. $3 is upto, which the header returns as it is.
const readPlanned = `-- relay.planned_page
with head as materialized (
  select case when pg_is_in_recovery() then 'standby'
              when current_setting('transaction_isolation') <> 'read committed' then 'isolation'
              when not exists (select from holdfast.incarnation i where i.token = $6::text::uuid) then 'crashed'
              else 'ok' end as state)
select 0::bigint as seq, $3::text as id, head.state as source, '' as type, '' as topic, '' as key, now() as time,
       null::text as headers, null::bytea as payload, 0::bigint as letter
  from head
union all
select w.seq, w.id, w.source, w.type, w.topic, w.key, w.time, w.headers::text, w.payload, coalesce(w.letter, 0)
  from head, lateral (
    select u.* from (
      (select e.* from unnest($2::text[]) few, lateral (
         select e.* from holdfast.event e where e.lane = $1::smallint and e.xid = few::xid8 and e.seq > $4::bigint order by e.seq limit $5::integer) e)` + ofBig + `1` + inOrder + ofBig + `2` + inOrder + ofBig + `3` + inOrder + ofBig + `4` + inOrder +
	ofBig + `5` + inOrder + ofBig + `6` + inOrder + ofBig + `7` + inOrder + ofBig + `8` + inOrder + `
    ) u
    order by u.seq
    limit $5::integer) w
 where head.state = 'ok'`

// readTransactions lists the transactions of a window that have events of the lane after pos, with the number of these
// counted up to $5. $1 lane, $2 done, $3 upto, $4 pos, $6 token. It hops through event_N_lane_xid_seq from one transaction
// to the next, so it reads no more than it counts. A row without a count says why the reader must not go on, as readPage's
// header does: if a lagging standby answered, the reader would skip what the standby does not have yet.
const readTransactions = `-- relay.transactions
with recursive head as materialized (
  select case when pg_is_in_recovery() then 'standby'
              when not exists (select from holdfast.incarnation i where i.token = $6::text::uuid) then 'crashed'
              else 'ok' end as state
), hop as (
  (select e.xid from holdfast.event e
    where e.lane = $1::smallint and e.xid >= pg_snapshot_xmax($2::text::pg_snapshot)
    order by e.xid limit 1)
  union all
  select (select e.xid from holdfast.event e where e.lane = $1::smallint and e.xid > hop.xid order by e.xid limit 1)
    from hop where hop.xid < pg_snapshot_xmax($3::text::pg_snapshot)
), member as (
  select hop.xid from hop
   where hop.xid < pg_snapshot_xmax($3::text::pg_snapshot) and pg_visible_in_snapshot(hop.xid, $3::text::pg_snapshot)
  union
  (select pg_snapshot_xip($2::text::pg_snapshot) except select pg_snapshot_xip($3::text::pg_snapshot))
)
select m.xid::text, c.events
  from member m, lateral (
    select count(*) as events from (
      select from holdfast.event e where e.lane = $1::smallint and e.xid = m.xid and e.seq > $4::bigint limit $5::integer) few) c
 where c.events > 0
union all
select head.state, null from head where head.state <> 'ok'`

// readCuts lists the next stored snapshots after done, by the indexes event_N_cut. $1 done, $2 how many, $3 token. A row
// without a transaction says why the reader must not go on.
const readCuts = `-- relay.cuts
with head as materialized (
  select case when pg_is_in_recovery() then 'standby'
              when not exists (select from holdfast.incarnation i where i.token = $3::text::uuid) then 'crashed'
              else 'ok' end as state)
(select e.snap::text, e.xid::text::bigint, e.seq
  from holdfast.event e
 where e.snap is not null
   and e.xid >= pg_snapshot_xmax($1::text::pg_snapshot)
   and pg_snapshot_xmax(e.snap) > pg_snapshot_xmax($1::text::pg_snapshot)
 order by e.xid
 limit $2::integer)
union all
select head.state, null, null from head where head.state <> 'ok'`

// probe looks at all lanes at once: which have events after their cursor, and which have parked or scheduled events that
// are due. A lane whose done is null is reading, so it is not asked for unread events. $1 lanes, $2 dones, $3 token. No row
// at all means that the incarnation changed or that this is a standby. The arrays are in subqueries so that the planner
// expects the same number of lanes whether it knows the arrays or not. Otherwise it takes a new plan for each call to be
// cheaper, and planning costs five times as much as running. The condition next_at < 'infinity' is for the planner: it
// shows that parked_due has all due rows.
const probeLanes = `-- relay.probe
select p.lane,
       p.done is not null and (
         exists (select from holdfast.event e where e.lane = p.lane and e.xid >= pg_snapshot_xmax(p.done::pg_snapshot))
         or exists (select from pg_snapshot_xip(p.done::pg_snapshot) flying (xid), lateral (
              select 1 from holdfast.event e where e.lane = p.lane and e.xid = flying.xid limit 1) e)) as unread,
       exists (select from holdfast.parked k where k.lane = p.lane and k.next_at <= now() and k.next_at < 'infinity') as parked_due,
       exists (select from holdfast.scheduled s where s.lane = p.lane and s.due_at <= now()) as scheduled_due
  from unnest((select $1::smallint[]), (select $2::text[])) as p (lane, done)
 where not pg_is_in_recovery()
   and exists (select from holdfast.incarnation i where i.token = $3::text::uuid)`

// readBacklog looks for what each lane reads next, by the indexes event_N_lane_xid_seq as probe does. Of the window that
// is being read, what lies up to pos is published.
const readBacklog = `-- relay.backlog
select count(n.time), coalesce(greatest((extract(epoch from now() - min(n.time)) * 1000000)::bigint, 0), 0),
       (select count(*) from holdfast.parked),
       (select coalesce((extract(epoch from now() - min(k.first_at)) * 1000000)::bigint, 0) from holdfast.parked k),
       count(*) filter (where exists (select from holdfast.scheduled s where s.lane = l.lane and s.due_at <= now()))
  from holdfast.lane l left join lateral (
    select min(u.time) as time from (
      (select e.time from holdfast.event e
        where e.lane = l.lane and e.xid >= pg_snapshot_xmax(l.done)
          and (l.upto is null or e.seq > l.pos or not pg_visible_in_snapshot(e.xid, l.upto))
        order by e.xid, e.seq limit 1)
      union all
      (select f.time from pg_snapshot_xip(l.done) flying (xid), lateral (
         select e.time from holdfast.event e
          where e.lane = l.lane and e.xid = flying.xid
            and (l.upto is null or e.seq > l.pos or not pg_visible_in_snapshot(e.xid, l.upto))
          order by e.seq limit 1) f)) u) n on true`

// ensureIncarnation refills the token that a crash emptied.
const ensureIncarnation = `-- relay.incarnation
insert into holdfast.incarnation default values on conflict (one) do nothing`

// readServer is what a relay must know before it touches a lane. An empty token asks
// for ensureIncarnation. The one-row tables are
// each read by a query of their own: joined, the planner expects millions of rows of them and compiles the statement,
// which takes a second.
const readServer = `-- relay.server
select coalesce((select i.token::text from holdfast.incarnation i), ''), pg_is_in_recovery(), current_setting('default_transaction_isolation'),
       (select s.system_identifier from pg_control_system() s), (select c.system_identifier from holdfast.cluster c),
       (select b.born::text::bigint from holdfast.birth b), (select b.xmin::text::bigint from holdfast.birth b),
       (select coalesce(max(pg_snapshot_xmax(l.done)::text::bigint), 0) from holdfast.lane l),
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint`

// heartbeatRelay records that this relay runs, and counts the running relays and the free lanes. A lease that ends later
// than twice its length from now was given by a clock that has since stepped back: it counts as expired.
// A lane that is ours in the table but not in our memory was dropped: it is free for us. $1 name, $2 lease, $3 our lanes.
const heartbeatRelay = `-- relay.heartbeat
with heartbeat as (
  insert into holdfast.relay (name, seen_until) values ($1::text, now() + $2::interval)
  on conflict (name) do update set seen_until = excluded.seen_until)
select (select count(*) from holdfast.relay r where r.seen_until > now() and r.seen_until < now() + 2 * $2::interval and r.name <> $1::text) + 1,
       (select count(*) from holdfast.lane),
       (select count(*) from holdfast.lane l
         where l.lease_until < now() or l.lease_until > now() + 2 * $2::interval
            or (l.owner = $1::text and l.lane <> all ($3::smallint[])))`

// leaveRelay removes this relay and those that have not been seen for a day, and releases the lanes that it still owns: a
// stop cut off their claim, or they were dropped in doubt. It runs when no lane of the relay runs any more.
const leaveRelay = `-- relay.leave
with handed_back as (
  update holdfast.lane set owner = null, lease_until = '-infinity' where owner = $1::text)
delete from holdfast.relay where name = $1::text or seen_until < now() - interval '1 day'`

// claimLanes takes up to $3 lanes whose lease ran out. SKIP LOCKED passes over a lane whose owner is just saving. A lane in
// our memory is never claimed, whatever its row says: it is just being handed back, or about to be dropped.
// $1 name, $2 lease, $3 how many, $4 token, $5 the lanes in our memory.
const claimLanes = `-- relay.claim
update holdfast.lane l
   set owner = $1::text, epoch = l.epoch + 1, lease_until = now() + $2::interval, save = 0
  from (select f.lane from holdfast.lane f
         where (f.lease_until < now() or f.lease_until > now() + 2 * $2::interval or f.owner = $1::text)
           and f.lane <> all ($5::smallint[])
           and exists (select from holdfast.incarnation i where i.token = $4::text::uuid)
         order by f.lane limit $3::integer for update skip locked) free
 where l.lane = free.lane
returning l.lane, l.epoch, l.done::text, coalesce(l.upto::text, ''), l.pos`

// saveLanes is progress, heartbeat and fence of all lanes in one statement: a lane that it does not return is lost.
// Null done means that only pos has changed. A save that its relay has abandoned may still reach the server, after later
// ones: its number is lower than theirs, so it writes nothing. $1 name, $2 lease, $3 lanes, $4 epochs,
// $5 dones, $6 uptos (” = no window), $7 poss, $8 token, $9 number.
const saveLanes = `-- relay.save
update holdfast.lane l
   set done = coalesce(s.done::pg_snapshot, l.done),
       upto = case when s.done is null then l.upto when s.upto = '' then null else s.upto::pg_snapshot end,
       pos = s.pos, lease_until = now() + $2::interval, saved_at = now(), save = $9::bigint
  from unnest($3::smallint[], $4::bigint[], $5::text[], $6::text[], $7::bigint[]) as s (lane, epoch, done, upto, pos)
 where l.lane = s.lane and l.owner = $1::text and l.epoch = s.epoch and l.save < $9::bigint
   and exists (select from holdfast.incarnation i where i.token = $8::text::uuid)
returning l.lane`

// releaseLane hands a lane back: the next claim takes it at once.
const releaseLane = `-- relay.release
update holdfast.lane set owner = null, lease_until = '-infinity'
 where lane = $1::smallint and owner = $2::text and epoch = $3::bigint`

// fenceLane keeps the lane ours until the transaction ends: a claim passes over a locked row.
const fenceLane = `-- relay.fence
select 1 from holdfast.lane l
 where l.lane = $1::smallint and l.owner = $2::text and l.epoch = $3::bigint
   and exists (select from holdfast.incarnation i where i.token = $4::text::uuid)
   for no key update`

// readSegments is the state of the segments.
const readSegments = `-- relay.segments
select (select s.current from holdfast.segments s), n,
       pg_table_size(c.oid), pg_relation_size(c.oid) = 0
  from generate_series(0, 3) n
  join pg_class c on c.oid = to_regclass('holdfast.event_' || n)
 order by n`

// readBirth locks the row that identifies a history of transaction ids, so that two adoptions run one after the other.
const readBirth = `-- relay.birth
select c.system_identifier, s.system_identifier, b.born::text::bigint, b.xmin::text::bigint
  from holdfast.cluster c, holdfast.birth b, pg_control_system() s
   for update of c`

const replaceCluster = `-- relay.replace_cluster
update holdfast.cluster set system_identifier = $1::bigint, adopted_at = now()`

// The steps of a full adoption, in this order; see Adopt.
const (
	adoptSnapshot = `-- relay.adopt_snapshot
select pg_current_snapshot()::text`
	adoptLock = `-- relay.adopt_lock
lock table holdfast.event, holdfast.lane in access exclusive mode`
	adoptEvents = `-- relay.adopt_events
update holdfast.event set xid = pg_current_xact_id(), snap = null`
	adoptLanes = `-- relay.adopt_lanes
update holdfast.lane set done = $1::text::pg_snapshot, upto = null, pos = 0, epoch = epoch + 1, owner = null, lease_until = '-infinity'`
	adoptSequence = `-- relay.adopt_sequence
select setval('holdfast.event_seq', greatest((select coalesce(max(e.seq), 0) from holdfast.event e),
  (select coalesce(max(c.seq), 0) from holdfast.scheduled c), (select q.last_value from holdfast.event_seq q)) + 1)`
	adoptIncarnation = `-- relay.adopt_incarnation
insert into holdfast.incarnation default values on conflict (one) do update set token = gen_random_uuid()`
	adoptBirthGone = `-- relay.adopt_birth_gone
delete from holdfast.birth`
	adoptBirth = `-- relay.adopt_birth
insert into holdfast.birth default values`
)

const rotateSegments = `-- relay.rotate
update holdfast.segments set current = $1::smallint, rotated_at = now() where current = $2::smallint`

const reclaimSegment = `-- relay.reclaim
select holdfast.reclaim($1::integer, $2::text::uuid, $3::integer)`
