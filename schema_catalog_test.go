package holdfast_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/catalog"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

var (
	rewriteCatalog = flag.Bool("rewrite-catalog", false, "write internal/catalog/catalog.txt anew, from a new installation")
	freezeSchema   = flag.Bool("freeze-schema", false, "freeze the files of this version of the schema: for a release")
)

func TestSchemaCatalog_TheCatalogFileIsThatOfANewInstallation(t *testing.T) {
	if *rewriteCatalog {
		db := pgtest.New(t)
		if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("internal/catalog/catalog.txt", []byte(catalogOf(t, db.Pool, "holdfast", 8)), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Parallel()
	on(t, func(t *testing.T, db *pgtest.DB) {
		// It is the same whatever the schema is called and the session prefers.
		pool := db.PoolWith(t, func(c *pgxpool.Config) {
			maps.Copy(c.ConnConfig.RuntimeParams, map[string]string{"timezone": "Asia/Kolkata", "datestyle": "German", "quote_all_identifiers": "on"})
		})
		for _, c := range []holdfast.SchemaConfig{{Schema: "holdfast", Lanes: 8}, {Schema: "l", Lanes: 3}, {Schema: "select", Lanes: 256}} {
			if err := holdfast.Migrate(t.Context(), db.Pool, c); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(catalog.Text, "\n"), strings.Split(catalogOf(t, pool, c.Schema, c.Lanes), "\n")); diff != "" {
				t.Errorf("schema %s (- internal/catalog/catalog.txt, + a new installation): run go test . -run Catalog -rewrite-catalog\n%s", c.Schema, diff)
			}
		}
	})
}

// frozen lists the files of released versions with their sums, as sha256sum prints them.
const frozen = "migrations/testdata/released.txt"

func TestSchemaCatalog_TheFilesOfReleasedVersionsAreFrozen(t *testing.T) {
	if *freezeSchema {
		freeze(t)
	}
	text, err := os.ReadFile(frozen)
	if err != nil {
		t.Fatal(err)
	}
	newest := 0
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		sum, file, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed[file] = true
		content, err := os.ReadFile(filepath.Join("migrations", file))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != sum {
			t.Errorf("migrations/%s was changed after its release: databases have been made and upgraded by it. Change it back, and write another version (migrations/README.md)", file)
		}
		if version, ok := strings.CutPrefix(strings.TrimSuffix(file, ".sql"), "testdata/"); ok {
			n, err := strconv.Atoi(version)
			if err != nil {
				t.Fatal(err)
			}
			newest = max(newest, n)
		}
	}
	for version := 1; version <= newest; version++ {
		for _, file := range filesOf(version) {
			if !listed[file] {
				t.Errorf("%s does not list %s", frozen, file)
			}
		}
	}
	if holdfast.SchemaVersion != newest && holdfast.SchemaVersion != newest+1 {
		t.Errorf("the version is %d, the newest released one %d: one comes after the other", holdfast.SchemaVersion, newest)
	}
}

// filesOf are the files of a version, below migrations: a new installation, and what makes it of the version before.
func filesOf(version int) []string {
	files := []string{fmt.Sprintf("testdata/%d.sql", version)}
	if version > 1 {
		files = append(files, fmt.Sprintf("%d.sql", version))
	}
	return files
}

