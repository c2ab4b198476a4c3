package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/operate"
	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestSteer_ATopicAConsumerAndAKeyArePausedAndResumed(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	db := installed(t)
	wantStatus(t, 2, "missing flags: --topic=TOPIC or --consumer=NAME", "pause", "--reason", "r")
	wantStatus(t, 2, "missing flags: --reason=WHY: it is kept with what was done", "pause", "--topic", "orders")
	wantStatus(t, 2, "give --topic alone", "pause", "--topic", "orders", "--key", "k", "--reason", "r")
	wantStatus(t, 2, "give --topic alone", "resume", "--consumer", "billing", "--topic", "orders", "--reason", "r")
	wantStatus(t, 1, "it must be a Kafka topic's name", "pause", "--topic", "or ders", "--reason", "r")
	wantStatus(t, 1, "topic orders is not paused", "resume", "--topic", "orders", "--reason", "r")
	wantStatus(t, 0, "topic orders is paused; holdfast resume --topic orders --reason WHY ends that", "pause", "--topic", "orders", "--reason", "the mail team asked", "--by", "ann")
	wantStatus(t, 0, "topic orders has been paused already, by ann since 20", "pause", "--topic", "orders", "--reason", "again", "--by", "bob")
	wantStatus(t, 1, "knows no consumer biling: it knows none", "pause", "--consumer", "biling", "--reason", "tax")
	pgtest.Exec(t, db, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 't', 'n', now() + interval '1 hour')")
	pgtest.Exec(t, db, "insert into holdfast.inbox (consumer, source, event_id, topic, hash, result, processed_at) values ('mail', 's', 'e', 'orders', '', 'handled', now())")
	wantStatus(t, 1, "knows no consumer biling: it knows billing, mail. To pause one before it begins, add --force", "pause", "--consumer", "biling", "--reason", "tax")
	wantStatus(t, 1, "knows no consumer biling", "pause", "--consumer", "biling", "--topic", "orders", "--key", "k", "--reason", "tax")
	for _, command := range [][]string{{"dlq", "list"}, {"dlq", "groups"}, {"dlq", "replay", "--dry-run"}, {"dlq", "discard", "--dry-run"}, {"waiting", "discard", "--all", "--dry-run"}, {"waiting", "give-up", "--all", "--dry-run"}, {"waiting", "list"}, {"waiting", "groups"}} {
		wantStatus(t, 0, "this database knows no consumer biling: it knows billing, mail", append(command, "--consumer", "biling")...)
		if status, out, says := call(t, append(command, "--consumer", "mail")...); status != 0 || strings.Contains(out+says, "knows no consumer") {
			t.Errorf("%v of a consumer that is known: %d\n%s%s", command, status, out, says)
		}
	}
	wantStatus(t, 0, "consumer later is paused", "pause", "--consumer", "later", "--reason", "tax", "--force")
	wantStatus(t, 0, "consumer later is resumed", "resume", "--consumer", "later", "--reason", "tax")
	wantStatus(t, 0, "consumer billing is paused; holdfast resume --consumer billing --reason WHY ends that", "pause", "--consumer", "billing", "--reason", "tax", "--by", "ann")
	wantStatus(t, 0, `key "it's \x1b[2J" of topic orders in consumer billing is paused`, "pause", "--consumer", "billing", "--topic", "orders", "--key", "it's \x1b[2J", "--reason", "r", "--by", "ann")

	pgtest.Exec(t, db, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time)
		values (3, 'orders', 'k', 1, 'topic', 'infinity', 'e', 's', 't', now()), (3, 'gone', 'k', 2, 'topic', 'infinity', 'f', 's', 't', now())`)
	pgtest.Exec(t, db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, hash, next_at)
		values ('billing', 'orders', $1, 1, 's', 'e', 't', now(), '', 'infinity')`, "it's \x1b[2J")
	out := wantStatus(t, 1, "topic orders is paused for", "status")
	for _, says := range []string{
		"PAUSED", "the mail team asked", "topic orders, which is paused", "by ann (the mail team asked): holdfast resume --topic orders --reason WHY\n", "by ann (tax): holdfast resume --consumer billing --reason WHY\n",
		"topic gone is missing", "  e     0         paused", `--key "it's \x1b[2J"`,
	} {
		if !strings.Contains(out, says) {
			t.Errorf("status does not say %q:\n%s", says, out)
		}
	}
	if strings.Contains(out, "topic orders is missing") || strings.Contains(out, "\x1b") {
		t.Errorf("status says\n%s", out)
	}
	wantStatus(t, 1, `"paused":[{"consumer":"","topic":"orders","key":"","by":"ann","reason":"the mail team asked","seconds":`, "status", "--json")
	wantStatus(t, 1, "the topic is paused: orders", "waiting", "retry", "--origin", "relay", "--topic", "orders", "--reason", "r")
	wantStatus(t, 0, "topic orders is resumed", "resume", "--topic", "orders", "--reason", "done", "--by", "ann")
	wantStatus(t, 0, "consumer billing is resumed", "resume", "--consumer", "billing", "--reason", "done", "--by", "ann")
	wantStatus(t, 0, "is resumed", "resume", "--consumer", "billing", "--topic", "orders", "--key", "it's \x1b[2J", "--reason", "done", "--by", "ann")
	wantStatus(t, 1, "topic orders is missing", "status")
	if n := pgtest.Count(t, db, "select count(*) from holdfast.pause_action where by = 'ann' and reason <> '' and login <> ''"); n != 6 {
		t.Errorf("%d actions are kept", n)
	}
}

