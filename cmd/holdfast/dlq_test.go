package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operate"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// installed gives a database with the schema, which the command line finds.
func installed(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	t.Setenv("HOLDFAST_SCHEMA", "holdfast")
	wantStatus(t, 0, "version 2", "migrate")
	return db
}

// letters makes n open letters of a consumer, of one fingerprint.
func letters(t *testing.T, db *pgtest.DB, consumer, fingerprint string, n int) {
	t.Helper()
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, payload, hash)
		select 'inbox', $1, $2, $2, $2 || n, 's', 'order.placed', 'orders', 'k' || n, now(), 'the secret', sha256('the secret') from generate_series(1, $3::int) n`, consumer, fingerprint, n)
}

func TestDLQ_EveryFlagOfAFilterChoosesByItself(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	db := installed(t)
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter (origin, consumer, reason, fingerprint, event_id, source, type, topic, key, time, hash, last_at) values
		('inbox', 'billing', 'r', 'f1', 'e1', 's1', 't1', 'o1', 'k1', now(), '', now() - interval '2 days'), ('relay', '', 'r', 'f2', 'e2', 's2', 't2', 'o2', 'k2', now(), '', now())`)
	day := time.Now().Add(-24 * time.Hour).UTC().Format(time.RFC3339)
	for flags, want := range map[string]string{
		"--id 1": `"event_id":"e1"`, "--origin relay": `"event_id":"e2"`, "--consumer billing": `"event_id":"e1"`, "--type t2": `"event_id":"e2"`,
		"--topic o1": `"event_id":"e1"`, "--key k2": `"event_id":"e2"`, "--source s1": `"event_id":"e1"`, "--event-id e2": `"event_id":"e2"`,
		"--fingerprint f1": `"event_id":"e1"`, "--since " + day: `"event_id":"e2"`, "--until " + day: `"event_id":"e1"`, "--within 1d": `"event_id":"e2"`, "--within 24h": `"event_id":"e2"`,
	} {
		args := strings.Fields(flags)
		if out := wantStatus(t, 0, want, append([]string{"dlq", "list", "--json"}, args...)...); strings.Count(out, "\n") != 1 {
			t.Errorf("%s chooses\n%s", flags, out)
		}
		wantStatus(t, 0, "1 dead letter would be replayed", append([]string{"dlq", "replay", "--dry-run"}, args...)...)
		wantStatus(t, 0, "1 dead letter would be discarded", append([]string{"dlq", "discard", "--dry-run"}, args...)...)
		if out := wantStatus(t, 0, `"letters":1`, append([]string{"dlq", "groups", "--json"}, args...)...); strings.Count(out, "\n") != 1 {
			t.Errorf("%s groups\n%s", flags, out)
		}
	}
	for _, wrong := range []string{"30x", "-1h", "-3d", "d", "1e9d"} {
		wantStatus(t, 2, "write it like", "dlq", "list", "--within="+wrong)
	}
}

func TestDLQ_NothingIsReplayedOrDiscardedBecauseAFilterWasForgotten(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "f", 3)
	for _, command := range []string{"replay", "discard"} {
		wantStatus(t, 2, "give a filter", "dlq", command, "--reason", "fixed")
		wantStatus(t, 2, "give a filter", "dlq", command, "--reason", "fixed", "--limit", "1")
		wantStatus(t, 2, "one of them", "dlq", command, "--reason", "fixed", "--all", "--consumer", "billing")
		wantStatus(t, 2, "missing flags: --reason", "dlq", command, "--all")
	}
	wantStatus(t, 2, "one of them", "dlq", "discard", "1", "--consumer", "billing", "--reason", "r")
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter where state = 'open'"); n != 3 {
		t.Fatalf("%d letters are open, want 3", n)
	}
	wantStatus(t, 0, "dead letter 2 is discarded", "dlq", "discard", "1", "2", "--reason", "r")
	wantStatus(t, 0, "1 dead letter is discarded", "dlq", "discard", "--all", "--reason", "r")
}

