package holdfast

// This file holds the statements of Migrate and Check.

// beginMigration keeps what others have created in the session's search path from running as the owner: see plainPath.
const beginMigration = `begin isolation level read committed; set local search_path = pg_catalog, pg_temp`

const lockMigrations = `-- holdfast.migrate_lock
select pg_advisory_xact_lock(1751541606, hashtext('migrate ' || $1::text))`

const schemaExists = `-- holdfast.schema_exists
select to_regnamespace($1::text) is not null`

const readLanes = `-- holdfast.lanes
select i.lanes from holdfast.installation i`

// readMaxPayload reads the limit in the body of the function, which not every role may call. $1 the function's name.
const readMaxPayload = `-- holdfast.max_payload
select btrim(p.prosrc, ' select')::integer from pg_proc p where p.oid = to_regprocedure($1::text) and p.prosrc ~ '^ select [0-9]{1,9} $'`

// setMaxPayload has the limit in it, because a statement that creates takes no parameters.
const setMaxPayload = `create or replace function holdfast.max_payload() returns integer
language sql stable parallel safe as $$ select %d $$`

const askServer = `-- holdfast.server
select current_setting('server_version_num')::int, current_setting('server_encoding'), pg_is_in_recovery()`

// plainCatalog makes readCatalog print names and times in one way, whatever the session prefers, until the transaction ends.
// $1 the schema's name, quoted.
const plainCatalog = `-- holdfast.plain_catalog
select set_config('search_path', $1::text, true), set_config('timezone', 'UTC', true), set_config('datestyle', 'ISO', true),
       set_config('intervalstyle', 'postgres', true), set_config('bytea_output', 'hex', true), set_config('quote_all_identifiers', 'off', true),
       set_config('standard_conforming_strings', 'on', true)`

// readCatalog reads what Postgres knows of the schema's objects: a name and a description of each. It reads catalogs only,
// which every role may. The answer is the same for every schema name, number of lanes, limit of payloads, current segment and
// version of Postgres. $1 the schema's name, quoted; $2 the number of lanes. plainCatalog comes first.
//
// Left out is what holds no statement of ours up: the order of columns, tablespaces, owners, storage parameters of indexes, how
// columns are compressed and stored, the NOT NULL constraints that Postgres names since version 18 (the column has them), and
// row security where a policy of ours says which rows are whose: the first binding of a consumer turns it on. A view loses
// its alias, which Postgres prints up to 15 only.
const readCatalog = `-- holdfast.catalog
with relation as (
    select c.*, case c.relkind when 'r' then 'table' when 'v' then 'view' when 'S' then 'sequence' else 'relation' end as kind
      from pg_class c
     where c.relnamespace = to_regnamespace($1::text) and c.relkind in ('r', 'v', 'S', 'm', 'p', 'f')
), object (name, how) as (
    select r.kind || ' ' || r.relname,
           case r.kind
           when 'view' then concat_ws(' ', 'with ' || array_to_string(r.reloptions, ', '), 'as',
                regexp_replace(regexp_replace(pg_get_viewdef(r.oid), '\m[a-z]\.', '', 'g'), '\s+', ' ', 'g'))
           when 'sequence' then (select format('%s from %s by %s between %s and %s cache %s', format_type(s.seqtypid, null), s.seqstart, s.seqincrement,
                                       s.seqmin, s.seqmax, s.seqcache) || case when s.seqcycle then ' cycle' else '' end
                                   from pg_sequence s where s.seqrelid = r.oid)
           else concat_ws(' ', case r.relpersistence when 'u' then 'unlogged' else 'logged' end,
                'of kind ' || nullif(r.relkind::text, 'r'),
                'inherits ' || (select string_agg(p.relname, ', ' order by p.relname) from pg_inherits h join pg_class p on p.oid = h.inhparent where h.inhrelid = r.oid),
                case when r.relrowsecurity and not exists (select from pg_policy y where y.polrelid = r.oid and y.polname = 'own_rows') then 'with row security' end)
           end
      from relation r
    union all
    select 'storage ' || r.relname,
           concat_ws(' ', 'replica identity ' || case r.relreplident when 'd' then 'default' when 'f' then 'full' when 'n' then 'nothing' else 'index' end,
                (select string_agg(o, ' ' order by o) from unnest(r.reloptions) o),
                (select string_agg('toast.' || o, ' ' order by o) from pg_class t, unnest(t.reloptions) o where t.oid = r.reltoastrelid))
      from relation r where r.kind = 'table'
    union all
    select 'public to ' || r.relname, coalesce((select string_agg(lower(x.privilege_type), ' ' order by x.privilege_type) from aclexplode(r.relacl) x where x.grantee = 0), 'nothing')
      from relation r
    union all
    select 'column ' || r.relname || '.' || a.attname,
           concat_ws(' ', format_type(a.atttypid, a.atttypmod),
                (select 'collate "' || l.collname || '"' from pg_collation l where l.oid = a.attcollation and l.oid <> y.typcollation),
                case when a.attnotnull then 'not null' end,
                case a.attidentity when 'a' then 'generated always as identity' when 'd' then 'generated by default as identity' end,
                case when a.attgenerated <> '' then 'generated' end,
                'default ' || pg_get_expr(d.adbin, d.adrelid))
      from relation r
      join pg_attribute a on a.attrelid = r.oid and a.attnum > 0 and not a.attisdropped
      join pg_type y on y.oid = a.atttypid
      left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where r.kind <> 'sequence'
    union all
    select 'constraint ' || r.relname || '.' || k.conname, pg_get_constraintdef(k.oid)
      from relation r join pg_constraint k on k.conrelid = r.oid where k.contype not in ('n', 't')
    union all
    select 'index ' || x.relname,
           concat_ws(' ', 'on ' || r.relname, case when i.indisunique then 'unique' end, case when not i.indisvalid then 'invalid' end,
                regexp_replace(regexp_replace(pg_get_indexdef(i.indexrelid), '^.*? USING ', 'using '), ' WITH \([^)]*\)', ''))
      from relation r join pg_index i on i.indrelid = r.oid join pg_class x on x.oid = i.indexrelid
     where not exists (select from pg_constraint k where k.conindid = i.indexrelid and k.contype in ('p', 'u', 'x'))
    union all
    select 'trigger ' || r.relname || '.' || t.tgname, regexp_replace(pg_get_triggerdef(t.oid, true), '\s+', ' ', 'g')
      from relation r join pg_trigger t on t.tgrelid = r.oid where not t.tgisinternal
    union all
    select 'rule ' || r.relname || '.' || u.rulename, regexp_replace(pg_get_ruledef(u.oid), '\s+', ' ', 'g')
      from relation r join pg_rewrite u on u.ev_class = r.oid where u.rulename <> '_RETURN'
    union all
    select 'policy ' || r.relname || '.' || y.polname, regexp_replace(concat_ws(' ', y.polcmd, 'using ' || pg_get_expr(y.polqual, y.polrelid), 'check ' || pg_get_expr(y.polwithcheck, y.polrelid)), '\s+', ' ', 'g')
      from relation r join pg_policy y on y.polrelid = r.oid
    union all
    select 'function ' || p.proname || '()',
           format('(%s) returns %s', pg_get_function_arguments(p.oid), coalesce(pg_get_function_result(p.oid), '-')) ||
           concat_ws(' ', ' language ' || l.lanname,
                case p.provolatile when 'i' then 'immutable' when 's' then 'stable' else 'volatile' end,
                'parallel ' || case p.proparallel when 's' then 'safe' when 'r' then 'restricted' else 'unsafe' end,
                case when p.proisstrict then 'strict' end, case when p.proleakproof then 'leakproof' end,
                case when p.prosecdef then 'security definer' end,
                'set ' || array_to_string(p.proconfig, ', '),
                'body ' || left(encode(sha256(convert_to(
                    case when p.proname = 'lanes' and p.prosrc = format(' select %s ', $2::integer) then ' select 8 '
                         when p.proname = 'current_segment' and p.prosrc ~ '^ select [0-3] $' then ' select 0 '
                         when p.proname = 'producers_bound' and p.prosrc = ' select true ' then ' select false '
                         when p.proname = 'max_payload' and p.prosrc ~ '^ select [1-9][0-9]{0,7} $' then ' select 1032192 '
                         else replace(p.prosrc, $1::text || '.', 'holdfast.') end, 'UTF8')), 'hex'), 16))
      from pg_proc p join pg_language l on l.oid = p.prolang where p.pronamespace = to_regnamespace($1::text)
    union all
    select 'public to ' || p.proname || '()',
           coalesce((select string_agg(lower(x.privilege_type), ' ' order by x.privilege_type) from aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) x where x.grantee = 0), 'nothing')
      from pg_proc p where p.pronamespace = to_regnamespace($1::text)
)
select o.name, string_agg(o.how, ' and ' order by o.how collate "C") from object o group by o.name order by o.name collate "C"`

