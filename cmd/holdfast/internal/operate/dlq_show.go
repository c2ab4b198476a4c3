package operate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/terminal"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// JSONLetter is a letter without its private parts: payload and header values.
type JSONLetter struct {
	ID           int64        `json:"id"`
	Origin       string       `json:"origin"`
	Consumer     string       `json:"consumer,omitempty"`
	State        string       `json:"state"`
	Reason       string       `json:"reason"`
	Fingerprint  string       `json:"fingerprint"`
	Holds        bool         `json:"holds"`
	EventID      string       `json:"event_id"`
	Source       string       `json:"source"`
	Type         string       `json:"type"`
	Topic        string       `json:"topic"`
	Key          string       `json:"key"`
	Time         time.Time    `json:"time"`
	PayloadBytes int          `json:"payload_bytes"` // -1: a tombstone
	Version      int          `json:"version"`
	Attempts     int          `json:"attempts"`
	FirstAt      time.Time    `json:"first_at"`
	LastAt       time.Time    `json:"last_at"`
	Partition    int          `json:"partition"` // -1: not from Kafka
	Offset       int64        `json:"offset"`
	Errors       []string     `json:"errors,omitempty"`
	Malformed    []string     `json:"malformed,omitempty"` // what of the event is not as it is in the database
	Steps        []jsonStep   `json:"steps,omitempty"`     // with show: those of the handler that are done
	Actions      []jsonAction `json:"actions,omitempty"`   // with show
	Payload      []byte       `json:"payload,omitempty"`   // with show --payload, in base64
}

type jsonAction struct {
	Action  string    `json:"action"`
	By      string    `json:"by"`
	Login   string    `json:"login,omitempty"` // the database user
	Reason  string    `json:"reason"`
	At      time.Time `json:"at"`
	Version int       `json:"version,omitempty"` // edit: the replaced version

	PayloadBytes *int   `json:"payload_bytes,omitempty"` // likewise; -1: a tombstone
	Payload      []byte `json:"payload,omitempty"`       // likewise, with --payload, in base64
}

func asJSON(l dlq.Letter) JSONLetter {
	return JSONLetter{
		ID:           l.ID,
		Origin:       l.Origin,
		Consumer:     l.Consumer,
		State:        l.State,
		Reason:       l.Reason,
		Fingerprint:  l.Fingerprint,
		Holds:        l.Holds,
		EventID:      l.Event.ID,
		Source:       l.Event.Source,
		Type:         l.Event.Type,
		Topic:        l.Event.Topic,
		Key:          l.Event.Key,
		Time:         l.Event.Time.UTC(),
		PayloadBytes: l.PayloadSize,
		Version:      l.Version,
		Attempts:     l.Attempts,
		FirstAt:      l.FirstAt.UTC(),
		LastAt:       l.LastAt.UTC(),
		Partition:    l.Partition,
		Offset:       l.Offset,
		Errors:       l.Errors,
		Malformed:    l.Malformed,
	}
}

type dlqShowCmd struct {
	ID      int64 `arg:"" help:"Id of the dead letter."`
	Payload bool  `help:"Print the payload and the results of steps too. With --json also the payloads that edits replaced."`
	Version int   `help:"Print the payload of this version, which an edit replaced." placeholder:"N"`
	JSON    bool  `help:"Print a JSON object, with payloads in base64." name:"json"`
}

