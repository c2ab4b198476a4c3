package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/terminal"
	"github.com/holdfast-go/holdfast/waiting"
)

// consumerRow is a consumer; "" stands for the relays, which have letters only.
type consumerRow struct {
	state.Consumer
	Partitions int
	Held       int // of them
	Paused     bool
	Away       []string // what its handlers need and is away
	Lag        []topicLag
	Rate       string // of its positions, a second
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

	Unowned     int    // lanes
	NeedOwner   int    // of them, those that have events
	Troubled    int    // relays
	Trouble     string // what the first of them says of the broker
	Silent      int    // consumers without a node, though one should run
	Away        int    // things that handlers need and that are away
	InRelays    string
	InConsumers string
	NoEmpty     bool // no segment of the log is empty
	Counts      counts
	Lag         int64 // of all consumers
	LagKnown    bool

	Written, Published, Recorded, Dead figure
	Unpublished, Lagging               chart

	history history // of the last hour
}

// figure is a counter's rate of now, and that of the last hour.
type figure struct {
	Rate  string
	Chart chart
}

func (c *Console) overview(v *visit) (answer, error) {
	p, err := c.looks.get(v.Context(), c.look)
	if err != nil {
		return answer{}, fmt.Errorf("read overview: %w", sqlschema.Explain(err, "grant the roles holdfast_operator and holdfast_reader (docs/operations.md)"))
	}
	if !v.User.SeesPayload {
		p = p.withoutTexts()
	}
	title := "Overview"
	if n := len(p.Needs); n > 0 {
		title = fmt.Sprintf("(%d) %s", n, title)
	}
	return answer{page: "overview", title: title, every: 5, counts: &p.Counts, data: p}, nil
}

// lookedBefore is for how long a look at the owners of lanes is one of seconds ago: a relay that restarts takes longer.
const lookedBefore = 3 * time.Second

// lookEvery is how often Run looks.
const lookEvery = 10 * time.Second

