package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/certtest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// config writes a file for --config.
func config(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// problemsOf runs the relay with a wrong configuration, and returns the lines that it says.
func problemsOf(t *testing.T, args ...string) []string {
	t.Helper()
	status, out, errOut := call(t, append([]string{"relay"}, args...)...)
	if status != 2 || out != "" || strings.Contains(errOut, "hunter2") {
		t.Errorf("status %d, or a secret is shown: %s%s", status, out, errOut)
	}
	lines := strings.Split(strings.TrimSuffix(errOut, "holdfast --help lists the commands.\n"), "\n")
	lines[0] = strings.TrimPrefix(lines[0], "holdfast: ")
	return lines[:len(lines)-1]
}

func TestRelayFile_AllProblemsOfAFileAreSaidAtOnce(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://u@127.0.0.1:1/x")
	const head = "brokers: b:9092\n"
	for _, c := range []struct {
		name, text string
		want       []string // after the file's name
	}{
		{"no mapping", "- a", []string{":1: the file must be a mapping of names to values"}},
		{"two documents", head + "---\na: b", []string{" has a second document: it must have one"}},
		{"keys that are none", head + "borkers: b\nconfig: x\nhelp: true\nmax_payload: 1", []string{
			":2: borkers is no setting: it must be the name of a flag of holdfast relay, or databases", ":3: config is no setting", ":4: help is no setting", ":5: max_payload is no setting"}},
		{"values that are none", head + "lease: 5 parsecs\nbatch-size: many\nhold-key: perhaps\nlog-level: loud\nsasl-mechanism: kerberos\ntls: [true]\nname:\nlisten: {a: b}\nschema: [[a]]", []string{
			`:2: lease is "5 parsecs": it must be a duration, as 5s or 1m30s`, `:3: batch-size is "many": it must be a whole number`, `:4: hold-key is "perhaps": it must be true or false`,
			`:5: log-level is "loud": it must be one of debug, info, warn, error`, `:6: sasl-mechanism is "kerberos": it must be one of plain, scram-sha-256, scram-sha-512, oauthbearer`,
			":7: tls is a list: it must be one value", ":8: name has no value: it must have one, or be left out", ":9: listen has no value", ":10: schema has an entry that is no text"}},
		{"a key twice", head + "lease: 5s\nlease: 6s", []string{":3: lease is there twice: it must be there once"}},
		{"a password", head + "database-url: postgres://u:hunter2@h/x", []string{":2: database-url has a password: it must be without one"}},
		{"databases", head + "databases:\n- name: a b\n- url-file: f\n  name: shop\n- name: shop\n  url-env: E\n  url-file: f\n  retries: 3\n  lease: soon\n- name: c\n  url: postgres://u:hunter2@h/x\n- word", []string{
			`:3: name is "a b": it must be 1 to 63 letters, digits, dots, dashes or underscores`, ":3: database a b has 0 of url-file, url-env and url: it must have one",
			":9: retries is no setting of a database: it must be name, url-file, url-env, url, schema, lease", `:10: lease is "soon": it must be a duration`,
			`:6: name is "shop" twice: it must be a name for each database`, ":6: database shop has 2 of url-file, url-env and url",
			":12: url has a password", ":11: database c has 0 of url-file", ":13: an entry of databases must be a mapping"}},
		{"no databases", head + "databases: []", []string{":2: databases has no entry"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			file := config(t, c.text)
			var got []string
			for _, line := range problemsOf(t, "--config", file, "--brokers", "b:9092") {
				if rest, ok := strings.CutPrefix(line, file); ok {
					got = append(got, rest)
				} else if !strings.Contains(line, "url-") && !strings.Contains(line, "databases too") {
					t.Errorf("it says %q too", line)
				}
			}
			if len(got) != len(c.want) {
				t.Fatalf("%d problems, want %d: %q", len(got), len(c.want), got)
			}
			for i := range c.want {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("it says %q, want %q", got[i], c.want[i])
				}
			}
		})
	}
}

