package holdfast_test

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

var (
	rewriteCatalog = flag.Bool("rewrite-catalog", false, "write migrations/catalog.txt anew, from a new installation")
	freezeSchema   = flag.Bool("freeze-schema", false, "freeze the files of this version of the schema: for a release")
)

func TestTheCatalogFileIsThatOfANewInstallation(t *testing.T) {
	if *rewriteCatalog {
		db := pgtest.New(t)
		if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("migrations/catalog.txt", []byte(catalog(t, db.Pool, "holdfast", 8)), 0o644); err != nil {
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
			if diff := cmp.Diff(strings.Split(holdfast.CatalogText, "\n"), strings.Split(catalog(t, pool, c.Schema, c.Lanes), "\n")); diff != "" {
				t.Errorf("schema %s (- migrations/catalog.txt, + a new installation): run go test . -run Catalog -rewrite-catalog\n%s", c.Schema, diff)
			}
		}
	})
}

// frozen lists the files of released versions with their sums, as sha256sum prints them.
const frozen = "migrations/testdata/released.txt"

func TestTheFilesOfReleasedVersionsAreFrozen(t *testing.T) {
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
