package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/backfill"
	"github.com/holdfast-go/holdfast/internal/state"
)

func TestAway_OnlyWhatTheDatabasesClientSaysIsOfTheDatabase(t *testing.T) {
	t.Parallel()
	_, refused := pgconn.Connect(t.Context(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	for _, c := range []struct {
		err  error
		want bool
	}{
		{refused, true},
		{&pgconn.PgError{Code: "57P01"}, true},
		{&pgconn.PgError{Code: "53300"}, true},
		{&pgconn.PgError{Code: "08006"}, true},
		{&pgconn.PgError{Code: "42P01"}, false},
		{&pgconn.PgError{Code: "28P01"}, false},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, false},
		{context.DeadlineExceeded, false},
		{errors.New("database"), false},
	} {
		if got := isAway(fmt.Errorf("read overview: %w", c.err)); got != c.want {
			t.Errorf("%v: %t, want %t", c.err, got, c.want)
		}
	}
}

// A pool whose database swallows everything has no error of its own in time: it gives that of the context.
func TestAway_ALookThatGetsNoAnswerInTimeSaysSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s shared[int]
		began := time.Now()
		read := func(ctx context.Context, _ int, _ time.Duration) (int, error) { <-ctx.Done(); return 0, ctx.Err() }
		if _, err := s.get(t.Context(), read); !isAway(err) || time.Since(began) != lookWithin {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		time.Sleep(time.Minute)
		read = func(ctx context.Context, _ int, _ time.Duration) (int, error) { return 0, context.DeadlineExceeded }
		if _, err := s.get(t.Context(), read); isAway(err) {
			t.Errorf("somebody else's deadline is %v", err)
		}
	})
}

func TestAway_ThePageIsShownWithoutTheTextsOfOthers(t *testing.T) {
	t.Parallel()
	p := overviewPage{State: state.State{Lanes: []state.Lane{
		{Trouble: "a", HeldBy: "broker: a, topic a"},
		{Trouble: "b", HeldBy: "something of b"},
		{HeldBy: "topic c"},
	}}}
	want := []string{"broker: its log says why, topic a", "broker: its log says why", "topic c"}
	for i, l := range p.withoutTexts().Lanes {
		if l.HeldBy != want[i] {
			t.Errorf("lane %d is held by %q, want %q", i, l.HeldBy, want[i])
		}
	}
	p.Positions = []state.Position{{Consumer: "billing", Topic: "orders", Held: "a source of your own says it"}, {Consumer: "billing", Topic: "orders", Partition: 1}}
	p.Backfills = []state.Backfill{{Row: backfill.Row{Consumer: "billing", Ended: true, Error: "a broker says it"}}, {Row: backfill.Row{Consumer: "mail", Ended: true}}}
	without := p.withoutTexts()
	if without.Positions[0].Held != "the log of its node says why" || without.Positions[1].Held != "" || without.Backfills[0].State() != "ended early: the log of its node says why" || without.Backfills[1].State() != "done" {
		t.Errorf("positions are %+v, backfills %+v", without.Positions, without.Backfills)
	}
	if len(without.Needs) != 1 || without.Needs[0].Says != "consumer billing holds partition 0 of topic orders: the log of its node says why" {
		t.Errorf("what needs a person is %+v", without.Needs)
	}
	if p.Positions[0].Held != "a source of your own says it" || p.Backfills[0].Error != "a broker says it" {
		t.Errorf("the page of others has %+v and %+v now", p.Positions[0], p.Backfills[0])
	}
	if p.Lanes[0].Trouble != "a" || p.Lanes[0].HeldBy != "broker: a, topic a" {
		t.Errorf("the page of others has %+v now", p.Lanes[0])
	}
}
