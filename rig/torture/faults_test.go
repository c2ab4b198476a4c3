//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/rig/internal/faultproxy"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// An alarm that nothing can sound would be silent after every such fault.
func TestFaults_EveryAlarmIsALineThatTheLibraryLogs(t *testing.T) {
	t.Parallel()
	var code strings.Builder
	for _, name := range []string{"relay", "inbox"} {
		files, err := filepath.Glob(filepath.Join("..", "..", name, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%d files of %s, %v", len(files), name, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
	}
	asked := 0
	for _, f := range catalogue() {
		for _, alarm := range f.alarms {
			for _, message := range alarm.Messages {
				if asked++; !regexp.MustCompile(`Logger\.(Warn|Error)\("` + message).MatchString(code.String()) {
					t.Errorf("%s: nothing logs a warning or an error that begins with %q", f.name, message)
				}
			}
		}
	}
	if asked == 0 {
		t.Error("no fault has an alarm")
	}
}

// The page says how many faults there are, and how many of them need PgBouncer or are made only where they are asked for.
func TestFaults_ThePageSaysHowManyThereAre(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "project", "torture.md"))
	if err != nil {
		t.Fatal(err)
	}
	bare := &ground{small: &smallDisks{why: errors.New("none")}, kafka: &kafkaserver.Server{}, primary: &pgserver.Server{}}
	all, bouncer, long := 0, 0, 0
	for _, f := range catalogue() {
		all++
		if strings.Contains(f.impossible(bare), "PgBouncer") {
			bouncer++
		}
		if f.long {
			long++
		}
	}
	want := fmt.Sprintf("There are %d now (`go run ./rig/torture -list`): %d need PgBouncer, and %d are made only where they are asked for.", all, bouncer, long)
	if !strings.Contains(strings.Join(strings.Fields(string(page)), " "), want) {
		t.Errorf("docs/project/torture.md does not say %q", want)
	}
}

func TestFaults_AStepOfTheClockMovesEveryTimeThatIsComparedWithIt(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	pool := pgtest.New(t).Pool
	if err := holdfast.Migrate(t.Context(), pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), `select table_name || '.' || column_name from information_schema.columns
		join information_schema.tables using (table_schema, table_name)
		where table_schema = 'holdfast' and table_type = 'BASE TABLE' and column_name in ('lease_until', 'seen_until', 'next_at', 'due_at', 'until')
		and table_name not like 'idempotency%' and data_type like 'timestamp%'`) // no part has a guard
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(columns) < 8 {
		t.Fatalf("%q, %v", columns, err)
	}
	for _, c := range columns {
		table, column, _ := strings.Cut(c, ".")
		moves := fmt.Sprintf("update holdfast.%s set %s = ", table, column)
		n := 0
		for _, sql := range clockSteps {
			if strings.HasPrefix(sql, moves) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is moved by %d statements", c, n)
		}
	}
	pgtest.Exec(t, pool, "create table written (due timestamptz)")
	for _, by := range []string{"10 minutes", "-10 minutes"} {
		s := &stage{ground: &ground{admin: pool}}
		heal, err := stepClock(t.Context(), s, by)
		if err == nil {
			err = heal(t.Context())
		}
		if err != nil {
			t.Errorf("by %s: %v", by, err)
		}
	}
}

func TestFaults_AFaultLastsUntilItHasHit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after time.Duration // -1: it cannot miss
		want  time.Duration
		hit   bool
	}{
		"one that cannot miss":  {-1, 0, true},
		"one that has hit":      {0, 0, true},
		"one that hits later":   {3 * time.Second, 3 * time.Second, true},
		"one that does not hit": {time.Hour, holdsOn, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			began, s := time.Now(), &stage{}
			if c.after >= 0 {
				s.hit = func() (bool, error) { return time.Since(began) >= c.after, nil }
			}
			hit, err := s.awaitHit(t.Context())
			if took := time.Since(began); err != nil || hit != c.hit || took < c.want || took > c.want+100*time.Millisecond {
				t.Errorf("%s: hit is %t after %s, %v", name, hit, took, err)
			}
		})
	}
}

func TestFaults_ASilenceLastsForLongerThanOthersWait(t *testing.T) {
	t.Parallel()
	all := map[string]fault{}
	for _, f := range catalogue() {
		all[f.name] = f
	}
	for name, wait := range map[string]time.Duration{"freeze-relay": lease, "freeze-consumer": session, "freeze-kafka": session/10 + 2*kafkaAnswer, "freeze-postgres": lease} {
		if shortest := all[name].hold[0]; shortest <= wait {
			t.Errorf("%s is held for %s at least, and others wait for %s", name, shortest, wait)
		}
	}
	for _, kind := range []string{"lose-up", "lose-down", "blackhole"} {
		for on, wait := range map[string]time.Duration{"relay-postgres": lease, "consumer-kafka": session} {
			if f := all[kind+"-"+on]; f.hold[1] <= wait+time.Second {
				t.Errorf("%s is held for %s at most, and others wait for %s", f.name, f.hold[1], wait)
			}
		}
	}
}

func TestFaults_EveryLinkFaultSaysWhatItHits(t *testing.T) {
	t.Parallel()
	all := faultproxy.Counts{Held: 1, Resets: 1, Delayed: 1, Truncated: 1, CutBefore: 1, CutAfter: 1}
	carried := faultproxy.Counts{Connections: 1, Open: 1, Commits: 1, Up: 1, Down: 1}
	for _, n := range networkFaults {
		if n.hits == nil || n.hits(all) != 1 || n.hits(carried) != 0 {
			t.Errorf("%s: bytes that were carried are a hit, or what it does is none", n.name)
		}
	}
	if cuts(all) != 2 || cuts(carried) != 0 {
		t.Error("a COMMIT that was carried is a hit, or one that was cut is none")
	}
}

// document is docs/project/torture.md.
func document(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/project/torture.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestFaults_TheDocumentSaysWhenLeasesAndSessionsEnd(t *testing.T) {
	t.Parallel()
	if want := fmt.Sprintf("Leases are %g s, sessions %g s", lease.Seconds(), session.Seconds()); !strings.Contains(document(t), want) {
		t.Errorf("docs/project/torture.md does not say %q", want)
	}
}

func TestFaults_TheDocumentNamesTheFaultsThatAreHeldToAnAlarm(t *testing.T) {
	t.Parallel()
	_, list, found := strings.Cut(document(t), "O11 holds these to an alarm:")
	list, _, ended := strings.Cut(list, ".\n")
	if !found || !ended {
		t.Fatal("docs/project/torture.md has no such list")
	}
	said := regexp.MustCompile("`([a-z-]+)`").FindAllStringSubmatch(list, -1)
	var named, held []string
	for _, m := range said {
		named = append(named, m[1])
	}
	for _, f := range catalogue() {
		if f.alarms != nil {
			held = append(held, f.name)
		}
	}
	slices.Sort(named)
	slices.Sort(held)
	if !slices.Equal(named, held) {
		t.Errorf("the document names %q, the catalogue has %q", named, held)
	}
}
