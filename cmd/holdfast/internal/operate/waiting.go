package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/terminal"
	"github.com/holdfast-go/holdfast/waiting"
)

// Waiting is holdfast waiting.
type Waiting struct {
	Groups   waitingGroupsCmd   `cmd:"" help:"Count what waits, by place, topic and reason."`
	List     waitingListCmd     `cmd:"" help:"List events that wait."`
	Show     waitingShowCmd     `cmd:"" help:"Show a waiting event with its errors."`
	Retry    waitingRetryCmd    `cmd:"" help:"Try events at once that wait for their next attempt."`
	GiveUp   waitingGiveUpCmd   `cmd:"" name:"give-up" help:"Make events dead letters, so that the next events of their keys can continue."`
	Discard  waitingDiscardCmd  `cmd:"" help:"Give events up for good, so that the next events of their keys can continue."`
	Redirect waitingRedirectCmd `cmd:"" help:"Make the events of a topic that wait in relays events of another one."`
	Cancel   waitingCancelCmd   `cmd:"" help:"Take scheduled events back before their time."`
}

// waiting returns what the commands work with, until done is called.
func openRoom(p *program.Program) (*waiting.Room, func(), error) {
	pool, err := p.Pool()
	if err != nil {
		return nil, nil, err
	}
	room, err := waiting.New(pool, waiting.Config{Schema: p.Database.Schema})
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return room, pool.Close, nil
}

// waits are the flags that choose waiting events.
type waits struct {
	Origin    string `help:"Only those in relays and the schedule, or in consumers: relay or inbox." enum:",relay,inbox" default:"" placeholder:"ORIGIN"`
	Consumer  string `help:"Only those in this consumer." placeholder:"NAME"`
	Topic     string `help:"Only events of this topic." placeholder:"TOPIC"`
	Key       string `help:"Only events of this key." placeholder:"KEY"`
	Type      string `help:"Only events of this type." placeholder:"TYPE"`
	Source    string `help:"Only events of this source." placeholder:"SOURCE"`
	EventID   string `help:"Only the event with this id." placeholder:"ID"`
	Why       string `help:"Only those that wait for this, by a word of the column WHY of waiting groups." enum:",scheduled,no-handler,paused,topic,partition,behind-event,behind-letter,dependency,failed" default:"" placeholder:"WHY"`
	Heads     bool   `help:"Only the first waiting event of each key."`
	Partition *int   `help:"Only those that wait in relays for this partition of the topic." placeholder:"N"`
}

func (w waits) filter(limit int) waiting.Filter {
	return waiting.Filter{
		Origin:    w.Origin,
		Consumer:  w.Consumer,
		Topic:     w.Topic,
		Key:       w.Key,
		Type:      w.Type,
		Source:    w.Source,
		EventID:   w.EventID,
		Why:       waiting.Why(w.Why),
		Heads:     w.Heads,
		Partition: w.Partition,
		Limit:     limit,
	}
}

// narrow says whether there is a filter beside the consumer or the origin.
func (w waits) narrow() bool {
	w.Origin, w.Consumer = "", ""
	return w != waits{}
}

// where is the place of an event as a person reads it.
func where(consumer string) string {
	if consumer == "" {
		return "the relays"
	}
	return "consumer " + terminal.Clean(consumer)
}

// WhyOr is a reason, or what it is instead of waiting.
func WhyOr(why waiting.Why, running bool) string {
	switch {
	case running:
		return "its handler runs"
	case why == "":
		return "its turn has come"
	}
	return string(why)
}

// whyOfGroup is the reason of a group. Handlers of those that wait for nothing may run.
func whyOfGroup(why waiting.Why) string {
	if why == "" {
		return "due, or running"
	}
	return string(why)
}