func TestDLQ_ALetterThatDoesNotExistIsNamedAndNothingIsChanged(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "f", 2)
	for _, command := range []string{"dlq replay --id 1 --id 77 --id 78 --id 77", "dlq replay --dry-run --id 77 --id 78", "dlq discard --id 78 --id 1 --id 77", "dlq discard 1 77 78"} {
		args := append(strings.Fields(command), "--reason", "r", "--by", "ann")
		status, out, errOut := call(t, args...)
		if status != 1 || out != "" || strings.Count(errOut, "letter 77: no such letter") != 1 || !strings.Contains(errOut, "letter 78: no such letter") || strings.Contains(errOut, "letter 1:") {
			t.Errorf("%s: status %d\n%s%s", command, status, out, errOut)
		}
	}
	wantStatus(t, 1, "letter 77: no such letter", "dlq", "edit", "77", "--tombstone", "--reason", "r")
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter_action"); n != 0 {
		t.Errorf("%d letters were changed", n)
	}
	const shows = "being re-delivered; holdfast dlq list"
	wantStatus(t, 0, "1 dead letter is "+shows+" --id=1 --consumer=billing --state any shows", "dlq", "replay", "--id", "1", "--consumer", "billing", "--reason", "r")
	wantStatus(t, 0, "0 dead letters are "+shows+" --id=1 --state any shows", "dlq", "replay", "--id", "1", "--reason", "again")
	wantStatus(t, 0, "dead letter 1 is not open: it is replaying", "dlq", "replay", "1", "--reason", "again")
	wantStatus(t, 0, "1 dead letter is "+shows+" --state any shows", "dlq", "replay", "--all", "--reason", "r")
}

func TestDLQ_AReplaySaysWhichOfTheNamedLettersAreNotOpen(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "f", 105) // more than a page
	pgtest.Exec(t, db.Pool, "update holdfast.letter set state = case when id = 2 then 'replayed' when id = 3 then 'discarded' else 'open' end")
	const said = "dead letter 2 is not open: it is replayed\ndead letter 3 is not open: it is discarded\n"
	for _, c := range []struct{ command, out, errOut string }{
		{"dlq replay --dry-run 3 1 2 2", "1 dead letter would be replayed\n", said},
		{"dlq replay 3 1 2 2 --reason r", "1 dead letter is being re-delivered;", said},
		{"dlq replay 2 --reason r", "0 dead letters are being re-delivered;", "dead letter 2 is not open: it is replayed\n"},
		{"dlq replay 4 --reason r", "1 dead letter is being re-delivered;", ""},
	} {
		status, out, errOut := call(t, strings.Fields(c.command)...)
		if status != 0 || !strings.HasPrefix(out, c.out) || errOut != c.errOut {
			t.Errorf("%s: status %d\n%s%s", c.command, status, out, errOut)
		}
	}
	pgtest.Exec(t, db.Pool, "delete from holdfast.stored")
	pgtest.Exec(t, db.Pool, "update holdfast.letter set state = case when id = 105 then 'discarded' else 'open' end")
	many := []string{"dlq", "replay", "--reason", "r"}
	for id := range 105 {
		many = append(many, fmt.Sprint(id+1))
	}
	if _, out, errOut := call(t, many...); !strings.HasPrefix(out, "104 dead letters are being") || errOut != "dead letter 105 is not open: it is discarded\n" {
		t.Errorf("of 105 letters it says\n%s%s", out, errOut)
	}
}

func TestDLQ_ADryRunShowsWhichLettersAreMeant(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "it's broken", 25)
	letters(t, db, "mail", "f", 1)
	out := wantStatus(t, 0, "25 dead letters would be replayed", "dlq", "replay", "--dry-run", "--fingerprint", "it's broken")
	if !strings.Contains(out, "it's broken") || strings.Count(out, "billing") != operate.Shown || !strings.Contains(out, `and 5 more: holdfast dlq list --fingerprint="it's broken" --after 20`) || strings.Contains(out, "secret") {
		t.Errorf("it shows\n%s", out)
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.letter_action"); n != 0 {
		t.Error("a dry run did something")
	}
}