// readRowSecurity reads which tables with a policy of ours have row security on, and which off. $1 the schema's name, quoted.
const readRowSecurity = `-- holdfast.row_security
select array_agg(c.relname::text order by c.relname) filter (where c.relrowsecurity), array_agg(c.relname::text order by c.relname) filter (where not c.relrowsecurity)
  from pg_policy y join pg_class c on c.oid = y.polrelid
 where y.polname = 'own_rows' and c.relnamespace = to_regnamespace($1::text)`

// readStrangers reads the roles of bindings that do not exist: such a binding holds for nobody.
const readStrangers = `-- holdfast.strangers
select distinct b.role::text from (select c.role from holdfast.consumer_binding c union all select p.role from holdfast.producer_binding p) b
 where not exists (select from pg_roles r where r.oid = b.role) order by 1`

// readUnchecked says whether a producer is bound and writers are not asked: the trigger of producer_binding writes the function.
const readUnchecked = `-- holdfast.unchecked
select exists (select from holdfast.producer_binding) and exists (
       select from pg_proc p where p.oid = 'holdfast.producers_bound()'::regprocedure and p.prosrc <> ' select true ')`

// readMisdirected says whether writers write to another segment than the current one: the trigger of segments writes the function.
const readMisdirected = `-- holdfast.misdirected
select exists (select from holdfast.segments s, pg_proc p where p.oid = 'holdfast.current_segment()'::regprocedure and p.prosrc <> format(' select %s ', s.current))`

const mayReadSegments = `-- holdfast.may_read_segments
select has_table_privilege('holdfast.segments', 'select')`

const mayReadBindings = `-- holdfast.may_read_bindings
select has_table_privilege('holdfast.consumer_binding', 'select') and has_table_privilege('holdfast.producer_binding', 'select')`
