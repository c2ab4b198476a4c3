package terminal

import (
	"os/exec"
	"testing"
)

func TestTerminal_AShellReadsAQuotedWordAsItIs(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ word, quoted string }{
		{"orders", "orders"},
		{"a-b_c.d/e:f@g%h+i,j", "a-b_c.d/e:f@g%h+i,j"},
		{"", "''"},
		{"a b=1", "'a b=1'"},
		{"it's", `"it's"`},
		{"rollback prepared 'it''s'", `"rollback prepared 'it''s'"`},
		{"'$(touch /tmp/x)'", `''\''$(touch /tmp/x)'\'''`},
		{"'`id`", "''\\''`id`'"},
		{`it's "so"`, `'it'\''s "so"'`},
		{`it's \n`, `'it'\''s \n'`},
		{"it's!", `'it'\''s!'`},
		{"a\nb", "'a\nb'"},
	} {
		if got := Quote(c.word); got != c.quoted {
			t.Errorf("%q is quoted as %s, want %s", c.word, got, c.quoted)
		}
		out, err := exec.Command("sh", "-c", "printf %s "+Quote(c.word)).Output()
		if err != nil || string(out) != c.word {
			t.Errorf("a shell reads %s as %q, %v", Quote(c.word), out, err)
		}
	}
}

func TestTerminal_AFlagsValueMayBeginWithADash(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"billing": "--consumer billing", "it's": `--consumer "it's"`, "-x": "--consumer=-x", "--all it": "--consumer='--all it'", "": "--consumer ''"} {
		if got := Flag("consumer", value); got != want {
			t.Errorf("with %q the flag is %s, want %s", value, got, want)
		}
	}
}

func TestTerminal_WhatMovesTheCursorIsEscaped(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{"plain, ünï": "plain, ünï", "two\nlines\t": "two\nlines\t", "\x1b[2J": `\x1b[2J`, "say \"it's\"\n\x00": "say \"it's\"\n\\x00", "\u202e": `\u202e`, "�": "�", "\xff": `\xff`, "": ""} {
		if got := Clean(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
}

func TestTerminal_ThingsAreCountedInWords(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{Count(1, "event"): "1 event", Count(int64(2), "event"): "2 events", Count(0, "event"): "0 events", Verb(1, "is", "are"): "is", Verb(0, "is", "are"): "are"} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
