package relay

import (
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/waitroom"
)

// A page has its rows in one of two ways, for logReader to choose. In both, what no door lets in is not sent: it would not fit in memory, or
// not even in Postgres's answer. The last column is the size of a row: the bytes of its texts, of its payload, and of its headers, as JSON or
// as they are stored, whichever is more. octet_length of a payload does not read what is stored beside the row.
//
// smallRows and smallRowsEnd enclose the rows of a page in which no row is larger than bound, so that as many as a page may have are not too
// much. A row that is larger comes without texts, headers and payload: then the page is to be read again in the other way. bound is at most
// maxSmall. Only headers that are small as they are stored, which is compressed, are made JSON text.
//
// sizedRows and sizedRowsEnd enclose the rows of a page in which some may be larger. A running sum counts what is sent: the page ends after
// the first row with which that is bound or more. Postgres copies each row once more for it, which costs a fifth of reading a small one. A
// row that no door lets in comes without payload and headers, and malformed says what is wrong with it. A payload has 64 MiB at most
// (SchemaConfig.MaxPayload), and the bounds of the rest are far beyond those of the doors, so that nothing is refused that was published before.
//
// Offset 0 keeps the planner from writing the headers out twice, and the order in each subquery from sorting them again.
const (
	smallRows = `
    select m.seq, case when m.small then m.id else '' end as id, case when m.small then m.source else '' end as source, case when m.small then m.type else '' end as type,
           case when m.small then m.topic else '' end as topic, case when m.small then m.key else '' end as key, m.time,
           case when m.small then m.headers end as headers, case when m.small then m.payload end as payload,
           coalesce(m.letter, 0) as letter, 0::bigint as bytes, null::text as malformed, m.size from (
      select t.*, t.size <= head.bound as small from (
        select u.*, u.texts + coalesce(octet_length(u.payload), 0) + coalesce(greatest(u.stored, octet_length(u.headers)), 0) as size from (
          select n.seq, n.id, n.source, n.type, n.topic, n.key, n.time, n.payload, n.letter, pg_column_size(n.headers) as stored,
                 case when pg_column_size(n.headers) <= head.bound then n.headers::text end as headers,
                 octet_length(n.id)::bigint + octet_length(n.source) + octet_length(n.type) + octet_length(n.topic) + octet_length(n.key) as texts from (
`
	smallRowsEnd = `) n order by n.seq offset 0) u order by u.seq offset 0) t order by t.seq offset 0
      ) m
    ) w
 where head.state = 'ok'`

	sizedRows = `
    select p.*, sum(p.sent) over (order by p.seq rows unbounded preceding) as bytes from (
      select t.seq, t.time, coalesce(t.letter, 0) as letter, t.malformed, t.size, case when t.malformed is null then t.size::integer else 0 end as sent,
             case when t.malformed is null or t.texts <= ` + sqlschema.MaxTexts + ` then t.id else left(t.id, 100) end as id,
             case when t.malformed is null or t.texts <= ` + sqlschema.MaxTexts + ` then t.source else left(t.source, 100) end as source,
             case when t.malformed is null or t.texts <= ` + sqlschema.MaxTexts + ` then t.type else left(t.type, 100) end as type,
             case when t.malformed is null or t.texts <= ` + sqlschema.MaxTexts + ` then t.topic else left(t.topic, 100) end as topic,
             case when t.malformed is null or t.texts <= ` + sqlschema.MaxTexts + ` then t.key else '' end as key,
             case when t.malformed is null then t.headers end as headers,
             case when t.malformed is null then t.payload end as payload from (
        select m.*, m.texts + coalesce(octet_length(m.payload), 0) + coalesce(greatest(m.stored, octet_length(m.headers)), 0) as size, case
               when m.texts > ` + sqlschema.MaxTexts + ` then format('id, source, type, topic and key have %s bytes together: at most ` + sqlschema.MaxTexts + `', m.texts)
               when octet_length(m.payload) > ` + sqlschema.MaxPayload + ` then format('payload has %s bytes: at most ` + sqlschema.MaxPayload + `', octet_length(m.payload))
               when m.stored > ` + sqlschema.MaxStoredHeaders + ` then format('headers have %s bytes as they are stored: at most ` + sqlschema.MaxStoredHeaders + `', m.stored)
               when octet_length(m.headers) > ` + sqlschema.MaxHeaders + ` then format('headers have %s bytes of JSON: at most ` + sqlschema.MaxHeaders + `', octet_length(m.headers)) end as malformed from (
          select n.seq, n.id, n.source, n.type, n.topic, n.key, n.time, n.payload, n.letter, pg_column_size(n.headers) as stored,
                 case when pg_column_size(n.headers) <= ` + sqlschema.MaxStoredHeaders + ` then n.headers::text end as headers,
                 octet_length(n.id)::bigint + octet_length(n.source) + octet_length(n.type) + octet_length(n.topic) + octet_length(n.key) as texts from (
`
	sizedRowsEnd = `) n order by n.seq offset 0) m order by m.seq offset 0) t
      ) p
    ) w
 where head.state = 'ok' and w.bytes - w.sent < head.bound`
)