func TestDLQ_AListThatEndsEarlySaysHowToGoOn(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	db := installed(t)
	letters(t, db, "billing", "f", 30)
	wantStatus(t, 0, "there are more: add --after 20", "dlq", "list", "--limit", "20")
	for _, rest := range [][]string{{"--limit", "30"}, {"--after", "20"}, {"--after", "30"}} {
		if out := wantStatus(t, 0, "REASON", append([]string{"dlq", "list"}, rest...)...); strings.Contains(out, "more") {
			t.Errorf("%v shows\n%s", rest, out)
		}
	}
	pgtest.Exec(t, db.Pool, "update holdfast.letter set errors = array_fill(repeat('x', 65536), array[20])")
	wantStatus(t, 0, "there are more: add --after 26", "dlq", "list", "--limit", "30") // its bytes end the page
}

func TestDLQ_GroupsShowWhatToLookAtFirst(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "rare", 1)
	letters(t, db, "billing", "often", 4)
	out := wantStatus(t, 0, "holdfast dlq show 5", "dlq", "groups")
	if often, rare := strings.Index(out, "often"), strings.Index(out, "rare"); often < 0 || rare < often {
		t.Errorf("the groups are\n%s", out)
	}
	var g operate.JSONGroup
	line, _, _ := strings.Cut(wantStatus(t, 0, `"often"`, "dlq", "groups", "--json"), "\n")
	if err := json.Unmarshal([]byte(line), &g); err != nil || g.Letters != 4 || g.Letter != 5 || g.Reason != "often" || g.FirstAt.IsZero() {
		t.Errorf("%s: %+v, %v", line, g, err)
	}
	if out := wantStatus(t, 0, "", "dlq", "groups", "--consumer", "nobody"); strings.Count(out, "\n") != 1 {
		t.Errorf("no groups are\n%s", out)
	}
	// The command that it prints selects the letters of the group alone, though another consumer has the same kind of failure.
	letters(t, db, "mail", "often", 3)
	_, command, _ := strings.Cut(wantStatus(t, 0, "holdfast dlq show 5", "dlq", "groups"), "its dead letters: holdfast ")
	if want := "dlq list --consumer=billing --type=order.placed --topic=orders --fingerprint=often\n"; command != want {
		t.Errorf("the command is %q, want %q", command, want)
	}
	if out := wantStatus(t, 0, "", strings.Fields(command)...); strings.Count(out, "often") != 4 || strings.Contains(out, "mail") {
		t.Errorf("the letters of the group are\n%s", out)
	}
}

// lettersOfTheFirstGroup is the command that dlq groups prints with these flags, "" if it prints none.
func lettersOfTheFirstGroup(t *testing.T, flags ...string) string {
	t.Helper()
	out := wantStatus(t, 0, "example of the first group: holdfast dlq show ", append([]string{"dlq", "groups"}, flags...)...)
	if strings.ContainsAny(out, "\x1b\u202e") {
		t.Errorf("a terminal obeys %q", out)
	}
	_, command, _ := strings.Cut(out, "its dead letters: ")
	return strings.TrimSuffix(command, "\n")
}

