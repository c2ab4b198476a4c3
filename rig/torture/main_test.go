//go:build linux

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestCommand_AWrongCommandLineIsRefusedBeforeAnythingIsStarted(t *testing.T) {
	for line, want := range map[string]string{
		"-producers 0":           "-producers is 0: it must be more than 0; the default is 2",
		"-relays 0":              "-relays is 0",
		"-consumers 0":           "-consumers is 0",
		"-rate 0":                "-rate is 0: it must be more than 0; the default is 30",
		"-brokers 0":             "-brokers is 0: it must be more than 0; the default is 1",
		"-for 0":                 "-for is 0: it must be more than 0; the default is 3m0s",
		"-for 3":                 "for flag -for",
		"-nothing":               "flag provided but not defined",
		"kill-relay":             "\"kill-relay\" is not a flag",
		"-producers 0 -relays 0": "-producers is 0",
	} {
		var out, errOut bytes.Buffer
		if status := runCommand(strings.Fields(line), &out, &errOut); status != 2 || !strings.Contains(errOut.String(), want) || out.Len() > 0 {
			t.Errorf("%s: status %d, and it says %q%q, without %q", line, status, out.String(), errOut.String(), want)
		}
	}
	for line, want := range map[string]string{
		"-faults nothing-* -for 1s": "no fault has a name like that: -list shows them",
		"-producers 21":             "it must be between 1 and 20",
		"-brokers 2":                "brokers is 2: it must be 1 or 3",
	} {
		var out, errOut bytes.Buffer
		if status := runCommand(strings.Fields(line), &out, &errOut); status != 1 || !strings.Contains(errOut.String(), want) {
			t.Errorf("%s: status %d, and it says %q, without %q", line, status, errOut.String(), want)
		}
	}
}

func TestCommand_HelpSaysWhatIsNeededAndHowItEnds(t *testing.T) {
	var out, errOut bytes.Buffer
	if status := runCommand([]string{"-help"}, &out, &errOut); status != 0 {
		t.Errorf("status %d", status)
	}
	for _, want := range []string{"Docker", "root", "PgBouncer", "Exit codes: 0", "-list", "-seed"} {
		if !strings.Contains(errOut.String(), want) {
			t.Errorf("no word of %q in\n%s", want, errOut.String())
		}
	}
}

func TestCommand_TheListHasEveryKindOfFault(t *testing.T) {
	var out, errOut bytes.Buffer
	if status := runCommand([]string{"-list"}, &out, &errOut); status != 0 {
		t.Errorf("status %d: %s", status, errOut.String())
	}
	for _, want := range []string{"kill-relay", "kill-backend", "kill-postgres", "restart-postgres", "freeze-kafka", "cut-commit-after-producer", "truncate-up-relay-kafka",
		"refuse-rights", "postgres-disk-full", "exhaust-relay", "prepared-transaction", "clock-forward", "relay-storm", "failover", "dump-restore",
		"kill-broker", "pause-broker", "roll-brokers", "move-leaders"} {
		if !strings.Contains(out.String(), want+" ") {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