// maxSmall is the most that bound is for smallRows, in bytes: less than each of the bounds in sizedRows, so that what is malformed by them is
// never small.
const maxSmall = 32 << 10

// What the statements that read a page share. windowState says whether the reader may go on: pageHead is the first row, a header, with the
// window's end and that state. Before them a statement says where the window ends and what bound is.
const (
	windowState = `
         case when pg_is_in_recovery() then 'standby'
              when current_setting('transaction_isolation') <> 'read committed' then 'isolation'
              when not exists (select from holdfast.current_incarnation i where i.token = $6::text) then 'crashed'
`
	pageHead = `
select 0::bigint as seq, head.upto::text as id, head.state as source, '' as type, '' as topic, '' as key, now() as time,
       null::text as headers, null::bytea as payload, 0::bigint as letter, 0::bigint as bytes, null::text as malformed, 0::bigint as size
  from head
union all
select w.seq, w.id, w.source, w.type, w.topic, w.key, w.time, w.headers, w.payload, w.letter, w.bytes, w.malformed, w.size
  from head, lateral (`
)

// readPage reads the next page of one lane's window, in seq order, or opens a window that ends now. The first row is a
// header: upto, and whether the reader may go on. Everything is one statement with one snapshot: the rows, the window's
// end, and the proof that this is still the primary and the incarnation under which the lane was claimed, and that the
// cursor does not lie ahead of the server: then it speaks of transactions that the server does not know.
// $1 lane, $2 done, $3 upto or null, $4 pos, $5 limit, $6 token, $7 bound: see smallRows, and sizedRows for readSizedPage.
// It reads by the indexes event_N_lane_xid_seq: a range from the end of done to the end of upto, and one lookup for each
// transaction that was in flight at done and has ended since. The lookups are in a lateral subquery with a limit, so
// that the planner cannot turn them into a scan of the lane, as it would while a segment is new and empty.
const (
	readPage      = `-- relay.page` + openHead + pageHead + smallRows + rowsOfWindow + rowsInOrder + smallRowsEnd
	readSizedPage = `-- relay.sized_page` + openHead + pageHead + sizedRows + rowsOfWindow + rowsInOrder + sizedRowsEnd
)

// readQuietPage is readSizedPage without the events of the tenants $9, which a key says before the separator $8. $10 and $11 are the end
// of a window and a place in it: what is visible in the one and lies up to the other has been handed out. It reads what readPage would
// read to get as far, and sorts and sends what is left.
const readQuietPage = `-- relay.quiet_page` + openHead + pageHead + sizedRows + rowsBetween + notNoisy + rowsEndedSince + notNoisy + rowsInOrder + sizedRowsEnd

