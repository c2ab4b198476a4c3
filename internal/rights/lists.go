package rights

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Right is a list of privileges on tables and views, or on some columns of them, or on sequences ("usage"), or on functions
// ("execute").
type Right struct{ Privileges, Objects, Columns string }

// newLetter are the columns of a letter that its writer fills.
const newLetter = "origin, consumer, reason, fingerprint, state, holds, event_id, source, type, topic, key, time, headers, payload, hash, version, lane, partition, offset, place, attempts, errors, first_at, last_at"

// Of are the rights that roles.sql grants to the role of each part, beside usage of the schema. A test compares them.
var Of = map[string][]Right{
	"producer": {
		{"select", "installation", ""}, {"execute", "append, append_one, write, write_once, once_id, new_id, lock, lock_number", ""},
	},
	"relay": {
		{"select", "installation, event, event_0, event_1, event_2, event_3, birth, cluster, lane_hold, current_incarnation, pause", ""},
		{"select, insert", "incarnation", ""}, {"select, update", "segments, lane", ""}, {"select, insert, update, delete", "relay, parked", ""}, {"select, insert, delete", "parked_lease", ""},
		{"select, delete", "scheduled", ""}, {"select, update", "letter", ""}, {"insert", "letter", newLetter}, {"usage", "parked_place", ""},
		{"execute", "append_unchecked, reclaim, expire_written_once, publish_letter, last_errors", ""},
	},
	"consumer": {
		{"select, insert, update, delete", "inbox, stored, start, consumer_type, consumer_skip", ""}, {"select, insert, delete", "inbox_step", ""},
		{"select, insert, update", "retention, consumer_position, consumer_backfill, watermark, dependency", ""}, {"select, update", "letter", ""}, {"insert", "letter", newLetter},
		{"select, insert", "incarnation", ""}, {"select", "installation, letter_action, consumer_hold, current_incarnation, pause", ""}, {"usage", "stored_place", ""},
		{"execute", "publish_letter, last_errors", ""},
	},
	"web": {
		{"select", "installation", ""}, {"select, insert, update, delete", "idempotency, idempotency_step, idempotency_request, idempotency_expired", ""},
		{"usage", "idempotency_fence", ""},
	},
	"operator": {
		{"select", "installation, consumer_type, dependency, lane_hold, consumer_hold, start", ""}, {"select", "event", "xid, seq, lane, id, source, type, topic, key, time, letter"},
		{"select, delete", "scheduled, pause", ""}, {"select", "pause_action", ""}, {"insert", "pause", "consumer, topic, key, by, reason"},
		{"insert", "pause_action", "action, consumer, topic, key, by, reason"}, {"select, update", "letter", ""}, {"insert", "letter", newLetter},
		{"select", "letter_action, stored_action, letter_replay", ""},
		{"insert", "letter_action", "letter, action, by, reason, payload, hash, version, replay"},
		{"insert", "stored_action", "action, consumer, source, event_id, type, topic, key, letter, by, reason"},
		{"insert", "letter_replay", "name, filter, upto, by, reason"}, {"update", "letter_replay", "ended_at"},
		{"select, insert, update, delete", "stored", ""}, {"select, insert, update", "inbox", ""}, {"select, delete", "parked, inbox_step", ""}, {"update", "parked", "next_at"},
		{"select", "lane, parked_lease", ""}, {"update", "lane", "owner"}, {"usage", "stored_place, parked_place", ""},
		{"select", "idempotency", "scope, operation, key, fingerprint, state, status, body_hash, result_ref, run, attempt, lease_until, created_at, expires_at"}, {"select", "idempotency_step", "run"},
		{"select", "idempotency_request", "run, due_at"}, {"select", "idempotency_expired", "scope, operation, key, status, result_ref, created_at, expires_at"},
		{"execute", "replay_letter, redirect_parked, purge_letters, new_id, last_errors, lane_of", ""},
	},
	"reader": {
		{"select", "installation, birth, cluster, segments, lane, relay, consumer_position, consumer_backfill, consumer_skip, consumer_type, dependency, lane_hold, consumer_hold, consumer_binding, producer_binding, pause", ""},
		{"select", "event, event_0, event_1, event_2, event_3", "lane, xid, seq, time"}, {"select", "scheduled", "lane, due_at, seq, id, source, type, topic, key, time"}, {"select", "parked", "lane, topic, key, place, why, attempts, next_at, errors, first_at, id, source, type, time, letter, partition"},
		{"select", "stored", "consumer, topic, key, place, source, event_id, type, time, partition, offset, attempts, errors, next_at, first_at, failed_at, lease_until, letter"},
		{"select", "letter", "id, origin, consumer, lane, topic, key, place, state, holds"},
	},
}

const lackSQL = `-- rights.lack
select p.privilege || coalesce(' (' || string_agg(a.attname::text, ', ' order by a.attnum) || ')', '') || ' on ' || c.relname
  from unnest($2::text[], $3::text[], $4::text[]) p (privilege, object, attribute)
  join pg_namespace n on n.nspname = $1::text
  join pg_class c on c.relnamespace = n.oid and c.relname = p.object
  left join pg_attribute a on a.attrelid = c.oid and a.attname = p.attribute and p.attribute <> ''
 where case when a.attnum is not null then not has_column_privilege(c.oid, a.attnum, p.privilege)
            when c.relkind in ('r', 'p', 'v') and p.privilege <> 'usage' and p.attribute = '' then not has_table_privilege(c.oid, p.privilege)
            when c.relkind = 'S' and p.privilege = 'usage' then not has_sequence_privilege(c.oid, 'usage') else false end
 group by p.privilege, c.relname, a.attnum is null
union all
select 'execute on ' || f.proname
  from unnest($2::text[], $3::text[]) p (privilege, object)
  join pg_namespace n on n.nspname = $1::text
  join pg_proc f on f.pronamespace = n.oid and f.proname = p.object
 where p.privilege = 'execute' and not has_function_privilege(f.oid, 'execute')
union all
select 'usage on schema ' || n.nspname from pg_namespace n where n.nspname = $1::text and not has_schema_privilege(n.oid, 'usage')
 order by 1`

// Querier is a connection, a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Lack returns what the current role lacks of these rights, as "update on lane" or "insert (by, reason) on letter_action".
func Lack(ctx context.Context, db Querier, schema string, rights []Right) ([]string, error) {
	var privileges, objects, columns []string
	for _, r := range rights {
		for privilege := range strings.SplitSeq(r.Privileges, ", ") {
			for object := range strings.SplitSeq(r.Objects, ", ") {
				for column := range strings.SplitSeq(r.Columns, ", ") {
					privileges, objects, columns = append(privileges, privilege), append(objects, object), append(columns, column)
				}
			}
		}
	}
	rows, err := db.Query(ctx, lackSQL, schema, privileges, objects, columns)
	if err == nil {
		var lack []string
		if lack, err = pgx.CollectRows(rows, pgx.RowTo[string]); err == nil {
			return lack, nil
		}
	}
	return nil, fmt.Errorf("look which rights are missing: %w", err)
}