func TestRelayFile_ProblemsOfFileFlagsAndDatabasesAreSaidTogether(t *testing.T) {
	t.Setenv("DATABASE_URL", "")
	os.Unsetenv("DATABASE_URL")
	file := config(t, "lease: 1ms\nbatch-size: 0x\nsasl-mechanism: plain\ntls: true\nlisten: 9090\ndatabases:\n- {name: a, url-file: missing, lease: 2ms}\n- {name: b, url-env: NOBODY_SETS_IT}\n- {name: c, url: 'postgres://u@h/x', batch-size: -1}\n")
	got := strings.Join(problemsOf(t, "--config", file, "--brokers", "nowhere"), "\n")
	for _, want := range []string{
		file + `:2: batch-size is "0x"`, "--listen is 9090: it must be an address and a port, as :9090", "--sasl-user is empty", "--sasl-password-file is empty", `broker is "nowhere"`,
		"database a: url-file is missing: it must be a file that can be read", "database b: url-env is NOBODY_SETS_IT: it must be a variable that has the connection string",
		"database a: relay config: lease is 2ms", "database b: relay config: lease is 1ms", "database c: relay config: lease is 1ms", "database c: batch size is -1",
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("it does not say %q once:\n%s", want, got)
		}
	}
	wantStatus(t, 2, "--listen is :99999: it must be", "relay", "--config", file, "--listen", ":99999", "--print-config")
	wantStatus(t, 2, "--pprof is set: it must be with --listen", "relay", "--config", config(t, "sasl-mechanism: plain\n"), "--pprof")
	wantStatus(t, 2, "--config is nowhere.yaml: it must be a file that can be read", "relay", "--config", "nowhere.yaml")
	wantStatus(t, 2, "brokers is empty: it must have", "relay")
	wantStatus(t, 2, "is no YAML", "relay", "--config", config(t, "a: [\n"))
}

// printed is what --print-config says of each setting, with where it is from.
func printed(t *testing.T, args ...string) map[string]string {
	t.Helper()
	out := wantStatus(t, 0, "lease", append([]string{"relay", "--print-config"}, args...)...)
	of := map[string]string{}
	for line := range strings.Lines(out) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), ": ")
		of[strings.TrimPrefix(name, "- ")] = rest
	}
	return of
}

