package sqlschema

// findVersion tells a schema of version 1, which has no column compatible_from, from a newer one. It reads catalogs only,
// so a role needs no right to the table. $1 the table's name.
const findVersion = `-- sqlschema.find
select to_regclass($1::text) is not null,
       exists (select from pg_attribute a where a.attrelid = to_regclass($1::text) and a.attname = 'compatible_from' and not a.attisdropped)`

// readVersion reads what Migrate made. Every role that may use the schema may read it.
const readVersion = `-- sqlschema.version
select i.version, i.compatible_from from holdfast.installation i`