// The parts of readPage.
const (
	openHead = `
with head as materialized (
  select coalesce($3::text::pg_snapshot, pg_current_snapshot()) as upto, $7::bigint as bound,` + windowState +
		`              when greatest(pg_snapshot_xmax($2::text::pg_snapshot), pg_snapshot_xmax($3::text::pg_snapshot)) > pg_snapshot_xmax(pg_current_snapshot()) then 'ahead'
              else 'ok' end as state)`
	rowsOfWindow = rowsBetween + rowsEndedSince
	rowsBetween  = `          select r.* from (
            select e.* from holdfast.event e
             where e.lane = $1::smallint
               and e.xid >= pg_snapshot_xmax($2::text::pg_snapshot)
               and e.xid < pg_snapshot_xmax(head.upto)
               and pg_visible_in_snapshot(e.xid, head.upto)
               and e.seq > $4::bigint`
	rowsEndedSince = `
            union all
            select e.*
              from (select pg_snapshot_xip($2::text::pg_snapshot) as xid except select pg_snapshot_xip(head.upto)) ended,
                   lateral (
                     select e.* from holdfast.event e
                      where e.lane = $1::smallint and e.xid = ended.xid and e.seq > $4::bigint`
	rowsInOrder = `
                      order by e.seq limit $5::integer) e
          ) r
          order by r.seq
          limit $5::integer`
)

const notNoisy = `
               and case when position($8::text in e.key) > 0 then split_part(e.key, $8::text, 1) else '' end <> all ($9::text[])
               and ($10::text is null or e.seq > $11::bigint or not pg_visible_in_snapshot(e.xid, $10::text::pg_snapshot))`

// ofBig and inOrder read one of the big transactions of readPlanned, in seq order.
const (
	ofBig = `
            union all
            (select e.* from holdfast.event e where e.lane = $1::smallint and e.xid = ($7::text[])[`
	inOrder = `]::xid8 and e.seq > $4::bigint order by e.seq limit $5::integer)`
)

// readPlanned is readPage for a window whose events are planned (see plan): $2 and $8 are the transactions and seqs of the next
// events of the small ones, $7 up to eight big ones, each read in seq order straight from the index and merged. $3 is upto,
// which the header returns as it is. $9 is readPage's $7.
const (
	readPlanned      = `-- relay.planned_page` + plannedHead + pageHead + smallRows + rowsPlanned + smallRowsEnd
	readSizedPlanned = `-- relay.sized_planned_page` + plannedHead + pageHead + sizedRows + rowsPlanned + sizedRowsEnd

	plannedHead = `
with head as materialized (
  select $3::text as upto, $9::bigint as bound,` + windowState +
		`              when pg_snapshot_xmax($3::text::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot()) then 'ahead'
              else 'ok' end as state)`
	rowsPlanned = `          select r.* from (
            (select e.* from unnest($2::bigint[], $8::bigint[]) few (xid, seq), lateral (
               select e.* from holdfast.event e where e.lane = $1::smallint and e.xid = few.xid::text::xid8 and e.seq = few.seq limit 1) e)` + ofBig + `1` + inOrder + ofBig + `2` + inOrder + ofBig + `3` + inOrder + ofBig + `4` + inOrder +
		ofBig + `5` + inOrder + ofBig + `6` + inOrder + ofBig + `7` + inOrder + ofBig + `8` + inOrder + `
          ) r
          order by r.seq
          limit $5::integer`
)

// readNext is where the next event of a window is, and what it is, as far as that can be read without payload and headers: it is
// for an event that cannot be read. $1 lane, $2 done, $3 upto or null, $4 pos, $5 token. No row: the window has no more, or its
// reader must stop.
const readNext = `-- relay.next_row
with head as materialized (select coalesce($3::text::pg_snapshot, pg_current_snapshot()) as upto)
select head.upto::text, e.tableoid::regclass::text, e.xid::text, e.seq,
       case when octet_length(e.id) <= 255 then e.id else '' end, case when octet_length(e.type) <= 255 then e.type else '' end,
       case when octet_length(e.topic) <= 249 then e.topic else '' end, case when octet_length(e.key) <= 1024 then e.key else '' end
  from head, holdfast.event e
 where e.lane = $1::smallint
   and e.xid >= pg_snapshot_xmin($2::text::pg_snapshot)
   and e.xid < pg_snapshot_xmax(head.upto)
   and pg_visible_in_snapshot(e.xid, head.upto) and not pg_visible_in_snapshot(e.xid, $2::text::pg_snapshot)
   and e.seq > $4::bigint
   and not pg_is_in_recovery()
   and exists (select from holdfast.current_incarnation i where i.token = $5::text)
   and greatest(pg_snapshot_xmax($2::text::pg_snapshot), pg_snapshot_xmax($3::text::pg_snapshot)) <= pg_snapshot_xmax(pg_current_snapshot())
 order by e.seq limit 1`