func TestDLQ_TheLettersOfAGroupAreThoseThatTheUserChose(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "-f", 4)
	pgtest.Exec(t, db.Pool, "update holdfast.letter set state = 'replayed', type = '-t', consumer = '--all', source = 'its \"own\"' where id < 3")
	pgtest.Exec(t, db.Pool, "update holdfast.letter set key = '-k' where id < 3")
	flags := []string{"--id=1", "--id=2", "--id=3", "--origin=inbox", "--key=-k", "--source=its \"own\"", "--event-id=-f1", "--since=2026-01-31T00:00:00Z", "--until=2126-01-31T00:00:00.5Z", "--within=1d", "--state=replayed"}
	command := lettersOfTheFirstGroup(t, flags...)
	want := `holdfast dlq list --id=1 --id=2 --id=3 --consumer=--all --type=-t --topic=orders --key=-k --source='its "own"' --event-id=-f1 --fingerprint=-f --since=2026-01-31T00:00:00Z --until=2126-01-31T00:00:00.5Z --within=24h0m0s --state=replayed`
	if command != want {
		t.Fatalf("the command is\n%s, want\n%s", command, want)
	}
	words, err := exec.Command("sh", "-c", strings.Replace(command, "holdfast", `printf '%s\n'`, 1)).Output()
	if err != nil {
		t.Fatal(err)
	}
	out := wantStatus(t, 0, "\n1 ", strings.Split(strings.TrimSpace(string(words)), "\n")...)
	if strings.Count(out, "\n") != 2 {
		t.Errorf("the letters of the group are\n%s", out)
	}
	wantStatus(t, 0, "holdfast dlq list --key=-k --state any shows", "dlq", "replay", "--key=-k", "--reason", "r")
	pgtest.Exec(t, db.Pool, "delete from holdfast.letter where id < 3")
	if command := lettersOfTheFirstGroup(t, "--state", "any"); !strings.HasSuffix(command, " --fingerprint=-f --state=any") {
		t.Errorf("the command is %s", command)
	}
}

// A command with an escaped name would choose nothing, with an empty one too much, and with a raw one a terminal obeys it.
func TestDLQ_NoCommandIsPrintedForAGroupThatNoneChooses(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "f", 1)
	for _, column := range []string{"consumer", "type", "topic", "fingerprint"} {
		for _, hostile := range []string{"\x1b]52;c;cm0=\a", "\u202e", "a\nb", ""} {
			if column == "consumer" && hostile == "" {
				continue // the relay's, which --origin chooses
			}
			var was string
			if err := db.QueryRow(t.Context(), "select "+column+" from holdfast.letter").Scan(&was); err != nil {
				t.Fatal(err)
			}
			pgtest.Exec(t, db.Pool, "update holdfast.letter set "+column+" = $1", hostile)
			if command := lettersOfTheFirstGroup(t); command != "" {
				t.Errorf("with the %s %q the command is %q", column, hostile, command)
			}
			if out := wantStatus(t, 0, "", "dlq", "list"); strings.ContainsAny(out, "\x1b\u202e") {
				t.Errorf("a terminal obeys %q", out)
			}
			pgtest.Exec(t, db.Pool, "update holdfast.letter set "+column+" = $1", was)
		}
	}
	pgtest.Exec(t, db.Pool, "update holdfast.letter set key = $1", "a\x1b[2J")
	if command := lettersOfTheFirstGroup(t, "--key", "a\x1b[2J"); command != "" {
		t.Errorf("with a hostile key the command is %q", command)
	}
	pgtest.Exec(t, db.Pool, "update holdfast.letter set origin = 'relay', consumer = ''")
	if want := "holdfast dlq list --origin=relay --type=order.placed --topic=orders --fingerprint=f"; lettersOfTheFirstGroup(t) != want {
		t.Errorf("of the relay the command is %q, want %q", lettersOfTheFirstGroup(t), want)
	}
}

