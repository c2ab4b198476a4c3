//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/waiting"
)

// person is somebody who decides about what waits, ten times a second: one who tries everything, and is never patient.
type person struct {
	part
	pool    *pgxpool.Pool
	rec     *history.Recorder
	conduct *conduct
	room    *waiting.Room
	letters *dlq.DLQ
	rng     *rand.Rand
	n       int // commands
}

// What a person does. The name of a command begins with it.
const (
	retries   = "retry"
	redirects = "redirect"
	givesUp   = "give-up"
	discards  = "discard"
	replays   = "replay"
)

// decides is the conduct of a person who gives up more of what waits in relays, whatever it is.
const decides = "decide"

// finishes is the conduct of a person near the end of a run: nothing is given up any more, nor replayed.
const finishes = "finish"

// decide gives one command after another until ctx is done.
func (p part) decide(ctx context.Context, pool *pgxpool.Pool, rec *history.Recorder, logger *slog.Logger, c *conduct) error {
	room, err := waiting.New(pool, waiting.Config{})
	if err != nil {
		return err
	}
	letters, err := dlq.New(pool, dlq.Config{})
	if err != nil {
		return err
	}
	who := &person{
		part:    p,
		pool:    pool,
		rec:     rec,
		conduct: c,
		room:    room,
		letters: letters,
		rng:     rand.New(rand.NewPCG(p.Seed, 1)),
	}
	for took := time.Duration(0); sleep(ctx, between(who.rng, 5*time.Millisecond, 100*time.Millisecond)+min(2*took, 300*time.Millisecond)); {
		began := time.Now()
		if err := who.turn(ctx); err != nil && ctx.Err() == nil {
			logger.Warn("command failed", "err", err)
		}
		took = time.Since(began)
	}
	return nil
}

// turn looks at what waits, and gives one command about some of it. About what waits for the misspelt topic, nearly every second
// one decides: without that it would wait for ever. About all else, few do: what a person has given up proves nothing.
func (p *person) turn(ctx context.Context) error {
	groups, err := p.room.Groups(ctx, waiting.Filter{})
	if err != nil {
		return err
	}
	drawn := p.rng.IntN(64)
	if drawn < 4 && !p.conduct.is(finishes) {
		return p.replay(ctx)
	}
	if len(groups) == 0 {
		return nil
	}
	g := groups[p.rng.IntN(len(groups))]
	f := waiting.Filter{Consumer: g.Consumer, Topic: g.Topic}
	if g.Consumer == "" {
		f.Origin = g.Origin
	}
	few, many := 5, 6 // below the first an event or a key is discarded, below the second it is given up
	if g.Consumer == "" && (g.Topic == p.Misspelt || p.conduct.is(decides)) {
		few, many = 12, 20
	}
	switch {
	case g.Why == waiting.Scheduled:
		return nil
	case drawn < many && !p.conduct.is(finishes):
		return p.giveUp(ctx, f, drawn < few)
	case drawn < 48 && g.Topic == p.Misspelt && g.Consumer == "":
		return p.command(redirects, func(o waiting.Options) (int, error) {
			return p.room.Redirect(ctx, f, p.Topics[0], o)
		})
	}
	return p.command(retries, func(o waiting.Options) (int, error) { return p.room.Retry(ctx, f, o) })
}

// giveUp gives up one event of a consumer, or what waits of one key in relays, for good or not. Events without a key are all of a topic.
func (p *person) giveUp(ctx context.Context, f waiting.Filter, forGood bool) error {
	page := f
	page.Limit = 50
	events, err := p.room.List(ctx, page)
	if err != nil || len(events) == 0 {
		return err
	}
	e := events[p.rng.IntN(len(events))]
	switch {
	case f.Consumer != "":
		f.EventID = e.Event.ID
	case (e.Event.Key == "" || e.Event.Key == keyOf(0)) && !p.conduct.is(decides):
		return nil // too much: without a key it is all of the topic, and the hot key has a fifth of all events
	default:
		f.Key = e.Event.Key
	}
	if !forGood {
		return p.command(givesUp, func(o waiting.Options) (int, error) { return p.room.GiveUp(ctx, f, o) })
	}
	return p.command(discards, func(o waiting.Options) (int, error) {
		n, err := p.room.Discard(ctx, f, o)
		if n > 0 && f.Consumer == "" {
			_ = p.withBug(bugUndead, func() error { return p.writeAgain(ctx, e.Event) })
		}
		return n, err
	})
}

// replay replays all that a person has given up, and not discarded.
func (p *person) replay(ctx context.Context) error {
	open, err := p.letters.List(ctx, dlq.Filter{NoPayloads: true})
	if err != nil {
		return err
	}
	var ids []int64
	for _, l := range open {
		if commandOf(l.Reason) != "" {
			ids = append(ids, l.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return p.command(replays, func(o waiting.Options) (int, error) {
		return p.letters.Replay(ctx, dlq.Filter{IDs: ids}, dlq.ReplayOptions{By: o.By, Reason: o.Reason})
	})
}

// command gives a command a name, and records its answer.
func (p *person) command(action string, do func(waiting.Options) (int, error)) error {
	if err := p.buggyCommand(); err != nil {
		return err
	}
	p.n++
	name := fmt.Sprintf("%s %d of %s", action, p.n, p.name())
	n, err := do(waiting.Options{By: p.name(), Reason: name})
	how := history.OK
	var not *dlq.NotReplayableError
	switch {
	case errors.Is(err, waiting.ErrNotFound), errors.Is(err, waiting.ErrBeingSent), errors.Is(err, waiting.ErrBehindLetter), errors.As(err, &not):
		err = nil // an answer like any other
	case err != nil:
		how = history.Unknown
	}
	p.rec.Add(history.Entry{
		Op:   history.Decide,
		Num:  int64(n),
		How:  how,
		Text: name,
	})
	return err
}

// named finds the name of the command in the reason of a letter, which ends with it.
var named = regexp.MustCompile(`(` + givesUp + `|` + discards + `) \d+ of ` + rolePerson + `/\d+/\d+$`)

// commandOf is the command that gave the event of a letter up, "" if no person did.
func commandOf(reason string) string { return named.FindString(reason) }

// buggyCommand is what a command with a bug does before its work.
func (p *person) buggyCommand() (err error) {
	ctx := context.Background()
	switch p.Bug {
	case bugDisown:
		_, err = p.pool.Exec(ctx, "update holdfast.lane set owner = null where lease_until > clock_timestamp()")
	case bugUnlease:
		_, err = p.pool.Exec(ctx, "delete from holdfast.parked_lease where topic <> ''")
	}
	return err
}

// writeAgain writes an event that was discarded, as if the command had not done what it says.
func (p *person) writeAgain(ctx context.Context, e holdfast.Event) error {
	e.Topic, e.Time = p.Topics[0], time.Time{}
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return outbox.Write(ctx, tx, e) })
}
