package holdfast_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/migrated"
)

// identities are the names of columns that identify something, in whatever table they are. Names of columns with free text or
// one of a few words are not among them.
const identities = `'id', 'event_id', 'source', 'type', 'topic', 'key', 'consumer', 'node', 'owner', 'name', 'entity', 'scope', 'operation', 'route', 'fingerprint'`

// Under the database's collation an upgrade of the operating system can change the order of texts under an index: it then
// misses rows that are there, and lets in what is unique twice.
func TestEveryTextThatIdentifiesHasTheCollationC(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	rows, err := db.Query(t.Context(), `
		select c.relname || '.' || a.attname
		  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
		 where c.relnamespace = 'holdfast'::regnamespace and c.relkind in ('r', 'v') and a.attcollation <> 0
		   and a.attcollation <> (select l.oid from pg_collation l where l.collname = 'C' and l.collnamespace = 'pg_catalog'::regnamespace)
		   and (a.attname in (`+identities+`) and a.atttypid = 'text'::regtype
		        or exists (select from pg_index i where i.indrelid = c.oid and a.attnum = any (i.indkey)))
		union all
		select 'index ' || x.relname || ', column ' || n
		  from pg_index i join pg_class x on x.oid = i.indexrelid, unnest(i.indcollation) with ordinality u (used, n)
		 where x.relnamespace = 'holdfast'::regnamespace and u.used not in (0, (select l.oid from pg_collation l where l.collname = 'C' and l.collnamespace = 'pg_catalog'::regnamespace))`)
	if err != nil {
		t.Fatal(err)
	}
	others, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, column := range others {
		t.Errorf(`%s is not collate "C"`, column)
	}
}

// Without one, Postgres refuses to update and delete rows where a publication FOR ALL TABLES exists.
func TestEveryTableHasAKeyOrAReplicaIdentity(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	rows, err := db.Query(t.Context(), `
		select c.relname from pg_class c
		 where c.relnamespace = 'holdfast'::regnamespace and c.relkind = 'r' and c.relpersistence = 'p' and c.relreplident <> 'f'
		   and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)`)
	if err != nil {
		t.Fatal(err)
	}
	without, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range without {
		t.Errorf("%s has neither a primary key nor REPLICA IDENTITY FULL", table)
	}
}