func timeOrDash(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

type waitingGroupsCmd struct {
	waits `embed:""`
	JSON  bool `help:"Print one JSON object per line." name:"json"`
}

type jsonWaitingGroup struct {
	Origin    string     `json:"origin"`
	Consumer  string     `json:"consumer,omitempty"`
	Topic     string     `json:"topic"`
	Why       string     `json:"why"`
	Type      string     `json:"type,omitempty"` // of what waits because no node handles it
	Events    int        `json:"events"`
	Keys      int        `json:"keys"`
	Bytes     int64      `json:"bytes"`
	OldestAt  time.Time  `json:"oldest_at"`
	NextAt    *time.Time `json:"next_at,omitempty"`
	LastError string     `json:"last_error,omitempty"`
}

func (c *waitingGroupsCmd) Run(p *program.Program) error {
	room, done, err := openRoom(p)
	if err != nil {
		return err
	}
	defer done()
	groups, err := room.Groups(p.Ctx, c.filter(0))
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		defer sayUnknown(p, c.Consumer)
	}
	if c.JSON {
		enc := json.NewEncoder(p.Out)
		for _, g := range groups {
			if err := enc.Encode(jsonWaitingGroup{g.Origin, g.Consumer, g.Topic, string(g.Why), g.Type, g.Events, g.Keys, g.Bytes, g.OldestAt.UTC(), unlessZero(g.NextAt.UTC()), g.Error}); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(p.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHERE\tTOPIC\tWHY\tTYPE\tEVENTS\tKEYS\tMiB\tOLDEST\tNEXT\tLAST ERROR")
	for _, g := range groups {
		failure, _, _ := strings.Cut(g.Error, "\n")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%.1f\t%s\t%s\t%.80s\n", where(g.Consumer), terminal.Clean(g.Topic), whyOfGroup(g.Why), state.Dash(terminal.Clean(g.Type)), g.Events, g.Keys, float64(g.Bytes)/(1<<20),
			timeOrDash(g.OldestAt), timeOrDash(g.NextAt), terminal.Clean(failure))
	}
	return w.Flush()
}

type waitingListCmd struct {
	waits `embed:""`
	Limit int  `help:"Maximum number to list." default:"100"`
	JSON  bool `help:"Print one JSON object per line, without payloads." name:"json"`
}

type jsonWaiting struct {
	Origin    string     `json:"origin"`
	Consumer  string     `json:"consumer,omitempty"`
	Topic     string     `json:"topic"`
	Key       string     `json:"key"`
	EventID   string     `json:"event_id"`
	Source    string     `json:"source"`
	Type      string     `json:"type"`
	Why       string     `json:"why"` // "" if its turn has come, or its handler runs
	Head      bool       `json:"head"`
	Running   bool       `json:"running"`
	Partition *int       `json:"partition,omitempty"` // for which it waits
	Attempts  int        `json:"attempts"`
	LastError string     `json:"last_error,omitempty"`
	Since     time.Time  `json:"since"`
	NextAt    *time.Time `json:"next_at,omitempty"`
	Letter    int64      `json:"letter,omitempty"`
}

func jsonOfWaiting(w waiting.Event) jsonWaiting {
	j := jsonWaiting{
		Origin:    w.Origin,
		Consumer:  w.Consumer,
		Topic:     w.Event.Topic,
		Key:       w.Event.Key,
		EventID:   w.Event.ID,
		Source:    w.Event.Source,
		Type:      w.Event.Type,
		Why:       string(w.Why),
		Head:      w.Head,
		Running:   w.Running,
		Attempts:  w.Attempts,
		LastError: w.Error,
		Since:     w.Since.UTC(),
		NextAt:    unlessZero(w.NextAt.UTC()),
		Letter:    w.Letter,
	}
	if w.Partition >= 0 {
		j.Partition = &w.Partition
	}
	return j
}

func (c *waitingListCmd) Run(p *program.Program) error {
	room, done, err := openRoom(p)
	if err != nil {
		return err
	}
	defer done()
	events, err := room.List(p.Ctx, c.filter(c.Limit))
	if err != nil {
		return err
	}
	if len(events) == 0 {
		defer sayUnknown(p, c.Consumer)
	}
	if c.JSON {
		enc := json.NewEncoder(p.Out)
		for _, e := range events {
			if err := enc.Encode(jsonOfWaiting(e)); err != nil {
				return err
			}
		}
		return nil
	}
	w := tabwriter.NewWriter(p.Out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "WHERE\tTOPIC\tKEY\tID\tTYPE\tSOURCE\tWHY\tATTEMPTS\tSINCE\tNEXT\tLAST ERROR")
	for _, e := range events {
		failure, _, _ := strings.Cut(e.Error, "\n")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%.80s\n", where(e.Consumer), terminal.Clean(e.Event.Topic), terminal.Clean(e.Event.Key), terminal.Clean(e.Event.ID), terminal.Clean(e.Event.Type), state.Dash(e.Event.Source),
			WhyOr(e.Why, e.Running), e.Attempts, timeOrDash(e.Since), timeOrDash(e.NextAt), terminal.Clean(failure))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if len(events) == c.Limit {
		fmt.Fprintln(p.Out, "there may be more: raise --limit (1000 at most), or narrow the filter. Relays come first, then consumers (--origin inbox), then what is scheduled (--why scheduled)")
	}
	return nil
}

type waitingShowCmd struct {
	Consumer string `help:"Only in this consumer." placeholder:"NAME"`
	Source   string `help:"Only of this source." placeholder:"SOURCE"`
	Payload  bool   `help:"Print the payload, the values of headers and the results of steps."`
	JSON     bool   `help:"Print one JSON object per line." name:"json"`
	ID       string `arg:"" name:"event" help:"Id of the event."`
}

type jsonWaitingDetail struct {
	jsonWaiting
	Errors          []string          `json:"errors"`
	FailedAt        *time.Time        `json:"failed_at,omitempty"`
	RecordPartition int               `json:"record_partition"`
	RecordOffset    int64             `json:"record_offset"`
	PayloadSize     int               `json:"payload_size"`
	Steps           []jsonStep        `json:"steps,omitempty"` // of its handler, that are done
	Headers         map[string]string `json:"headers,omitempty"`
	Payload         []byte            `json:"payload,omitempty"`
}

func (c *waitingShowCmd) Run(p *program.Program) error {
	room, done, err := openRoom(p)
	if err != nil {
		return err
	}
	defer done()
	found, err := room.Show(p.Ctx, waiting.Filter{
		Consumer: c.Consumer,
		Source:   c.Source,
		EventID:  c.ID,
	}, c.Payload)
	if errors.Is(err, waiting.ErrNotFound) {
		return fmt.Errorf("%w: holdfast find says where the event is", err)
	}
	if err != nil {
		return err
	}
	for i, d := range found {
		if c.JSON {
			err = c.encode(p, d)
		} else {
			if i > 0 {
				fmt.Fprintln(p.Out)
			}
			err = c.print(p, d)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *waitingShowCmd) encode(p *program.Program, d waiting.Detail) error {
	j := jsonWaitingDetail{
		jsonWaiting:     jsonOfWaiting(d.Event),
		Errors:          d.Errors,
		FailedAt:        unlessZero(d.FailedAt.UTC()),
		RecordPartition: d.RecordPartition,
		RecordOffset:    d.RecordOffset,
		PayloadSize:     d.PayloadSize,
		Steps:           jsonOfSteps(d.Steps, c.Payload),
	}
	if c.Payload {
		j.Headers, j.Payload = d.Event.Event.Headers, d.Event.Event.Payload
	}
	return json.NewEncoder(p.Out).Encode(j)
}

func (c *waitingShowCmd) print(p *program.Program, d waiting.Detail) error {
	e := d.Event.Event
	w := tabwriter.NewWriter(p.Out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	line("event", "%s of %s, %s", terminal.Clean(e.ID), state.Dash(e.Source), terminal.Clean(e.Type))
	line("where", "%s", where(d.Consumer))
	line("topic", "%s, key %s", terminal.Clean(e.Topic), state.Dash(e.Key))
	if d.RecordPartition >= 0 {
		line("record", "partition %d, offset %d", d.RecordPartition, d.RecordOffset)
	}
	line("since", "%s", timeOrDash(d.Since))
	line("why", "%s", inWords(d.Event))
	line("attempts", "%d", d.Attempts)
	if !d.FailedAt.IsZero() {
		line("failed first", "%s", timeOrDash(d.FailedAt))
	}
	if d.Letter != 0 {
		line("replay of", "dead letter %d", d.Letter)
	}
	for i, text := range d.Errors {
		line(fmt.Sprintf("error %d", i+1), "%s", terminal.Clean(text))
	}
	line("payload bytes", "%s", bytesOf(d.PayloadSize))
	if c.Payload {
		for name, value := range e.Headers {
			line("header "+terminal.Clean(name), "%s", terminal.Clean(value))
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	printSteps(p, d.Steps, c.Payload)
	if c.Payload && e.Payload != nil {
		printPayload(p.Out, e.Payload)
	}
	return nil
}

// inWords says for what an event waits, in a sentence's words.
func inWords(w waiting.Event) string {
	switch {
	case w.Running:
		return "its handler runs"
	case w.Why == waiting.Scheduled:
		return "scheduled: it is due at " + timeOrDash(w.NextAt)
	case w.Why == waiting.NoHandler:
		return "no-handler: no node that runs handles its type"
	case w.Why == waiting.Paused:
		return "paused: holdfast status shows what is paused, and by whom"
	case w.Why == waiting.Topic:
		return "topic: it takes no events"
	case w.Why == waiting.Partition:
		return fmt.Sprintf("partition: partition %d of the topic takes no events", w.Partition)
	case w.Why == waiting.BehindEvent:
		return "behind-event: an earlier event of its key waits"
	case w.Why == waiting.BehindLetter:
		return "behind-letter: a dead letter holds its key until it is replayed or discarded"
	case w.Why == waiting.Dependency:
		return "dependency: something that its handler needs is away; holdfast status shows what, and since when"
	case w.Why == waiting.Failed:
		return "failed: its next attempt is at " + timeOrDash(w.NextAt)
	}
	return "its turn has come"
}

// deciding are the flags of commands that change waiting events.
type deciding struct {
	waits  `embed:""`
	Acting `embed:""`
	All    bool `help:"All that wait in the consumer. Needed when there is no other filter."`
	DryRun bool `help:"Print how many, and change nothing."`
	Limit  int  `help:"Maximum number, in a consumer. Defaults to no limit." placeholder:"N"`
}

// check stops a command that does not say which events it means.
func (d deciding) check() error {
	switch {
	case d.Consumer == "" && d.Origin != dlq.OriginRelay:
		return program.UsageError{Err: errors.New("where? give --consumer NAME for what waits in a consumer, or --origin relay for what waits in relays")}
	case d.Consumer == "" && d.Topic == "":
		return program.UsageError{Err: errors.New("missing flags: --topic=TOPIC: what waits in relays is changed a topic at a time")}
	case !d.narrow() && !d.All:
		return program.UsageError{Err: errors.New("which waiting events? give a filter (--topic, --type, --key, --event-id, --why, …), or --all for all of the consumer")}
	case d.narrow() && d.All:
		return program.UsageError{Err: errors.New("--all and a filter exclude each other: give one of them")}
	case d.DryRun:
		return nil
	}
	return d.checkReason()
}

type waitingChange func(*waiting.Room, context.Context, waiting.Filter, waiting.Options) (int, error)

// change runs one of the changes. doing is what it is called meanwhile, done what the events are then.
func (d deciding) change(p *program.Program, doing, done string, change waitingChange) error {
	room, end, err := openRoom(p)
	if err != nil {
		return err
	}
	defer end()
	line := progressLine{p: p, doing: doing, thing: "waiting event"}
	var last waiting.Progress
	n, err := change(room, p.Ctx, d.filter(d.Limit), waiting.Options{
		DryRun: d.DryRun,
		By:     d.by(),
		Reason: d.Reason,
		ProgressFunc: func(now waiting.Progress) {
			last = now
			line.report(now.Changed, now.Total)
		},
	})
	if n == 0 && (err == nil || errors.Is(err, waiting.ErrNotFound)) {
		defer sayUnknown(p, d.Consumer)
	}
	if d.All && errors.Is(err, waiting.ErrNotFound) {
		err = nil // All of none: a script may say so again and again.
	}
	sayChanged(p, n, "waiting event", done, d.DryRun, err)
	if left := last.Total - last.Changed - last.Left; err != nil && n > 0 && left > 0 {
		fmt.Fprintf(p.ErrOut, "stopped with %s left: the same command continues with %s\n", terminal.Count(left, "waiting event"), terminal.Verb(left, "it", "them"))
	}
	return err
}

type waitingRetryCmd struct {
	deciding `embed:""`
}

func (c *waitingRetryCmd) Run(p *program.Program) error {
	if err := c.check(); err != nil {
		return err
	}
	err := c.change(p, "retrying", "due now", (*waiting.Room).Retry)
	if err == nil && !c.DryRun && c.Consumer == "" {
		fmt.Fprintln(p.Out, "what waits for the topic or a partition of it is tried too; holdfast waiting groups shows what still waits")
	}
	return err
}

type waitingGiveUpCmd struct {
	deciding `embed:""`
}

func (c *waitingGiveUpCmd) Run(p *program.Program) error {
	if err := c.check(); err != nil {
		return err
	}
	return c.change(p, "giving up", "dead letters now", (*waiting.Room).GiveUp)
}

type waitingDiscardCmd struct {
	deciding       `embed:""`
	program.Asking `embed:""`
}

func (c *waitingDiscardCmd) Run(p *program.Program) error {
	if err := c.check(); err != nil {
		return err
	}
	if !c.DryRun && !c.Yes && p.Terminal != nil {
		if err := c.askFirst(p); err != nil {
			return err
		}
	}
	return c.change(p, "discarding", "discarded", (*waiting.Room).Discard)
}

// askFirst says how many events the command would discard, if it may, and asks.
func (c *waitingDiscardCmd) askFirst(p *program.Program) error {
	room, end, err := openRoom(p)
	if err != nil {
		return err
	}
	defer end()
	n, err := room.Discard(p.Ctx, c.filter(c.Limit), waiting.Options{DryRun: true})
	if err != nil {
		return err
	}
	never := "not handled"
	if c.Consumer == "" {
		never = "not published"
	}
	return c.Ask(p, fmt.Sprintf("%s would be discarded: they are %s then, and their payloads stay until dlq purge", terminal.Count(n, "waiting event"), never))
}

type waitingRedirectCmd struct {
	Topic  string `help:"Whose events that wait in relays." required:"" placeholder:"TOPIC"`
	Key    string `help:"Only events of this key." placeholder:"KEY"`
	To     string `help:"The topic whose events they are from then on." required:"" placeholder:"TOPIC"`
	DryRun bool   `help:"Print how many, and change nothing."`
	Acting `embed:""`
}

func (c *waitingRedirectCmd) Run(p *program.Program) error {
	d := deciding{
		waits:  waits{Origin: dlq.OriginRelay, Topic: c.Topic, Key: c.Key},
		Acting: c.Acting,
		DryRun: c.DryRun,
	}
	if err := d.check(); err != nil {
		return err
	}
	return d.change(p, "redirecting", "redirected to "+terminal.Clean(c.To), func(room *waiting.Room, ctx context.Context, f waiting.Filter, o waiting.Options) (int, error) {
		return room.Redirect(ctx, f, c.To, o)
	})
}

type waitingCancelCmd struct {
	Topic          string   `help:"Only events of this topic." placeholder:"TOPIC"`
	Key            string   `help:"Only events of this key." placeholder:"KEY"`
	Type           string   `help:"Only events of this type." placeholder:"TYPE"`
	Source         string   `help:"Only events of this source." placeholder:"SOURCE"`
	Events         []string `arg:"" optional:"" name:"event" help:"Ids of the events. Give these or a filter."`
	All            bool     `help:"All scheduled events. Needed when there is no filter."`
	DryRun         bool     `help:"Print how many, and change nothing."`
	Limit          int      `help:"Maximum number, those first that are due first. Defaults to no limit." placeholder:"N"`
	Acting         `embed:""`
	program.Asking `embed:""`
}

func (c *waitingCancelCmd) Run(p *program.Program) error {
	switch given := c.Topic != "" || c.Key != "" || c.Type != ""; {
	case len(c.Events) > 0 && (given || c.All || c.Limit > 0):
		return program.UsageError{Err: errors.New("ids and a filter exclude each other: give one of them (only --source may be with ids)")}
	case len(c.Events) == 0 && !given && c.Source == "" && !c.All:
		return program.UsageError{Err: errors.New("which scheduled events? give ids, a filter (--topic, --key, --type, …), or --all for all of them")}
	case (given || c.Source != "") && c.All:
		return program.UsageError{Err: errors.New("--all and a filter exclude each other: give one of them")}
	}
	if !c.DryRun {
		if err := c.checkReason(); err != nil {
			return err
		}
		if err := c.Ask(p, "The events are not published then, and their payloads stay until dlq purge"); err != nil {
			return err
		}
	}
	room, done, err := openRoom(p)
	if err != nil {
		return err
	}
	defer done()
	filters := []waiting.Filter{{Topic: c.Topic, Key: c.Key, Type: c.Type, Source: c.Source, Limit: c.Limit}}
	if len(c.Events) > 0 {
		filters = nil
		for _, id := range c.Events {
			filters = append(filters, waiting.Filter{EventID: id, Source: c.Source})
		}
	}
	n, line := 0, progressLine{p: p, doing: "cancelling", thing: "scheduled event"}
	var wrong []error
	for _, f := range filters {
		before := n
		cancelled, err := room.Cancel(p.Ctx, f, waiting.Options{
			DryRun:       c.DryRun,
			By:           c.by(),
			Reason:       c.Reason,
			ProgressFunc: func(now waiting.Progress) { line.report(before+now.Changed, 0) },
		})
		n += cancelled
		if err != nil {
			wrong = append(wrong, err)
		}
	}
	err = errors.Join(wrong...)
	sayChanged(p, n, "scheduled event", "cancelled: holdfast dlq list --origin relay --state discarded shows "+terminal.Verb(n, "it", "them"), c.DryRun, err)
	return oneLineEach(err)
}

// oneLineEach is joined errors as one, separated by semicolons: what is printed is one line.
func oneLineEach(err error) error {
	if err == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// movedCmd is a command of earlier builds, whose name is another one now.
type movedCmd struct {
	Args []string `arg:"" optional:"" passthrough:""`
}

// Moved are the commands of earlier builds, and what they are called now.
var Moved = map[string]string{
	"parked list":        "holdfast waiting groups --origin relay",
	"parked retry":       "holdfast waiting retry --origin relay",
	"parked give-up":     "holdfast waiting give-up --origin relay, or holdfast waiting discard --origin relay for good",
	"parked redirect":    "holdfast waiting redirect",
	"stored list":        "holdfast waiting list --consumer NAME",
	"stored show":        "holdfast waiting show",
	"stored release":     "holdfast waiting retry --consumer NAME",
	"stored retry":       "holdfast waiting retry --consumer NAME",
	"stored skip":        "holdfast waiting discard --consumer NAME",
	"stored dead-letter": "holdfast waiting give-up --consumer NAME",
	"scheduled list":     "holdfast waiting list --why scheduled",
	"scheduled cancel":   "holdfast waiting cancel",
}

func (c *movedCmd) run(group string) error {
	name := group
	for _, arg := range c.Args {
		if !strings.HasPrefix(arg, "-") {
			name += " " + arg
			break
		}
	}
	if now, known := Moved[name]; known {
		return program.UsageError{Err: fmt.Errorf("holdfast %s has a new name: %s", name, now)}
	}
	return program.UsageError{Err: fmt.Errorf("holdfast %s has a new name: holdfast waiting, whose --help lists its commands", group)}
}

// Parked, Stored and Scheduled are commands of earlier builds: each says what it is called now.
type Parked struct {
	movedCmd `embed:""`
}

func (p *Parked) Run() error { return p.run("parked") }

type Stored struct {
	movedCmd `embed:""`
}

func (s *Stored) Run() error { return s.run("stored") }

type Scheduled struct {
	movedCmd `embed:""`
}

func (s *Scheduled) Run() error { return s.run("scheduled") }