// What readTransactions and readPlaces share. windowHead says whether the reader may go on. The others are the two parts of a
// window: what lies between the ends of done and of upto, and the transactions that were in flight at done and have ended
// since. $1 lane, $2 done, $3 upto, $4 pos, $6 token.
const (
	windowHead = `
with head as materialized (
  select case when pg_is_in_recovery() then 'standby'
              when not exists (select from holdfast.current_incarnation i where i.token = $6::text) then 'crashed'
              when pg_snapshot_xmax($3::text::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot()) then 'ahead'
              else 'ok' end as state)
`
	afterDone = `          where e.lane = $1::smallint
            and e.xid >= pg_snapshot_xmax($2::text::pg_snapshot)
            and e.xid < pg_snapshot_xmax($3::text::pg_snapshot)
            and pg_visible_in_snapshot(e.xid, $3::text::pg_snapshot)
            and e.seq > $4::bigint
`
	endedSince = `           from (select pg_snapshot_xip($2::text::pg_snapshot) as xid except select pg_snapshot_xip($3::text::pg_snapshot)) ended,
`
)

// readTransactions lists the big transactions of a window: those with more than $5 events of the lane after pos, the eight
// largest first. $1 lane, $2 done, $3 upto, $4 pos, $6 token. It reads the window's part of event_N_lane_xid_seq once. A row
// without a count says why the reader must not go on, as readPage's header does: if a lagging standby answered, the reader
// would skip what the standby does not have yet.
const readTransactions = `-- relay.transactions` + windowHead + `(select m.xid::text, count(*) as events
   from (select e.xid from holdfast.event e
` + afterDone + `         union all
         select ended.xid
` + endedSince + `                lateral (select from holdfast.event e
                          where e.lane = $1::smallint and e.xid = ended.xid and e.seq > $4::bigint offset 0) e) m
  group by m.xid
 having count(*) > $5::integer
  order by count(*) desc, m.xid
  limit 8)
union all
select head.state, null from head where head.state <> 'ok'`

// readPlaces lists where the next events of a window are, in seq order and up to $5 of them, without those of the big
// transactions $7. $1 lane, $2 done, $3 upto, $4 pos, $6 token. It reads the window's part of event_N_lane_xid_seq, and no
// payload. A row without a seq says why the reader must not go on.
const readPlaces = `-- relay.places` + windowHead + `(select m.xid::text, m.seq
   from (select e.xid, e.seq from holdfast.event e
` + afterDone + `            and e.xid <> all ($7::text[]::xid8[])
         union all
         select ended.xid, e.seq
` + endedSince + `                lateral (select e.seq from holdfast.event e
                          where e.lane = $1::smallint and e.xid = ended.xid and e.seq > $4::bigint
                          order by e.seq limit $5::integer) e
          where ended.xid <> all ($7::text[]::xid8[])) m
  order by m.seq
  limit $5::integer)
union all
select head.state, null from head where head.state <> 'ok'`