func TestRelayFile_AFlagGoesBeforeItsVariableAndThatBeforeTheFile(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://u@127.0.0.1:1/x")
	t.Setenv("HOLDFAST_LEASE", "7s")
	t.Setenv("HOLDFAST_BATCH_SIZE", "70")
	file := config(t, "lease: 8s\nbatch-size: 80\nmemory-budget: 80000000\nhold-key: true\nbrokers: [a:1, b:2]\ndatabase-url-file: nowhere\n")
	got := printed(t, "--config", file, "--lease", "6s")
	for name, want := range map[string]string{"lease": "6s # command line", "batch-size": "70 # HOLDFAST_BATCH_SIZE", "memory-budget": "80000000 # " + file, "hold-key": "true # " + file,
		"brokers": "a:1,b:2 # " + file, "log-format": "text # default", "schema": "holdfast # default", "database-url": "postgres://u@127.0.0.1:1/x # DATABASE_URL"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	if text, ok := got["database-url-file"]; ok {
		t.Errorf("DATABASE_URL is set, and the file's database-url-file counts: %s", text)
	}
	t.Setenv("HOLDFAST_CONFIG", file)
	if got := printed(t); got["hold-key"] != "true # "+file {
		t.Errorf("HOLDFAST_CONFIG is not read: %q", got)
	}
}

func TestRelayFile_ADatabasesOwnSettingGoesBeforeThatOfTheFile(t *testing.T) {
	file := config(t, "brokers: a:1\nlease: 8s\nschema: events\ndatabases:\n- {name: shop, url: 'postgres://u@h/x', lease: 9s, schema: other}\n")
	if got := printed(t, "--config", file); got["lease"] != "9s # "+file || got["schema"] != "other # "+file {
		t.Errorf("got %q", got)
	}
	if got := printed(t, "--config", file, "--lease", "6s"); got["lease"] != "6s # as above" || got["schema"] != "other # "+file {
		t.Errorf("the flag does not go before it: %q", got)
	}
	t.Setenv("DATABASE_URL", "postgres://u@h/y")
	if lines := problemsOf(t, "--config", file); len(lines) != 1 || !strings.Contains(lines[0], "has databases too: it must be one of them") {
		t.Errorf("with DATABASE_URL it says %q", lines)
	}
}

func TestRelayFile_ThePrintedSettingsAreAFileAndShowNoSecret(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/x")
	t.Setenv("KAFKA_PASSWORD", "hunter2")
	args := []string{"--brokers", "a:1", "--tls", "--sasl-mechanism", "plain", "--sasl-user", "relay", "--listen", ":0", "--name", "007", "--dead-letter-topic", "*.dlq"}
	out := wantStatus(t, 0, "# database-url has a password: DATABASE_URL", append([]string{"relay", "--print-config"}, args...)...)
	if strings.Contains(out, "hunter2") {
		t.Errorf("it shows a secret: %s", out)
	}
	file := config(t, out)
	if again := wantStatus(t, 0, "lease", "relay", "--print-config", "--config", file); strings.Count(again, file) < 8 || !strings.Contains(again, "dead-letter-topic: '*.dlq'") {
		t.Errorf("read again it is\n%s", again)
	}
}

func TestRelayFile_TheExampleOfAFileIsOne(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://u@127.0.0.1:1/x")
	text := documented(t, "deploy/relay.example.yaml")
	secret := certtest.File(t, "secret", []byte("postgres://u@h/x"))
	authority := certtest.File(t, "ca.pem", certtest.New(t).PEM)
	text = strings.ReplaceAll(strings.ReplaceAll(text, "/etc/holdfast/kafka-ca.pem", authority), "/etc/holdfast/kafka-password", secret)
	wantStatus(t, 0, "dead-letter-topic", "relay", "--print-config", "--config", config(t, text))
	os.Unsetenv("DATABASE_URL")
	// With the list that is a comment.
	text = strings.ReplaceAll(strings.ReplaceAll(text, "# databases:", "databases:"), "\n#   ", "\n  ")
	for _, name := range []string{"shop-url", "billing-url"} {
		text = strings.ReplaceAll(text, "/etc/holdfast/"+name, secret)
	}
	if out := wantStatus(t, 0, "name: billing", "relay", "--print-config", "--config", config(t, text)); strings.Count(out, "schema: events") != 1 {
		t.Errorf("%s", out)
	}
}

func TestRelayFile_TheSidecarLogsJSONFromALevelOn(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	db := migrated.New(t)
	for format, want := range map[string]string{"json": `"msg":"relay started"`, "text": `msg="relay started"`} {
		s := startSidecar(t, db, []string{"HOLDFAST_LOG_FORMAT=" + format}, "--brokers", "127.0.0.1:1")
		wait.Until(t, "it logs as "+format, func() bool { return strings.Contains(s.log.String(), want) })
		wait.Until(t, "it has claimed all lanes", func() bool { return pgtest.Count(t, db.Pool, claimedLanes) == 8 })
		s.end(t)
	}
	s := startSidecar(t, db, nil, "--brokers", "127.0.0.1:1", "--log-level", "error")
	wait.Until(t, "it has claimed all lanes", func() bool { return pgtest.Count(t, db.Pool, claimedLanes) == 8 })
	if s.end(t); strings.Contains(s.log.String(), "level=INFO") {
		t.Errorf("below the level: %s", s.log.String())
	}
	wantStatus(t, 2, "--log-level must be one of", "relay", "--log-level", "loud")
}

// end tells the relay to stop, and wants it to have ended well.
func (s *sidecarProcess) end(t *testing.T) {
	t.Helper()
	if err := s.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("the sidecar ended with %v: %s", err, s.log.String())
	}
}