func TestSteer_ScheduledEventsAreListedAndCancelled(t *testing.T) {
	db := installed(t)
	pgtest.Exec(t, db, `insert into holdfast.scheduled (lane, due_at, id, source, type, topic, key, time, payload)
		select holdfast.lane_of('k' || n % 3, '', 8), '2100-01-01'::timestamptz + n * interval '1 minute', 'r' || n, 'shop', 'reminder', 'reminders', 'k' || n % 3, now(), 'the secret'
		  from generate_series(1, 9) n`)
	out := wantStatus(t, 0, "the relays  reminders  k1   r1  reminder  shop    scheduled  0", "waiting", "list", "--why", "scheduled")
	if strings.Count(out, "\n") != 10 || strings.Contains(out, "secret") || !strings.Contains(out, "2100-01-01T00:01:00Z") || strings.Index(out, "T00:01:00Z") > strings.Index(out, "T00:09:00Z") {
		t.Errorf("the list is\n%s", out)
	}
	wantStatus(t, 0, `{"origin":"relay","topic":"reminders","key":"k2","event_id":"r2","source":"shop","type":"reminder","why":"scheduled","head":true,"running":false,"attempts":0,"since":`, "waiting", "list", "--why", "scheduled", "--json", "--event-id", "r2")
	wantStatus(t, 0, `"next_at":"2100-01-01T00:02:00Z"`, "waiting", "list", "--why", "scheduled", "--json", "--event-id", "r2")
	wantStatus(t, 0, "there may be more", "waiting", "list", "--why", "scheduled", "--limit", "2")
	wantStatus(t, 2, "which scheduled events?", "waiting", "cancel", "--reason", "r")
	wantStatus(t, 2, "missing flags: --reason", "waiting", "cancel", "r1")
	wantStatus(t, 2, "--all and a filter exclude each other", "waiting", "cancel", "--all", "--key", "k1", "--reason", "r")
	wantStatus(t, 2, "ids and a filter exclude each other", "waiting", "cancel", "r1", "--key", "k1", "--reason", "r")
	wantStatus(t, 0, "3 scheduled events would be cancelled", "waiting", "cancel", "--key", "k1", "--dry-run")
	wantStatus(t, 0, "2 scheduled events are cancelled", "waiting", "cancel", "r1", "r2", "--reason", "called off", "--by", "ann")
	out = wantStatus(t, 1, "event r2 is a dead letter", "waiting", "cancel", "r2", "r3", "never", "--reason", "called off", "--by", "ann")
	if !strings.Contains(out, "1 scheduled event is cancelled") {
		t.Errorf("of three ids one is cancelled: %s", out)
	}
	wantStatus(t, 0, "ann cancelled it before it was due: called off", "dlq", "list", "--origin", "relay", "--state", "discarded")
	wantStatus(t, 0, "6 scheduled events are cancelled", "waiting", "cancel", "--all", "--reason", "called off", "--by", "ann")
	wantStatus(t, 1, "nothing like that waits", "waiting", "cancel", "--all", "--reason", "r")
}