// readCuts lists the next stored snapshots after done, by the indexes event_N_cut. $1 done, $2 how many, $3 token. A row
// without a transaction says why the reader must not go on. A snapshot of a transaction of a higher isolation may be much
// older than its event. It is a moment that existed, and lies after done if its end does. One that somebody has made up may lie
// ahead of the server, or call a transaction ended that has not: it is left out.
const readCuts = `-- relay.cuts
with head as materialized (
  select case when pg_is_in_recovery() then 'standby'
              when not exists (select from holdfast.current_incarnation i where i.token = $3::text) then 'crashed'
              when pg_snapshot_xmax($1::text::pg_snapshot) > pg_snapshot_xmax(pg_current_snapshot()) then 'ahead'
              else 'ok' end as state, pg_current_snapshot() as now)
(select e.snap::text, e.xid::text::bigint, e.seq
  from holdfast.event e
 where e.snap is not null
   and e.xid >= pg_snapshot_xmax($1::text::pg_snapshot)
   and e.xid < pg_snapshot_xmax((select head.now from head))
   and pg_snapshot_xmax(e.snap) > pg_snapshot_xmax($1::text::pg_snapshot)
   and pg_snapshot_xmax(e.snap) <= pg_snapshot_xmax((select head.now from head))
   and not exists (select from pg_snapshot_xip((select head.now from head)) flying (xid) where pg_visible_in_snapshot(flying.xid, e.snap))
 order by e.xid
 limit $2::integer)
union all
select head.state, null, null from head where head.state <> 'ok'`

// probe looks at all lanes at once: which have events after their cursor, and which have parked or scheduled events that
// are due. A lane whose done is null is reading, so it is not asked for unread events. $1 lanes, $2 dones, $3 token. No row
// at all means that the incarnation changed, that a cursor lies ahead of the server, or that this is a standby. The last
// column is a snapshot that may take the place of done where nothing is unread: transactions that were in flight at done have
// ended since, and need not be looked up again, or others have begun, whose rows each look would pass over. The arrays are in
// subqueries so that the planner expects the same number of lanes whether it knows the arrays or not. Otherwise it takes a new
// plan for each call to be cheaper, and planning costs five times as much as running. The condition next_at < 'infinity' is for
// the planner: it shows that parked_due has all due rows. So is the order of what may be due: where one lane has much of that, the
// planner expects as much of each, and would look for a row of another lane by reading the table.
const probeLanes = `-- relay.probe
with head as materialized (select pg_current_snapshot() as upto)
select p.lane,
       p.done is not null and (
         exists (select from holdfast.event e where e.lane = p.lane and e.xid >= pg_snapshot_xmax(p.done::pg_snapshot) and e.xid < pg_snapshot_xmax(head.upto))
         or exists (select from unnest(s.ended) flying (xid), lateral (
              select 1 from holdfast.event e where e.lane = p.lane and e.xid = flying.xid limit 1) e)) as unread,
       coalesce((select k.next_at from holdfast.parked k where k.lane = p.lane and k.next_at < 'infinity' order by k.next_at limit 1) <= now(), false) as parked_due,
       coalesce((select s.due_at from holdfast.scheduled s where s.lane = p.lane order by s.due_at limit 1) <= now(), false) as scheduled_due,
       case when s.ended is not null or pg_snapshot_xmax(p.done::pg_snapshot) < pg_snapshot_xmax(head.upto) then head.upto::text end
  from head, unnest((select $1::smallint[]), (select $2::text[])) as p (lane, done),
       lateral (select array_agg(x.xid) as ended
                  from (select pg_snapshot_xip(p.done::pg_snapshot) as xid except select pg_snapshot_xip(head.upto)) x) s
 where not pg_is_in_recovery()
   and exists (select from holdfast.current_incarnation i where i.token = $3::text)
   and not exists (select from unnest((select $2::text[])) d where pg_snapshot_xmax(d::pg_snapshot) > pg_snapshot_xmax(head.upto))`

// ensureIncarnation refills the token that a crash emptied.
const ensureIncarnation = `-- relay.incarnation
insert into holdfast.incarnation default values on conflict (one) do nothing`

// readServer is what a relay must know before it touches a lane. An empty token asks
// for ensureIncarnation. The one-row tables are
// each read by a query of their own: joined, the planner expects millions of rows of them and compiles the statement,
// which takes a second.
const readServer = `-- relay.server
select coalesce((select i.token from holdfast.current_incarnation i), ''), pg_is_in_recovery(), current_setting('default_transaction_isolation'),
       (select s.system_identifier from pg_control_system() s), (select c.system_identifier from holdfast.cluster c),
       (select b.born::text::bigint from holdfast.birth b), (select b.xmin::text::bigint from holdfast.birth b),
       (select coalesce(max(greatest(pg_snapshot_xmax(l.done), pg_snapshot_xmax(l.upto))::text::bigint), 0) from holdfast.lane l),
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       (select n.version from holdfast.installation n)`

