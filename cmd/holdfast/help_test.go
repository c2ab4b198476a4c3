package main

import (
	"regexp"
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