func (c *dlqShowCmd) Run(p *program.Program) error {
	d, done, err := openDLQ(p)
	if err != nil {
		return err
	}
	defer done()
	l, err := d.Get(p.Ctx, c.ID)
	if err != nil {
		return err
	}
	actions, err := d.Actions(p.Ctx, c.ID)
	if err != nil {
		return err
	}
	if c.JSON {
		j := asJSON(l)
		j.Steps = jsonOfSteps(l.Steps, c.Payload)
		if c.Payload {
			j.Payload = l.Event.Payload
		}
		for _, a := range actions {
			ja := jsonAction{
				Action:  a.Action,
				By:      a.By,
				Login:   a.Login,
				Reason:  a.Reason,
				At:      a.At.UTC(),
				Version: a.Version,
			}
			if a.Version > 0 {
				n := size(a.Payload)
				ja.PayloadBytes = &n
			}
			if c.Payload {
				ja.Payload = a.Payload
			}
			j.Actions = append(j.Actions, ja)
		}
		return json.NewEncoder(p.Out).Encode(j)
	}
	if c.Version > 0 && c.Version != l.Version {
		for _, a := range actions {
			if a.Version == c.Version {
				printPayload(p.Out, a.Payload)
				return nil
			}
		}
		return fmt.Errorf("dead letter %d has no version %d: it is at version %d", l.ID, c.Version, l.Version)
	}
	w := tabwriter.NewWriter(p.Out, 0, 0, 2, ' ', 0)
	encrypted := cmp.Or(l.Event.Headers[wire.HeaderEncryption], "no")
	for _, row := range [][2]any{{"dead letter", l.ID}, {"state", l.State}, {"origin", l.Origin}, {"consumer", l.Consumer}, {"reason", l.Reason}, {"fingerprint", l.Fingerprint},
		{"holds its key", terminal.YesNo(l.Holds)}, {"event", l.Event.ID}, {"source", l.Event.Source}, {"type", l.Event.Type}, {"topic", l.Event.Topic}, {"key", l.Event.Key},
		{"time", l.Event.Time.UTC().Format(time.RFC3339Nano)}, {"partition", placeOr(int64(l.Partition))}, {"offset", placeOr(l.Offset)}, {"payload bytes", bytesOf(l.PayloadSize)}, {"encrypted", encrypted}, {"version", l.Version},
		{"attempts", l.Attempts}, {"first failed", l.FirstAt.UTC().Format(time.RFC3339)}, {"last " + l.LastWas(), l.LastAt.UTC().Format(time.RFC3339)}} {
		fmt.Fprintf(w, "%v\t%s\n", row[0], terminal.Clean(fmt.Sprint(row[1])))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, text := range l.Malformed {
		fmt.Fprintf(p.Out, "malformed: %s\n", terminal.Clean(text))
	}
	for i, text := range l.Errors {
		fmt.Fprintf(p.Out, "error %d: %s\n", i+1, terminal.Clean(text))
	}
	printSteps(p, l.Steps, c.Payload)
	for _, a := range actions {
		fmt.Fprintf(p.Out, "%s %s by %s: %s", a.At.UTC().Format(time.RFC3339), a.Action, terminal.Clean(a.By), terminal.Clean(a.Reason))
		if a.Version > 0 {
			fmt.Fprintf(p.Out, " (replaced version %d, payload bytes %s: --version %d shows it)", a.Version, bytesOf(size(a.Payload)), a.Version)
		}
		if a.Login != "" {
			fmt.Fprintf(p.Out, " (database user %s)", terminal.Clean(a.Login))
		}
		fmt.Fprintln(p.Out)
	}
	if c.Payload || c.Version > 0 {
		fmt.Fprintln(p.Out)
		printPayload(p.Out, l.Event.Payload)
	}
	return nil
}

// placeOr is a partition or an offset; a dash if the event did not come from Kafka.
func placeOr(n int64) string {
	if n < 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// size is a payload's length, -1 for a tombstone.
func size(payload []byte) int {
	if payload == nil {
		return -1
	}
	return len(payload)
}

func bytesOf(size int) string {
	if size < 0 {
		return "none: a tombstone"
	}
	return strconv.Itoa(size)
}

// printPayload prints text as text, and anything else in hexadecimal.
func printPayload(out io.Writer, payload []byte) {
	if text := string(payload); terminal.Clean(text) == text {
		fmt.Fprintln(out, text)
	} else {
		fmt.Fprintf(out, "%x\n", payload)
	}
}
