package holdfast

// This file holds the statements of Migrate and Check.

// beginMigration keeps what others have created in the session's search path from running as the owner: see plainPath.
const beginMigration = `begin isolation level read committed; set local search_path = pg_catalog, pg_temp`

const lockMigrations = `-- holdfast.migrate_lock
select pg_advisory_xact_lock(1751541606, hashtext('migrate ' || $1::text))`

const schemaExists = `-- holdfast.schema_exists
select to_regnamespace($1::text) is not null`

// readMaxPayload reads the limit in the body of the function, which not every role may call. $1 the function's name.
const readMaxPayload = `-- holdfast.max_payload
select btrim(p.prosrc, ' select')::integer from pg_proc p where p.oid = to_regprocedure($1::text) and p.prosrc ~ '^ select [0-9]{1,9} $'`

// setMaxPayload has the limit in it, because a statement that creates takes no parameters.
const setMaxPayload = `create or replace function holdfast.max_payload() returns integer
language sql stable parallel safe as $$ select %d $$`

const askServer = `-- holdfast.server
select current_setting('server_version_num')::int, current_setting('server_encoding'), pg_is_in_recovery()`

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
