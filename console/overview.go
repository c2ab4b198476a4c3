package console

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/state"
)

// consumerRow is a consumer; "" stands for the relays, which have letters only.
type consumerRow struct {
	state.Consumer
	Partitions int
	Held       int // of them
	Lag        []topicLag
}

// topicLag is how far a consumer is from the ends of the partitions of a topic, in offsets.
type topicLag struct {
	Topic   string
	Offsets int64
}

type overviewPage struct {
	state.State
	Needs    []state.Need
	Rows     []consumerRow
	Lags     bool   // whether consumers have them
	LagError string // why they have not

	Unowned     int // lanes
	Troubled    int // relays
	InRelays    string
	InConsumers string
	OpenLetters string
	NoEmpty     bool // no segment of the log is empty
}

func (c *Console) overview(v *visit) (answer, error) {
	p, err := c.looks.overview(v.Context(), c)
	if err != nil {
		return answer{}, fmt.Errorf("read overview: %w", sqlschema.Explain(err, "grant the roles holdfast_operator and holdfast_reader (docs/operations.md)"))
	}
	return answer{page: "overview", data: p}, nil
}

// looks keeps the last look at the state. Many may watch the overview: they share one for a second, and so a database in trouble is not
// asked more often.
type looks struct {
	mu   sync.Mutex
	last overviewPage
	err  error
	at   time.Time
}

// lookedBefore is for how long a look at the owners of lanes is one of seconds ago: a relay that restarts takes longer.
const lookedBefore = 3 * time.Second

func (l *looks) overview(ctx context.Context, c *Console) (overviewPage, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	age := time.Since(l.at)
	if age < time.Second {
		return l.last, l.err
	}
	// The caller's end does not end it: others may wait for the same look.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	o := state.Options{Schema: c.c.Schema, Limits: state.DefaultLimits, Ends: c.c.EndsFunc}
	if age < lookedBefore {
		o.Before = l.last.After
	}
	s, err := state.Read(ctx, plain.Of(c.pool), o)
	if s.NoEnds != nil {
		c.c.Logger.Warn("lag not read", "error", s.NoEnds)
	}
	withoutBroker(&s)
	l.last, l.err, l.at = overviewOf(s, c.c.EndsFunc != nil), err, time.Now()
	return l.last, l.err
}

// withoutBroker leaves out what a broker or a publisher has said: it may have addresses and names that are not for everybody.
func withoutBroker(s *state.State) {
	if s.NoEnds != nil {
		s.NoEnds = errors.New("the log of the console says why")
	}
	for i := range s.Lanes {
		if l := &s.Lanes[i]; l.Trouble != "" {
			l.Trouble = "its log says why"
		}
	}
}

// overviewOf decides what the overview shows of the state.
func overviewOf(s state.State, lags bool) overviewPage {
	p := overviewPage{State: s, Needs: s.Needs(state.DefaultLimits), Lags: lags, NoEmpty: s.Full()}
	if s.NoEnds != nil {
		p.LagError = "the lag could not be read: " + s.NoEnds.Error()
	}
	for _, l := range s.Lanes {
		if l.Owner == "" {
			p.Unowned++
		}
	}
	for _, r := range s.Relays {
		if r.Trouble != "" {
			p.Troubled++
		}
	}
	var letters int64
	var relays consumerRow
	for _, l := range s.Letters {
		letters += l.Open
		if l.Consumer == "" {
			relays.Letters += l.Open
		}
	}
	if relays.Letters > 0 {
		p.Rows = append(p.Rows, relays)
	}
	var waiting int64
	cut := false
	positions := s.Positions // sorted by consumer, as consumers are
	for _, c := range s.Consumers {
		waiting += c.Waiting
		cut = cut || c.Waiting >= state.MostEvents
		row := consumerRow{Consumer: c}
		for ; len(positions) > 0 && positions[0].Consumer <= c.Consumer; positions = positions[1:] {
			if positions[0].Consumer == c.Consumer {
				row.add(positions[0])
			}
		}
		p.Rows = append(p.Rows, row)
	}
	p.InRelays = counted(int64(s.Backlog.Waiting), s.Backlog.Waiting >= state.MostInRelays)
	p.InConsumers = counted(waiting, cut)
	p.OpenLetters = counted(letters, s.Looked >= state.MostEvents)
	return p
}

// counted is a number, or that many and more.
func counted(n int64, more bool) string {
	if more {
		return fmt.Sprint(n, "+")
	}
	return fmt.Sprint(n)
}

// add counts a partition of the consumer.
func (r *consumerRow) add(p state.Position) {
	r.Partitions++
	if p.Held != "" {
		r.Held++
	}
	if !p.Known {
		return
	}
	if n := len(r.Lag); n == 0 || r.Lag[n-1].Topic != p.Topic {
		r.Lag = append(r.Lag, topicLag{Topic: p.Topic})
	}
	r.Lag[len(r.Lag)-1].Offsets += max(p.Lag, 0) // a position past the end has no lag
}

// Late says that an event has waited for longer to be published than holdfast status takes for well, by default.
func (p overviewPage) Late() bool {
	return p.Backlog.Oldest > state.DefaultLimits.Unpublished.Seconds()
}

// Silent says that the consumer has no node, though one should run.
func (r consumerRow) Silent() bool { return r.Node.Consumer != "" && r.Node.Gone() }

// LagSum is the lag of all topics.
func (r consumerRow) LagSum() (n int64) {
	for _, of := range r.Lag {
		n += of.Offsets
	}
	return n
}

// Name is the consumer's name, "" for the relays.
func (r consumerRow) Name() string { return r.Consumer.Consumer }
