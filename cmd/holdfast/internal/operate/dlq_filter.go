package operate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

// Chosen are the flags of a filter.
type Chosen struct {
	ID          []int64   `help:"Only the dead letter with this id. Repeat it for several." placeholder:"ID"`
	Origin      string    `help:"Only those of the relay, or of inboxes: relay or inbox." enum:",relay,inbox" default:"" placeholder:"ORIGIN"`
	Consumer    string    `help:"Only those of this consumer." placeholder:"NAME"`
	Type        string    `help:"Only events of this type." placeholder:"TYPE"`
	Topic       string    `help:"Only events of this topic." placeholder:"TOPIC"`
	Key         string    `help:"Only events of this key." placeholder:"KEY"`
	Source      string    `help:"Only events of this source." placeholder:"SOURCE"`
	EventID     string    `help:"Only the event with this id." placeholder:"ID"`
	Fingerprint string    `help:"Only this kind of failure, as dlq groups prints it." placeholder:"TEXT"`
	Since       time.Time `help:"Only those given up at this time or later, such as 2026-01-31T00:00:00Z." placeholder:"TIME"`
	Until       time.Time `help:"Only those given up before this time." placeholder:"TIME"`
	Within      age       `help:"Only those given up within this span, such as 90m, 24h or 30d." placeholder:"SPAN"`
}

// age is a duration as people write it: 90m, 24h, 30d.
type age time.Duration

// UnmarshalText reads an age from the command line.
func (a *age) UnmarshalText(text []byte) error {
	if days, isDays := strings.CutSuffix(string(text), "d"); isDays {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || n < 0 || n > 100*365 {
			return fmt.Errorf("%q is not a number of days: write it like 30d", text)
		}
		*a = age(n * 24 * float64(time.Hour))
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration: write it like 90m, 24h or 30d", text)
	}
	*a = age(d)
	return nil
}

// flags are the names and the values of what was given.
func (c Chosen) flags() (flags [][2]string) {
	for _, id := range c.ID {
		flags = append(flags, [2]string{"id", strconv.FormatInt(id, 10)})
	}
	for _, f := range [][2]string{{"origin", c.Origin}, {"consumer", c.Consumer}, {"type", c.Type}, {"topic", c.Topic}, {"key", c.Key}, {"source", c.Source},
		{"event-id", c.EventID}, {"fingerprint", c.Fingerprint}} {
		if f[1] != "" {
			flags = append(flags, f)
		}
	}
	for _, f := range []struct {
		name string
		at   time.Time
	}{{"since", c.Since}, {"until", c.Until}} {
		if !f.at.IsZero() {
			flags = append(flags, [2]string{f.name, f.at.UTC().Format(time.RFC3339Nano)})
		}
	}
	if c.Within > 0 {
		flags = append(flags, [2]string{"within", time.Duration(c.Within).String()})
	}
	return flags
}

// given is the filter as on the command line; "" if there is none. The names of interrupted replays have it, so it stays as it is.
func (c Chosen) given() string {
	var words []string
	for _, f := range c.flags() {
		words = append(words, "--"+f[0], terminal.Quote(f[1]))
	}
	return strings.Join(words, " ")
}

// follows is the filter as it follows a command that is printed; "" if there is none. Beside its flag a value may begin with a dash.
func (c Chosen) follows() string {
	var text strings.Builder
	for _, f := range c.flags() {
		text.WriteString(" --" + f[0] + "=" + terminal.Quote(f[1]))
	}
	return text.String()
}

// wide are the flags of commands that could change every letter.
type wide struct {
	All bool `help:"All open dead letters. Needed when there is no filter."`
}

// check stops a command whose filter was forgotten from changing all letters.
func (w wide) check(c Chosen) error {
	switch given := c.given(); {
	case given == "" && !w.All:
		return program.UsageError{Err: errors.New("which dead letters? give a filter (--consumer, --fingerprint, --id, …), or --all for every open one")}
	case given != "" && w.All:
		return program.UsageError{Err: errors.New("--all and a filter exclude each other: give one of them")}
	}
	return nil
}

func (c Chosen) filter() dlq.Filter {
	f := dlq.Filter{
		IDs:         c.ID,
		Origin:      c.Origin,
		Consumer:    c.Consumer,
		Type:        c.Type,
		Topic:       c.Topic,
		Key:         c.Key,
		Source:      c.Source,
		EventID:     c.EventID,
		Fingerprint: c.Fingerprint,
		Since:       c.Since,
		Until:       c.Until,
	}
	if c.Within > 0 {
		f.Since = time.Now().Add(-time.Duration(c.Within))
	}
	return f
}