// Run remembers what is counted while nobody looks, so that the charts of the overview have the last hour, until the context ends. It looks
// every 10 seconds, as a page that is open does every 5. Without Run the charts begin when somebody opens the overview. A look that fails
// leaves a gap, and a line in the log. It returns nil.
func (c *Console) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if _, err := c.looks.get(ctx, c.look); err != nil && ctx.Err() == nil {
			c.c.Logger.Warn("console did not look", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// look reads the overview, and adds to the history of the last one.
func (c *Console) look(ctx context.Context, last overviewPage, age time.Duration) (overviewPage, error) {
	o := state.Options{Schema: c.c.Schema, Limits: state.DefaultLimits, Ends: c.c.EndsFunc}
	if age < lookedBefore {
		o.Before = last.After
	}
	s, err := state.Read(ctx, plain.Of(c.pool), o)
	if s.NoEnds != nil {
		c.c.Logger.Warn("lag not read", "error", s.NoEnds)
	}
	p := overviewOf(s, c.c.EndsFunc != nil)
	p.history = last.history
	if err != nil {
		return p, err
	}
	if now, err := readSample(ctx, state.Reader{DB: plain.Of(c.pool), Schema: c.c.Schema}, &p); err == nil {
		p.history = p.history.add(now)
	} else {
		c.c.Logger.Warn("console did not look", "error", err)
	}
	p.draw()
	return p, nil
}

// readSample reads what is counted, beside what a look has seen.
func readSample(ctx context.Context, r state.Reader, p *overviewPage) (sample, error) {
	w, err := r.Written(ctx)
	if err != nil {
		return sample{}, err
	}
	s := sample{
		at:          w.At,
		written:     w.Written,
		published:   w.Published,
		recorded:    w.Recorded,
		letters:     w.Letters,
		positions:   map[string]int64{},
		unpublished: levelOf(p.Backlog.Oldest),
		lag:         levelOf(math.NaN()),
	}
	if p.LagKnown {
		s.lag = levelOf(float64(p.Lag))
	}
	consumers, err := r.Progress(ctx)
	for _, of := range consumers {
		s.positions[of.Consumer] = of.Position
	}
	return s, err
}

// draw adds rates and charts.
func (p *overviewPage) draw() {
	h := p.history
	p.Written = figure{h.rate(written), h.perSecond("written", written)}
	p.Published = figure{h.rate(published), h.perSecond("published", published)}
	p.Recorded = figure{h.rate(recorded), h.perSecond("handled or stored", recorded)}
	p.Dead = figure{h.rate(letters), h.perSecond("dead letters", letters)}
	p.Unpublished = h.level("age of the oldest unpublished event", func(s sample) level { return s.unpublished }, ageText)
	p.Lagging = h.level("lag", func(s sample) level { return s.lag }, func(n float64) string { return fmt.Sprintf("%.0f", n) })
	for i := range p.Rows {
		p.Rows[i].Rate = h.rate(position(p.Rows[i].Name()))
	}
}

// noLag begins the reason for which consumers have no lag.
const noLag = "the lag could not be read: "

// withoutTexts is the page without what brokers, sources and functions of users have said: they may say anything. Others have the same page at once.
func (p overviewPage) withoutTexts() overviewPage {
	if p.NoEnds != nil {
		p.NoEnds, p.LagError = errors.New(inTheLog), noLag+inTheLog
	}
	p.Relays, p.Trouble = slices.Clone(p.Relays), ""
	for i := range p.Relays {
		p.Relays[i].Trouble = ""
	}
	p.Lanes = slices.Clone(p.Lanes)
	for i := range p.Lanes {
		if l := &p.Lanes[i]; l.Trouble != "" {
			const instead, of = "its log says why", "broker: "
			rest, begins := strings.CutPrefix(l.HeldBy, of+terminal.Clean(l.Trouble))
			if !begins {
				rest = ""
			}
			l.HeldBy, l.Trouble = of+instead+rest, instead
		}
	}
	const ofNode = "the log of its node says why"
	p.Positions, p.Backfills = slices.Clone(p.Positions), slices.Clone(p.Backfills)
	for i := range p.Positions {
		if p.Positions[i].Held != "" {
			p.Positions[i].Held = ofNode
		}
	}
	for i := range p.Backfills {
		if p.Backfills[i].Error != "" {
			p.Backfills[i].Error = ofNode
		}
	}
	p.Needs = p.State.Needs(state.DefaultLimits)
	return p
}

// overviewOf decides what the overview shows of the state.
func overviewOf(s state.State, lags bool) overviewPage {
	p := overviewPage{State: s, Needs: s.Needs(state.DefaultLimits), Lags: lags, NoEmpty: s.Full()}
	if s.NoEnds != nil {
		p.LagError = noLag + s.NoEnds.Error()
	}
	for _, l := range s.Lanes {
		if l.Owner == "" {
			p.Unowned++
		}
		if l.NeedsOwner() {
			p.NeedOwner++
		}
	}
	for _, r := range s.Relays {
		if r.Trouble != "" {
			p.Troubled++
			p.Trouble = cmp.Or(p.Trouble, r.Trouble)
		}
	}
	var relays consumerRow
	for _, l := range s.Letters {
		if l.Consumer == "" {
			relays.Letters += l.Open
		}
	}
	if relays.Letters > 0 {
		p.Rows = append(p.Rows, relays)
	}
	var stored int64
	cut := false
	positions := s.Positions // sorted by consumer, as consumers are
	for _, c := range s.Consumers {
		stored += c.Waiting
		cut = cut || c.Waiting >= state.MostEvents
		row := consumerRow{
			Consumer: c,
			Paused:   slices.ContainsFunc(s.Paused, func(p state.Pause) bool { return p.Of() == waiting.Pausable{Consumer: c.Consumer} }),
		}
		for ; len(positions) > 0 && positions[0].Consumer <= c.Consumer; positions = positions[1:] {
			if positions[0].Consumer == c.Consumer {
				row.add(positions[0])
			}
		}
		for _, d := range s.Needed {
			if d.Consumer == c.Consumer && d.Gone() {
				row.Away = append(row.Away, d.Name)
			}
		}
		p.Away += len(row.Away)
		p.Rows = append(p.Rows, row)
		p.Lag += row.LagSum()
		p.LagKnown = p.LagKnown || len(row.Lag) > 0
		if row.Silent() {
			p.Silent++
		}
	}
	p.InRelays = counted(int64(s.Backlog.Waiting), s.Backlog.Waiting >= state.MostInRelays)
	p.InConsumers = counted(stored, cut)
	p.Counts = countsOf(s.Letters, s.Looked, s.Backlog.Waiting, stored, cut, len(s.Paused))
	return p
}

// listing is where a list is, and what a link to it says.
type listing struct {
	Href template.URL // it is encoded
	Name string
}

// listed is where a need is listed, nil if nowhere.
func (c Config) listed(l state.List) *listing {
	filter := template.URL(queryOf("origin", l.Origin, "consumer", l.Consumer, "topic", l.Topic))
	at := template.URL(c.Prefix)
	switch l.Of {
	case state.OfLetters:
		return &listing{at + "/letters" + filter, "Dead letters"}
	case state.OfWaiting:
		return &listing{at + "/waiting" + filter, "Waiting"}
	case state.OfPaused:
		return &listing{at + "/paused", "Paused"}
	case state.OfLanes:
		return &listing{"#lanes-of", "Lanes"}
	case state.OfConsumers:
		return &listing{"#consumers-of", "Consumers"}
	case state.OfNothing:
	}
	return nil
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
	r.Lag[len(r.Lag)-1].Offsets += p.Behind()
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