// freeze writes the script of a new installation, and the sums of the files of all versions. It changes no file that was frozen.
func freeze(t *testing.T) {
	t.Helper()
	script, err := holdfast.SQL(holdfast.SchemaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	script = strings.ReplaceAll(strings.TrimSuffix(strings.TrimPrefix(script, "begin;\n\n"), "\ncommit;\n"), `"holdfast"`, "holdfast")
	file := filepath.Join("migrations", "testdata", fmt.Sprint(holdfast.SchemaVersion, ".sql"))
	if _, err := os.Stat(file); err == nil {
		t.Fatalf("version %d is frozen already", holdfast.SchemaVersion)
	}
	if err := os.WriteFile(file, []byte(script), 0o644); err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(frozen)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(old)), "\n")
	for _, file := range filesOf(holdfast.SchemaVersion) {
		content, err := os.ReadFile(filepath.Join("migrations", file))
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("%x  %s", sha256.Sum256(content), file))
	}
	sort.SliceStable(lines, func(i, j int) bool { return lines[i][66:] < lines[j][66:] })
	if err := os.WriteFile(frozen, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// identities are the names of columns that identify something, in whatever table they are. Names of columns with free text or
// one of a few words are not among them.
const identities = `'id', 'event_id', 'source', 'type', 'topic', 'key', 'consumer', 'node', 'owner', 'name', 'entity', 'scope', 'operation', 'route', 'fingerprint'`

// Under the database's collation an upgrade of the operating system can change the order of texts under an index: it then
// misses rows that are there, and lets in what is unique twice.
func TestSchemaCatalog_EveryTextThatIdentifiesHasTheCollationC(t *testing.T) {
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
func TestSchemaCatalog_EveryTableHasAKeyOrAReplicaIdentity(t *testing.T) {
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

// definition is Postgres' own text of an object, and the script that makes it anew of that text: what pg_restore and pg_upgrade do.
type definition struct{ Name, Text, Script string }

const definitions = `
with relation as (select c.*, c.oid::regclass::text as name from pg_class c where c.relnamespace = 'holdfast'::regnamespace)
select 'constraint ' || r.name || '.' || k.conname, pg_get_constraintdef(k.oid),
       format('alter table %s drop constraint %I cascade, add constraint %2$I %s', r.name, k.conname, pg_get_constraintdef(k.oid))
  from relation r join pg_constraint k on k.conrelid = r.oid where k.contype in ('c', 'p', 'u', 'f', 'x') and k.coninhcount = 0
union all
select 'index ' || i.indexrelid::regclass, pg_get_indexdef(i.indexrelid), format('drop index %s; %s', i.indexrelid::regclass, pg_get_indexdef(i.indexrelid))
  from relation r join pg_index i on i.indrelid = r.oid where not exists (select from pg_constraint k where k.conindid = i.indexrelid)
union all
select 'view ' || r.name, pg_get_viewdef(r.oid), format('create or replace view %s with (%s) as %s', r.name, array_to_string(r.reloptions, ', '), pg_get_viewdef(r.oid))
  from relation r where r.relkind = 'v'
union all
select 'default ' || r.name || '.' || a.attname, pg_get_expr(d.adbin, d.adrelid), format('alter table %s alter column %I set default %s', r.name, a.attname, pg_get_expr(d.adbin, d.adrelid))
  from relation r join pg_attrdef d on d.adrelid = r.oid join pg_attribute a on a.attrelid = r.oid and a.attnum = d.adnum where a.attgenerated = ''
union all
select 'trigger ' || r.name || '.' || t.tgname, pg_get_triggerdef(t.oid), format('drop trigger %I on %s; %s', t.tgname, r.name, pg_get_triggerdef(t.oid))
  from relation r join pg_trigger t on t.tgrelid = r.oid where not t.tgisinternal
union all
select 'policy ' || r.name || '.' || p.polname, concat_ws(' ', p.polcmd, pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid)),
       format('drop policy %I on %s; create policy %1$I on %2$s', p.polname, r.name) || coalesce(' using (' || pg_get_expr(p.polqual, p.polrelid) || ')', '') ||
       coalesce(' with check (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')', '')
  from relation r join pg_policy p on p.polrelid = r.oid
union all
select 'function ' || p.oid::regprocedure, pg_get_functiondef(p.oid), pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = 'holdfast'::regnamespace
order by 1`

func definitionsOf(t *testing.T, db *pgtest.DB) map[string]definition {
	t.Helper()
	rows, err := db.Query(t.Context(), definitions)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[definition])
	if err != nil {
		t.Fatal(err)
	}
	all, kinds := map[string]definition{}, map[string]bool{}
	for _, d := range list {
		all[d.Name] = d
		kind, _, _ := strings.Cut(d.Name, " ")
		kinds[kind] = true
	}
	if len(kinds) != 7 || len(all) < 150 {
		t.Fatalf("there are %d definitions of the kinds %v", len(all), kinds)
	}
	return all
}

// A dump has the texts that Postgres makes of a schema, and a restored one was made of these. Both must be the schema, also after
// the next restore and for the check.
func TestSchemaCatalog_ASchemaMadeOfItsOwnTextsIsTheSame(t *testing.T) {
	t.Parallel()
	on(t, func(t *testing.T, db *pgtest.DB) {
		if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
			t.Fatal(err)
		}
		before := definitionsOf(t, db)
		for _, d := range before {
			pgtest.Exec(t, db.Pool, d.Script, pgx.QueryExecModeSimpleProtocol)
		}
		after := definitionsOf(t, db)
		for name, d := range before {
			if diff := cmp.Diff(d.Text, after[name].Text); diff != "" {
				t.Errorf("%s (- as schema.sql makes it, + as its own text makes it): write it so that both are equal\n%s", name, diff)
			}
		}
		if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
			t.Error(err)
		}
		if installed, built, err := catalog.Hashes(t.Context(), db.Pool, ""); err != nil || installed != built {
			t.Errorf("the hash is %s, that of the build %s: %v", installed, built, err)
		}
	})
}