// heartbeatRelay records that this relay runs, and counts the running relays and the free lanes. A lease that ends later
// than twice its length from now was given by a clock that has since stepped back: it counts as expired.
// A lane that is ours in the table but not in our memory was dropped: it is free for us. $1 name, $2 lease, $3 our lanes,
// $4 why the publisher takes nothing, $5 for how long we have run: a relay that was killed left its row, under a name that may be ours.
const heartbeatRelay = `-- relay.heartbeat
with heartbeat as (
  insert into holdfast.relay (name, seen_until, trouble, started_at) values ($1::text, now() + $2::interval, $4::text, now() - $5::interval)
  on conflict (name) do update set seen_until = excluded.seen_until, trouble = excluded.trouble, started_at = excluded.started_at)
select (select count(*) from holdfast.relay r where r.seen_until > now() and r.seen_until < now() + 2 * $2::interval and r.name <> $1::text) + 1,
       (select count(*) from holdfast.lane),
       (select count(*) from holdfast.lane l
         where l.lease_until < now() or l.lease_until > now() + 2 * $2::interval
            or (l.owner = $1::text and l.lane <> all ($3::smallint[])))`

// readPaused lists the topics that people have paused.
const readPaused = `-- relay.paused
select p.topic from holdfast.pause p where p.consumer = ''`

// leaveRelay removes this relay and those that have not been seen for a day, and releases the lanes that it still owns: a
// stop cut off their claim, or they were dropped in doubt. It runs when no lane of the relay runs any more.
const leaveRelay = `-- relay.leave
with handed_back as (
  update holdfast.lane set owner = null, lease_until = '-infinity' where owner = $1::text)
delete from holdfast.relay where name = $1::text or seen_until < now() - interval '1 day'`

// beginLeases says that the owner of a lane tells what parked events it has in memory: none.
const beginLeases = `-- relay.begin_leases
with ours as materialized (
  select l.lane, l.epoch from holdfast.lane l
   where l.lane = $1::smallint and l.owner = $2::text and l.epoch = $3::bigint
     and exists (select from holdfast.current_incarnation i where i.token = $4::text)
     for no key update
), before as (
  delete from holdfast.parked_lease p using ours o where p.lane = o.lane and (p.topic <> '' or p.place <> o.epoch))
insert into holdfast.parked_lease (lane, topic, key, place) select o.lane, '', '', o.epoch from ours o on conflict do nothing`

// claimLane takes a lane whose lease ran out. SKIP LOCKED passes over a lane whose owner is just saving. A lane in our
// memory is never claimed, whatever its row says: it is just being handed back, or about to be dropped.
// $1 name, $2 lease, $3 token, $4 the lanes in our memory, and those that rest after failures.
const claimLane = `-- relay.claim
update holdfast.lane l
   set owner = $1::text, epoch = l.epoch + 1, lease_until = now() + $2::interval, save = 0
  from (select f.lane from holdfast.lane f
         where (f.lease_until < now() or f.lease_until > now() + 2 * $2::interval or f.owner = $1::text)
           and f.lane <> all ($4::smallint[])
           and exists (select from holdfast.current_incarnation i where i.token = $3::text)
         order by f.lane limit 1 for update skip locked) free
 where l.lane = free.lane
returning l.lane, l.epoch, l.done::text, coalesce(l.upto::text, ''), l.pos, l.published`

