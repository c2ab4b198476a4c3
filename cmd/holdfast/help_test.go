package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// commands are those that the help lists.
func commands(t *testing.T) []*kong.Node {
	t.Helper()
	parser, err := kong.New(new(cli), kong.Name("holdfast"))
	if err != nil {
		t.Fatal(err)
	}
	leaves := parser.Model.Leaves(true)
	if len(leaves) < 30 {
		t.Fatalf("%d commands", len(leaves))
	}
	return leaves
}

func TestHelp_ItIsOnStandardOutputAndExitsWithZero(t *testing.T) {
	asked := []string{"", "dlq", "waiting", "tenant"}
	for _, leaf := range commands(t) {
		asked = append(asked, commandOf(leaf))
	}
	for _, command := range asked {
		words := strings.Fields(command)
		status, out, errOut := call(t, append([]string{"help"}, words...)...)
		if status != 0 || errOut != "" || !strings.HasPrefix(out, "Usage: holdfast "+usageOf(words)) {
			t.Errorf("holdfast help %s: status %d\n%s%s", command, status, out, errOut)
		}
		if flag := wantStatus(t, 0, "Usage: ", append(words, "--help")...); flag != out {
			t.Errorf("holdfast help %s differs from --help:\n%s\n%s", command, out, flag)
		}
	}
	if status, out, errOut := call(t, "help", "kafka"); status != 0 || errOut != "" || !strings.Contains(out, "relay, status, doctor, console") {
		t.Errorf("holdfast help kafka: status %d\n%s%s", status, out, errOut)
	}
}

// usageOf is how the usage of a command begins.
func usageOf(words []string) string {
	if len(words) == 0 {
		return "<command>"
	}
	return strings.Join(words, " ")
}

func TestHelp_AnUnknownCommandIsToldTheNearest(t *testing.T) {
	for _, c := range []struct{ line, says string }{
		{"help statsu", `unexpected argument statsu, did you mean "status"?`},
		{"help dlq lst", `unexpected argument lst, did you mean "list"?`},
		{"help nothing-like-it", "unexpected argument nothing-like-it\n"},
		{"help status now", "unexpected argument now\n"},
	} {
		if out := wantStatus(t, 2, c.says, strings.Fields(c.line)...); out != "" {
			t.Errorf("holdfast %s prints %s", c.line, out)
		}
	}
}

// explained says how often a help explains a flag.
func explained(help, flag string) int {
	return len(regexp.MustCompile(`(?m)^ +(-\w, )?--`+flag+`($|[ =])`).FindAllString(help, -1))
}

func TestHelp_EveryFlagIsExplainedOnce(t *testing.T) {
	database, kafka := wantStatus(t, 0, "", "help"), wantStatus(t, 0, "", "help", "kafka")
	for _, leaf := range commands(t) {
		command := commandOf(leaf)
		help := wantStatus(t, 0, "", append([]string{"help"}, strings.Fields(command)...)...)
		all := help + database
		if strings.Contains(help, "of Kafka: holdfast help kafka.") {
			all += kafka
		} else if slices.ContainsFunc(leaf.Flags, ofKafka) {
			t.Errorf("the help of %s does not say where the flags of Kafka are", command)
		}
		for _, group := range leaf.AllFlags(true) {
			for _, flag := range group {
				if n := explained(all, flag.Name); n != 1 {
					t.Errorf("%s: --%s is explained %d times", command, flag.Name, n)
				}
				for _, variable := range flag.Envs {
					if n := strings.Count(all, "($"+variable+")"); n != 1 {
						t.Errorf("%s: $%s is there %d times", command, variable, n)
					}
				}
			}
		}
	}
}

func TestHelp_EveryCommandHasAnExample(t *testing.T) {
	leaves := commands(t)
	for _, leaf := range leaves {
		out := wantStatus(t, 0, "Example:\n", append(strings.Fields(commandOf(leaf)), "--help")...)
		if strings.Contains(out, "Exit codes") {
			t.Errorf("%s repeats the exit codes", commandOf(leaf))
		}
	}
	out := wantStatus(t, 0, "2 is a wrong command line", "help")
	for _, row := range exitCodes[1:] {
		if !slices.ContainsFunc(leaves, func(leaf *kong.Node) bool { return commandOf(leaf) == row.command }) {
			t.Errorf("there is no command %s", row.command)
		}
	}
	for _, row := range exitCodes {
		if !regexp.MustCompile(`(?m)^ +` + row.command + ` +` + row.zero + `  +` + row.one + `$`).MatchString(out) {
			t.Errorf("the help does not say what %s exits with:\n%s", row.command, out)
		}
	}
}

func TestHelp_CommandsWithoutADatabaseShowNoneOfItsFlags(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://nobody@127.0.0.1:1/none")
	for _, command := range []string{"version", "completion", "help"} {
		args := []string{command}
		if command == "completion" {
			args = append(args, "bash")
		}
		wantStatus(t, 0, "", args...)
		out := wantStatus(t, 0, "Usage: holdfast "+command, command, "--help")
		if strings.Contains(out, "Flags:") || strings.Contains(out, "Also those") || strings.Contains(out, "[flags]") {
			t.Errorf("the help of %s has flags:\n%s", command, out)
		}
	}
	wantStatus(t, 0, "Also those of the database: holdfast help.", "adopt", "--help")
}

func TestHelp_ADefaultIsShownWhereThereIsOne(t *testing.T) {
	t.Setenv("COLUMNS", "1000")
	shared := wantStatus(t, 0, "", "--help")
	for _, leaf := range commands(t) {
		command := commandOf(leaf)
		help := wantStatus(t, 0, "", append(strings.Fields(command), "--help")...)
		for _, group := range leaf.AllFlags(true) {
			for _, flag := range group {
				line := regexp.MustCompile(`(?m)^ +--` + flag.Name + `=.*$`).FindString(help + shared)
				if flag.HasDefault && flag.Default != "" {
					beside := strings.Contains(line, "="+flag.Default+" ") || strings.Contains(line, `="`+flag.Default+`" `)
					if beside == strings.Contains(line, "Defaults to "+flag.Default) {
						t.Errorf("%s: the default of --%s is not shown once: %s", command, flag.Name, line)
					}
				} else if strings.Contains(line, "Defaults to none") {
					t.Errorf("%s: --%s has no default: %s", command, flag.Name, line)
				}
			}
		}
	}
	wantStatus(t, 0, "Defaults to 127.0.0.1:7413.", "console", "--help")
	wantStatus(t, 0, "- is standard input. Defaults to -.", "dlq", "edit", "--help")
}