func TestDLQ_TheVersionsOfALetterCanBeReadBack(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "f", 1)
	for _, payload := range []string{"second", "third"} {
		file := filepath.Join(t.TempDir(), "payload")
		if err := os.WriteFile(file, []byte(payload), 0o600); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, 0, "new payload", "dlq", "edit", "1", file, "--reason", "typo", "--by", "ann")
	}
	if out := wantStatus(t, 0, "edit by ann: typo (replaced version 2, payload bytes 6: --version 2 shows it) (database user ", "dlq", "show", "1"); strings.Contains(out, "secret") || strings.Contains(out, "second\n") {
		t.Errorf("payloads are shown unasked:\n%s", out)
	}
	for version, want := range map[string]string{"1": "the secret\n", "2": "second\n"} {
		if out := wantStatus(t, 0, "", "dlq", "show", "1", "--version", version); out != want {
			t.Errorf("version %s is %q, want %q", version, out, want)
		}
	}
	wantStatus(t, 0, "\nthird\n", "dlq", "show", "1", "--version", "3")
	wantStatus(t, 1, "no version 4", "dlq", "show", "1", "--version", "4")
	var l operate.JSONLetter
	if err := json.Unmarshal([]byte(wantStatus(t, 0, "", "dlq", "show", "1", "--json", "--payload")), &l); err != nil || len(l.Actions) != 2 ||
		string(l.Payload) != "third" || string(l.Actions[0].Payload) != "the secret" || *l.Actions[1].PayloadBytes != 6 || l.Actions[1].Version != 2 {
		t.Errorf("%+v, %v", l, err)
	}
	if out := wantStatus(t, 0, `"payload_bytes":10`, "dlq", "show", "1", "--json"); strings.Contains(out, `"payload":`) {
		t.Errorf("payloads are shown unasked:\n%s", out)
	}
}

// The process gets a signal to stop, is killed, and runs to the end: the same command each time.
func TestDLQ_AReplayThatWasInterruptedGoesOnWithTheSameCommand(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	db := installed(t)
	letters(t, db, "billing", "f", 60)
	path, err := binary()
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	const moved = "select count(*) from holdfast.letter_action where action = 'replay'"
	failAgain := func() {
		pgtest.Exec(t, db.Pool, "delete from holdfast.stored")
		pgtest.Exec(t, db.Pool, "update holdfast.letter set state = 'open' where state = 'replaying'")
	}
	command := []string{"dlq", "replay", "--consumer", "billing", "--within", "1h", "--reason", "fixed", "--by", "ann"}
	// A letter that is locked keeps the replay from its end, however late the signal comes.
	interrupted := func(after int64, signal os.Signal) (exit int, said string) {
		t.Helper()
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		pgtest.Exec(t, tx, "select from holdfast.letter where id = $1 for update", after+20)
		cmd := exec.Command(path, append(command, "--rate", "25")...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = cmd.Process.Kill() }()
		wait.Until(t, "the replay has begun", func() bool { return pgtest.Count(t, db.Pool, moved) >= after })
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		return cmd.ProcessState.ExitCode(), out.String()
	}
	exit, said := interrupted(5, os.Interrupt)
	if exit != 1 || !strings.Contains(said, "being re-delivered") || !strings.Contains(said, "the same command continues with") {
		t.Errorf("interrupted, it ends with %d and says\n%s", exit, said)
	}
	failAgain()
	before := pgtest.Count(t, db.Pool, moved)
	interrupted(before+5, os.Kill)
	failAgain()
	before = pgtest.Count(t, db.Pool, moved)
	if before >= 55 {
		t.Fatalf("%d letters are moved already: nothing is left to go on with", before)
	}
	status, out, errOut := call(t, command...)
	if status != 0 || !strings.Contains(errOut, "continuing an interrupted replay") {
		t.Errorf("status %d\n%s%s", status, out, errOut)
	}
	if n := pgtest.Count(t, db.Pool, moved); n != 60 {
		t.Errorf("%d letters were replayed, want 60", n)
	}
	if n := pgtest.Count(t, db.Pool, "select count(distinct letter) from holdfast.letter_action"); n != 60 {
		t.Errorf("%d letters were replayed, want each of 60 once", n)
	}
	failAgain()
	wantStatus(t, 0, "60 dead letters are being re-delivered", command...)
}