// saveLanes is progress, heartbeat and fence of all lanes in one statement. It returns each lane that is still ours: true if
// it was saved, false if somebody else has its row locked. Such a lane is passed over, because all others would wait with
// it. A lane that is not returned is lost. Null done means that only pos has changed. A save that its relay has abandoned
// may still reach the server, after later ones: its number is lower than theirs, so it writes nothing. A cursor ahead of the
// server is not saved. $1 name, $2 lease, $3 lanes, $4 epochs, $5 dones, $6 uptos (” = no window), $7 poss, $8 token,
// $9 number, $10 how many events each lane has published in all: written twice, it is the same.
const saveLanes = `-- relay.save
with free as materialized (
  select f.lane from holdfast.lane f
   where f.lane = any ($3::smallint[]) and f.owner = $1::text
   order by f.lane for no key update skip locked
), saved as (
  update holdfast.lane l
     set done = coalesce(s.done::pg_snapshot, l.done),
         upto = case when s.done is null then l.upto when s.upto = '' then null else s.upto::pg_snapshot end,
         pos = s.pos, lease_until = now() + $2::interval, saved_at = now(), save = $9::bigint, published = s.published
    from unnest($3::smallint[], $4::bigint[], $5::text[], $6::text[], $7::bigint[], $10::bigint[]) as s (lane, epoch, done, upto, pos, published)
   where l.lane = s.lane and l.lane in (select f.lane from free f)
     and l.owner = $1::text and l.epoch = s.epoch and l.save < $9::bigint
     and exists (select from holdfast.current_incarnation i where i.token = $8::text)
     and not coalesce(greatest(pg_snapshot_xmax(s.done::pg_snapshot), pg_snapshot_xmax(nullif(s.upto, '')::pg_snapshot)) > pg_snapshot_xmax(pg_current_snapshot()), false)
  returning l.lane)
select s.lane, true from saved s
union all
select l.lane, false from holdfast.lane l, unnest($3::smallint[], $4::bigint[]) as s (lane, epoch)
 where (select count(*) from free) < cardinality($3::smallint[])
   and l.lane = s.lane and l.owner = $1::text and l.epoch = s.epoch and l.lane not in (select f.lane from free f)
   and exists (select from holdfast.current_incarnation i where i.token = $8::text)`

// releaseLane hands a lane back: the next claim takes it at once. Its leases end.
const releaseLane = `-- relay.release
with ended as (
  delete from holdfast.parked_lease p using holdfast.lane l
   where l.lane = $1::smallint and l.owner = $2::text and l.epoch = $3::bigint and p.lane = l.lane)
update holdfast.lane set owner = null, lease_until = '-infinity'
 where lane = $1::smallint and owner = $2::text and epoch = $3::bigint`

// fenceLane keeps the lane ours until the transaction ends: a claim passes over a locked row. Commands of package waiting wait meanwhile, as it waits for
// theirs.
const fenceLane = `-- relay.fence
select 1 from holdfast.lane l
 where l.lane = $1::smallint and l.owner = $2::text and l.epoch = $3::bigint
   and exists (select from holdfast.current_incarnation i where i.token = $4::text)
   and ` + waitroom.LockLane + ` is not null
   for no key update`

// readSegments is the state of the segments.
const readSegments = `-- relay.segments
select (select s.current from holdfast.segments s), n,
       pg_table_size(c.oid), pg_relation_size(c.oid) = 0
  from generate_series(0, 3) n
  join pg_class c on c.oid = to_regclass('holdfast.event_' || n)
 order by n`

// readHolders lists the transactions that have a lock on a segment, prepared ones too. Everybody may read pg_locks. SIReadLock says what a
// serializable transaction has read, even one that has committed: no lock waits for it. $1 segment.
const readHolders = `-- relay.holders
select distinct k.virtualtransaction from pg_locks k
 where k.mode <> 'SIReadLock' and k.relation = to_regclass('holdfast.event_' || $1::integer)
   and k.database = (select d.oid from pg_database d where d.datname = current_database())
   and k.granted and k.pid is distinct from pg_backend_pid()`

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
select holdfast.reclaim($1::integer, split_part($2::text, '/', 1)::uuid, $3::integer)`

// expireWrittenOnce removes dedupe keys that have expired, in the order of the index written_once_expiry. It waits for nobody.
const expireWrittenOnce = `-- relay.expire_written_once
select holdfast.expire_written_once($1::integer)`