// Installations of before 2026-11-28 have nested conditions, and what pg_restore makes of them has not.
func TestSchemaCatalog_GroupsThatMakeNoDifferenceAreNoDrift(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for _, c := range []struct {
		change string
		drift  bool
	}{
		{`check (octet_length(topic) between 1 and 249 and topic !~ '[^a-zA-Z0-9._-]' and topic not in ('.', '..'))`, false},
		{`check (octet_length(topic) >= 1 and (octet_length(topic) <= 249 and (topic !~ '[^a-zA-Z0-9._-]' and topic not in ('.', '..'))))`, false},
		{`check (octet_length(topic) between 1 and 249 and topic !~ '[^a-zA-Z0-9._-]' or topic not in ('.', '..'))`, true},
		{`check (octet_length(topic) between 1 and 249 and (topic !~ '[^a-zA-Z0-9._-]' or topic not in ('.', '..')))`, true},
		{`check (not (octet_length(topic) between 1 and 249 and topic !~ '[^a-zA-Z0-9._-]') and topic not in ('.', '..'))`, true},
	} {
		pgtest.Exec(t, db.Pool, "alter table holdfast.scheduled drop constraint topic_is_a_kafka_name, add constraint topic_is_a_kafka_name "+c.change)
		if err := holdfast.Check(t.Context(), db.Pool, holdfast.SchemaConfig{}); (err != nil) != c.drift {
			t.Errorf("%s: %v", c.change, err)
		}
		installed, built, err := catalog.Hashes(t.Context(), db.Pool, "")
		if err != nil || (installed != built) != c.drift {
			t.Errorf("%s: the hash is %s, that of the build %s: %v", c.change, installed, built, err)
		}
	}
}

var rewriteSegments = flag.Bool("rewrite-segments", false, "write the segments 1 to 3 of schema.sql anew, as segment 0 is")

// segments is how many the log has.
const segments = 4

var (
	// declared is a line that makes or changes segment 0, and the same lines of the others after it.
	declared = regexp.MustCompile(`(?m)^((?:create|alter) table holdfast\.event_)0(\b.*\n)(?:(?:create|alter) table holdfast\.event_[1-9]\b.*\n)*`)
	// indexed is the same for the names of indexes, which have the number in two places.
	indexed = regexp.MustCompile(`(?m)^(create index event_)0(_\w+ on holdfast\.event_)0(\b.*\n)(?:create index event_[1-9]_.*\n)*`)
	// chosen is the branch of segment 0 in a CASE, and those of the others.
	chosen = regexp.MustCompile(`(?s)(\n +when )0( then\n +insert into holdfast\.event_)0( .*?)(?:\n +when [1-9] then\n.*?)?(\n +end case;)`)
)

// withSegments is a schema in which every segment is written as segment 0 is.
func withSegments(schema string) string {
	every := func(text func(n string) string) string {
		var all strings.Builder
		for n := range segments {
			all.WriteString(text(strconv.Itoa(n)))
		}
		return all.String()
	}
	schema = indexed.ReplaceAllStringFunc(schema, func(found string) string {
		part := indexed.FindStringSubmatch(found)
		return every(func(n string) string { return part[1] + n + part[2] + n + part[3] })
	})
	schema = declared.ReplaceAllStringFunc(schema, func(found string) string {
		part := declared.FindStringSubmatch(found)
		return every(func(n string) string { return part[1] + n + part[2] })
	})
	return chosen.ReplaceAllStringFunc(schema, func(found string) string {
		part := chosen.FindStringSubmatch(found)
		return every(func(n string) string { return part[1] + n + part[2] + n + part[3] }) + part[4]
	})
}

// PL/pgSQL keeps the plan of an insert only where the table's name stands in it, so each segment has its own. Nobody writes
// them by hand: change segment 0, then run go test . -run Segment -rewrite-segments.
func TestSchemaCatalog_EverySegmentIsWrittenAsSegmentZero(t *testing.T) {
	schema, want := holdfast.SchemaSQL(), withSegments(holdfast.SchemaSQL())
	if *rewriteSegments {
		if err := os.WriteFile("schema.sql", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if schema != want {
		lines, wanted := strings.Split(schema, "\n"), strings.Split(want, "\n")
		for i := range lines {
			if i >= len(wanted) || lines[i] != wanted[i] {
				t.Fatalf("schema.sql, line %d: a segment is not written as segment 0 is: change that one, then run go test . -run Segment -rewrite-segments\n%s", i+1, lines[i])
			}
		}
		t.Fatal("schema.sql lacks the end of a segment: run go test . -run Segment -rewrite-segments")
	}
	for n := range segments {
		for _, text := range []string{"create table holdfast.event_%d (", "create index event_%d_lane_xid_seq on", "create index event_%d_cut on", "alter table holdfast.event_%d set ("} {
			if text := fmt.Sprintf(text, n); strings.Count(schema, text) != 1 {
				t.Errorf("schema.sql says %q %d times", text, strings.Count(schema, text))
			}
		}
		if insert := fmt.Sprintf("insert into holdfast.event_%d (", n); strings.Count(schema, insert) != 3 {
			t.Errorf("schema.sql has %d branches that insert into segment %d, want those of append, append_unchecked and append_one", strings.Count(schema, insert), n)
		}
	}
}
