package console

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"

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

	Unowned        int   // lanes
	Troubled       int   // relays
	UnreadLanes    int   // lanes with unpublished events
	OldestUnread   int64 // seconds
	InRelays       int64 // events that wait in relays
	OldestInRelays int64 // seconds
	HeldTopics     int
	HeldPartitions int
	InConsumers    int64
	OpenLetters    int64
	NoEmpty        bool // no segment of the log is empty
}

func (c *Console) overview(v *visit) (answer, error) {
	s, err := c.looks.state(v.Context(), c)
	if err != nil {
		return answer{}, fmt.Errorf("read overview: %w", sqlschema.Explain(err, "grant the roles holdfast_operator and holdfast_reader (docs/operations.md)"))
	}
	return answer{page: "overview", data: overviewOf(s, c.c.Ends != nil)}, nil
}

// looks are looks at the state. Many may watch the overview: those who come together share one.
type looks struct {
	together singleflight.Group

	// Only a look reads and writes these, and there is one at a time.
	owners state.Owners // of the lanes at the last look
	at     time.Time
}

// lookedBefore is for how long a look at the owners of lanes is one of seconds ago.
const lookedBefore = 15 * time.Second

func (l *looks) state(ctx context.Context, c *Console) (state.State, error) {
	looked := l.together.DoChan("", func() (any, error) {
		// The end of the first caller does not end it: others wait for the same look.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		o := state.Options{Schema: c.c.Schema, Limits: state.DefaultLimits, Ends: state.Ends(c.c.Ends)}
		if time.Since(l.at) < lookedBefore {
			o.Before = l.owners
		}
		s, err := state.Read(ctx, plain.Of(c.pool), o)
		l.owners, l.at = s.After, time.Now()
		if s.NoEnds != nil {
			c.c.Logger.Warn("lag not read", "error", s.NoEnds)
			s.NoEnds = errors.New("the log of the console says why") // what a broker says is not for everybody
		}
		return s, err
	})
	select {
	case <-ctx.Done():
		return state.State{}, ctx.Err()
	case r := <-looked:
		s, _ := r.Val.(state.State)
		return s, r.Err
	}
}

// overviewOf decides what the overview shows of the state.
func overviewOf(s state.State, lags bool) overviewPage {
	p := overviewPage{State: s, Needs: s.Needs(state.DefaultLimits), Lags: lags}
	if s.NoEnds != nil {
		p.LagError = "the lag could not be read: " + s.NoEnds.Error()
	}
	for _, l := range s.Lanes {
		if l.Owner == "" {
			p.Unowned++
		}
		if l.Unread {
			p.UnreadLanes++
			p.OldestUnread = max(p.OldestUnread, l.Oldest)
		}
		p.InRelays += l.Waiting
		p.OldestInRelays = max(p.OldestInRelays, l.OldestWaiting)
	}
	for _, r := range s.Relays {
		if r.Trouble != "" {
			p.Troubled++
		}
	}
	p.HeldTopics, p.HeldPartitions = s.HeldPlaces()
	p.NoEmpty = s.Full()
	var relays consumerRow
	for _, l := range s.Letters {
		p.OpenLetters += l.Open
		if l.Consumer == "" {
			relays.Letters += l.Open
		}
	}
	if relays.Letters > 0 {
		p.Rows = append(p.Rows, relays)
	}
	for _, c := range s.Consumers {
		p.InConsumers += c.Waiting
		row := consumerRow{Consumer: c}
		for _, at := range s.Positions { // by consumer and topic
			if at.Consumer != c.Consumer {
				continue
			}
			row.add(at)
		}
		p.Rows = append(p.Rows, row)
	}
	return p
}

// add counts a partition of the consumer.
func (r *consumerRow) add(p state.Position) {
	r.Partitions++
	if p.Held != "" {
		r.Held++
	}
	if p.Lag < 0 {
		return
	}
	if n := len(r.Lag); n == 0 || r.Lag[n-1].Topic != p.Topic {
		r.Lag = append(r.Lag, topicLag{Topic: p.Topic})
	}
	r.Lag[len(r.Lag)-1].Offsets += p.Lag
}

// Late says that an event has waited for longer to be published than holdfast status takes for well, by default.
func (p overviewPage) Late() bool {
	return time.Duration(p.OldestUnread)*time.Second > state.DefaultLimits.Unpublished
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