func TestSteer_AStoredEventIsShown(t *testing.T) {
	db := installed(t)
	pgtest.Exec(t, db, `insert into holdfast.stored (consumer, topic, key, place, source, event_id, type, time, headers, payload, hash, attempts, errors, next_at)
		values ('billing', 'orders', 'k', 1, 'shop', 'e1', 'order.split', now(), '{"h": "CANARY"}', 'CANARY', '', 2, '{first,second}', '2100-01-01')`)
	out := wantStatus(t, 0, "error 2", "waiting", "show", "--consumer", "billing", "e1")
	for _, says := range []string{"e1 of shop, order.split", "topic orders", "no node that runs handles its type", "second", "6"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), says) {
			t.Errorf("it does not say %q:\n%s", says, out)
		}
	}
	if out += wantStatus(t, 0, `"errors":["first","second"]`, "waiting", "show", "--consumer", "billing", "--json", "e1"); strings.Contains(out, "CANARY") {
		t.Errorf("it shows what nobody asked for:\n%s", out)
	}
	wantStatus(t, 0, "CANARY", "waiting", "show", "--consumer", "billing", "--payload", "e1")
	wantStatus(t, 1, "nothing like that waits: holdfast find says where", "waiting", "show", "--consumer", "billing", "e2")
	wantStatus(t, 0, "1 waiting event is due now", "waiting", "retry", "--consumer", "billing", "--event-id", "e1", "--reason", "r")
	pgtest.Exec(t, db, "insert into holdfast.pause (consumer, by, reason) values ('billing', 'ann', 'r')")
	pgtest.Exec(t, db, "insert into holdfast.consumer_type (consumer, type, node, seen_until) values ('billing', 'order.split', 'n', now() + interval '1 hour')")
	wantStatus(t, 0, "paused", "waiting", "list", "--consumer", "billing")
}

func TestSteer_TheVersionNeedsNoCommand(t *testing.T) {
	flag := wantStatus(t, 0, "schema version 2", "--version")
	if command := wantStatus(t, 0, "holdfast ", "version"); command != flag {
		t.Errorf("%q, and the command says %q", flag, command)
	}
}

func TestSteer_ProgressHasARateAndTheTimeThatIsLeft(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		done, total, some int
		took              time.Duration
		want              string
	}{
		{0, 100, 0, time.Second, "0 of 100 dead letters"},
		{50, 100, 50, 10 * time.Second, "50 of 100 dead letters, 5.0/s, about 10s left"},
		{1_000, 50_000, 1_000, 2 * time.Second, "1000 of 50000 dead letters, 500/s, about 1m38s left"},
		{60, 100, 10, 100 * time.Second, "60 of 100 dead letters, 0.1/s, about 6m40s left"}, // it has done 50 before
		{100, 100, 100, time.Second, "100 of 100 dead letters, 100/s"},
		{7, 0, 7, time.Second, "7 dead letters, 7.0/s"},
		{1, 1, 0, 0, "1 of 1 dead letter"},
	} {
		if got := operate.Progress(c.done, c.total, c.some, c.took, "dead letter"); got != c.want {
			t.Errorf("%d of %d: %q, want %q", c.done, c.total, got, c.want)
		}
	}
}

