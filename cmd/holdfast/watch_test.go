package main

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// What watching returns is what the last look said, whatever those before it said.
func TestWatch_WatchingEndsWithWhatItSawLast(t *testing.T) {
	t.Parallel()
	type look struct {
		needy bool
		err   error
	}
	boom := errors.New("the database is \x1b[2Jaway")
	for _, c := range []struct {
		name  string
		looks []look
		want  error
	}{
		{"all is well", []look{{}}, nil},
		{"something needs a person", []look{{}, {needy: true}}, program.ErrNeedsPerson},
		{"it is over", []look{{needy: true}, {}}, nil},
		{"it could not look", []look{{}, {err: boom}}, program.ErrNeedsPerson},
		{"an outage is over", []look{{err: boom}, {err: boom}, {}}, nil},
		{"it never looked", nil, nil},
	} {
		ctx, stop := context.WithCancel(t.Context())
		var out bytes.Buffer
		looked := 0
		err := watch(ctx, &out, false, time.Nanosecond, func() string { return "now" }, func(context.Context) ([]byte, bool, error) {
			if looked == len(c.looks) {
				stop()
				return nil, true, ctx.Err()
			}
			l := c.looks[looked]
			looked++
			return []byte("the lanes\n"), l.needy, l.err
		})
		stop()
		if err != c.want || strings.Count(out.String(), "now\n") != len(c.looks) {
			t.Errorf("%s: %v, want %v, and %d frames:\n%s", c.name, err, c.want, len(c.looks), out.String())
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("%s: what an error says moves the cursor: %q", c.name, out.String())
		}
	}
}

func TestWatch_AFrameReplacesTheOneBeforeOnATerminalOnly(t *testing.T) {
	t.Parallel()
	if got, want := string(frame("now", []byte("a\nb\n"), true)), "\x1b[Hnow\x1b[K\na\x1b[K\nb\x1b[K\n\x1b[J"; got != want {
		t.Errorf("on a terminal: %q, want %q", got, want)
	}
	if got, want := string(frame("now", []byte("a\n"), false)), "now\na\n\n"; got != want {
		t.Errorf("in a file: %q, want %q", got, want)
	}
	if got, want := string(frame("", []byte("{}\n"), false)), "{}\n"; got != want {
		t.Errorf("JSON: %q, want %q", got, want)
	}
}

// SIGINT ends it, with 1 while something needs a person and with 0 once that is over.
func TestWatch_ASignalEndsWatchingWithItsLastState(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	db := installed(t)
	path, err := binary()
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	for _, c := range []struct {
		name, before, after string
		status              int
	}{
		{"it gets worse", "select", `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time) values (3, 'gone', 'k', 1, 'topic', now(), 'e', 's', 't', now())`, 1},
		{"it gets better", "select", "truncate holdfast.parked", 0},
	} {
		pgtest.Exec(t, db.Pool, c.before)
		var out logtest.Log
		cmd := exec.Command(path, "status", "--watch", "--every", "20ms")
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		wait.Until(t, "it has looked", func() bool { return strings.Count(out.String(), "holdfast status at ") >= 2 })
		pgtest.Exec(t, db.Pool, c.after)
		says := map[int]string{0: "nothing needs a person", 1: "topic gone is missing"}[c.status]
		wait.Until(t, c.name, func() bool {
			text := out.String()
			return strings.Contains(text[max(strings.LastIndex(text, "holdfast status at "), 0):], says)
		})
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if got := cmd.ProcessState.ExitCode(); got != c.status {
			t.Errorf("%s: it ended with %d, want %d: %s", c.name, got, c.status, out.String())
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("%s: it moves the cursor of what is no terminal", c.name)
		}
	}
}