func TestDLQ_AnInterruptedReplayCanBeLeftForAnother(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "f", 4)
	pgtest.Exec(t, db.Pool, `insert into holdfast.letter_replay (name, filter, upto, by, reason) values ('holdfast dlq replay --consumer billing', '{"Consumer": "billing"}', 1, 'bob', '')`)
	wantStatus(t, 0, "1 dead letter would be replayed", "dlq", "replay", "--consumer", "billing", "--dry-run")
	wantStatus(t, 1, "had another filter", "dlq", "replay", "--consumer", "mail", "--name", "holdfast dlq replay --consumer billing", "--reason", "r")
	wantStatus(t, 0, "4 dead letters are being re-delivered", "dlq", "replay", "--consumer", "billing", "--reason", "r", "--anew")
	long := (&operate.DLQReplay{Chosen: operate.Chosen{ID: make([]int64, 500)}}).ReplayName()
	if len(long) > 255 || long == (&operate.DLQReplay{Chosen: operate.Chosen{ID: make([]int64, 501)}}).ReplayName() {
		t.Errorf("a long filter is named %q", long)
	}
}

func TestDLQ_APurgeIsOfClosedLettersAndSaysSo(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "f", 3)
	pgtest.Exec(t, db.Pool, "update holdfast.letter set state = 'replayed', last_at = now() - interval '31 days' where id = 1")
	pgtest.Exec(t, db.Pool, "update holdfast.letter set last_at = now() - interval '31 days' where id = 2")
	pgtest.Exec(t, db.Pool, "update holdfast.letter set state = 'discarded', last_at = now() - interval '29 days' where id = 3")
	wantStatus(t, 2, "missing flags: --closed", "dlq", "purge", "--before", "30d")
	wantStatus(t, 2, "missing flags: --before", "dlq", "purge", "--closed")
	wantStatus(t, 0, "1 closed dead letter would be removed", "dlq", "purge", "--closed", "--before", "30d", "--dry-run")
	wantStatus(t, 0, "1 closed dead letter is removed", "dlq", "purge", "--closed", "--before", "30d")
	if n := pgtest.Count(t, db.Pool, "select sum(id)::bigint from holdfast.letter"); n != 5 {
		t.Error("not the replayed letter is gone")
	}
}

func TestDLQ_StatusIsAnObjectForMachines(t *testing.T) {
	db := installed(t)
	letters(t, db, "billing", "f", 2)
	pgtest.Exec(t, db.Pool, "insert into holdfast.consumer_position (consumer, topic, partition, position, owner) values ('billing', 'orders', 5, 77, 'node 1')")
	pgtest.Exec(t, db.Pool, "update holdfast.lane set owner = 'gone' where lane = 0")
	var s struct {
		Lanes []struct {
			Lane   int    `json:"lane"`
			Owner  string `json:"owner"`
			Unread bool   `json:"unread"`
		} `json:"lanes"`
		Relays    []any `json:"relays"`
		Segments  []any `json:"segments"`
		Consumers []struct {
			Consumer string `json:"consumer"`
			Letters  int    `json:"letters"`
		} `json:"consumers"`
		Positions []struct {
			Position int64  `json:"position"`
			Owner    string `json:"owner"`
			Saved    *int64 `json:"saved_seconds_ago"`
		} `json:"positions"`
		Needs []string `json:"needs_a_person"`
	}
	out := wantStatus(t, 1, "", "status", "--json")
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(s.Lanes) != 8 || s.Lanes[0].Owner != "" || s.Relays == nil || len(s.Segments) != 4 || len(s.Consumers) != 1 || s.Consumers[0].Letters != 2 ||
		len(s.Positions) != 1 || s.Positions[0].Position != 77 || s.Positions[0].Owner != "node 1" || s.Positions[0].Saved == nil ||
		len(s.Needs) != 1 || !strings.Contains(s.Needs[0], "consumer billing has 2 open dead letters") {
		t.Errorf("got %s", out)
	}
	pgtest.Exec(t, db.Pool, "delete from holdfast.letter")
	if out := wantStatus(t, 0, `"needs_a_person":[]`, "status", "--json"); strings.Count(out, "\n") != 1 {
		t.Errorf("got %s", out)
	}
}