func TestSteer_TheLogHasAFormatAndALevel(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "level=WARN msg=three n=3\n"},
		{[]string{"--log-format", "json"}, `{"level":"WARN","msg":"three","n":3}` + "\n"},
		{[]string{"--log-level", "error"}, ""},
		{[]string{"--log-level", "debug", "--log-format=json"}, `{"level":"DEBUG","msg":"one"}` + "\n" + `{"level":"WARN","msg":"three","n":3}` + "\n"},
	} {
		var flags struct {
			Log logFlags `embed:"" prefix:"log-"`
		}
		parser, err := kong.New(&flags)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		log := flags.Log.logger(&out)
		log.Debug("one")
		log.Warn("three", "n", 3)
		got := regexp.MustCompile(`"time":"[^"]*",|time=\S* `).ReplaceAllString(out.String(), "")
		if got != c.want {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
	wantStatus(t, 2, "--log-format must be one of", "relay", "--brokers", "b:1", "--log-format", "xml")
	wantStatus(t, 2, "--log-level", "relay", "--brokers", "b:1", "--log-level", "loud")
}

func TestSteer_ACommandAsksOnATerminalOnly(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		yes    bool
		answer *string
		want   string // "" goes on
	}{
		{"a script", false, nil, ""},
		{"--yes", true, text("n\n"), ""},
		{"yes", false, text(" Yes \n"), ""},
		{"y", false, text("y\n"), ""},
		{"no", false, text("n\n"), "nothing was changed"},
		{"return", false, text("\n"), "nothing was changed"},
		{"nothing", false, text(""), "nothing was changed"},
	} {
		var errOut bytes.Buffer
		p := &program.Program{ErrOut: &errOut}
		if c.answer != nil {
			p.Terminal = strings.NewReader(*c.answer)
		}
		err := program.Asking{Yes: c.yes}.Ask(p, "They are gone then")
		if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if asked := errOut.String() == "They are gone then. Go on? [y/N] "; asked != (c.answer != nil && !c.yes) {
			t.Errorf("%s: it said %q", c.name, errOut.String())
		}
	}
	if err := (program.Asking{}).Ask(&program.Program{ErrOut: &bytes.Buffer{}, Terminal: broken{}}, ""); err == nil || !strings.Contains(err.Error(), "read the answer") {
		t.Errorf("a terminal that fails: %v", err)
	}
}

func text(s string) *string { return &s }

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("it is gone") }

func TestSteer_ACommandLineIsCompleted(t *testing.T) {
	t.Parallel()
	var c cli
	parser, err := kong.New(&c, kong.Name("holdfast"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ line, want string }{
		{"holdfast", ""},
		{"holdfast wa", "waiting"},
		{"holdfast pa", "pause"},
		{"holdfast waiting ", "cancel discard give-up groups list redirect retry show"},
		{"holdfast waiting r", "redirect retry"},
		{"holdfast --schema x waiting re", "redirect retry"},
		{"holdfast --schema=x waiting re", "redirect retry"},
		{"holdfast waiting list --j", "--json"},
		{"holdfast waiting list --why behind", "behind-event behind-letter"},
		{"holdfast dlq list --state ", "any discarded open replayed replaying"},
		{"holdfast dlq list --state re", "replayed replaying"},
		{"holdfast dlq list --state=re", "--state=replayed --state=replaying"},
		{"holdfast dlq list --state open --ori", "--origin"},
		{"holdfast completion ", "bash fish zsh"},
		{"holdfast completion --", "--help"},
		{"holdfast version --", "--help"},
		{"holdfast he", "help"},
		{"holdfast help dl", "dlq"},
		{"holdfast help dlq sh", "show"},
		{"holdfast waiting retry --consumer b --he", "--heads --help"},
		{"holdfast dlq show 4711", ""},
		{"holdfast compl", "completion"}, // but not the command that answers shells
	} {
		got := candidates(parser.Model, c.line)
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q: %q, want %q", c.line, got, c.want)
		}
	}
	all := candidates(parser.Model, "holdfast --")
	if !slices.Contains(all, "--database-url") || slices.ContainsFunc(all, func(w string) bool { return !strings.HasPrefix(w, "--") }) {
		t.Errorf("flags are %q", all)
	}
}

// The scripts are tried in the shells that this machine has; bash is everywhere.
func TestSteer_ShellsTakeTheCompletionScripts(t *testing.T) {
	built, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(built)
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	wantStatus(t, 2, "must be one of", "completion", "tcsh")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := wantStatus(t, 0, "holdfast complete", "completion", shell)
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("there is no %s", shell)
			continue
		}
		try := script
		if shell == "bash" { // what bash does when somebody presses tab
			try += `
				complete -p holdfast
				COMP_LINE='holdfast dlq list --state=re' COMP_POINT=28 holdfast complete holdfast re =
				COMP_LINE='holdfast waiting re and more' COMP_POINT=19 holdfast complete holdfast re waiting`
		}
		out, err := exec.Command(path, "-c", try).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
		if want := "complete -o default -C 'holdfast complete' holdfast\nreplayed\nreplaying\nredirect\nretry\n"; shell == "bash" && string(out) != want {
			t.Errorf("bash: %q, want %q", out, want)
		}
	}
}
