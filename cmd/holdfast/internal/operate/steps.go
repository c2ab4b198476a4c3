package operate

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/steps"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

// jsonStep is a step of an event's handler that is done.
type jsonStep struct {
	Name         string          `json:"name"`
	Key          string          `json:"key"` // that the called system got
	DoneAt       time.Time       `json:"done_at"`
	OtherPayload bool            `json:"other_payload,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"` // with --payload
}

func jsonOfSteps(all []dlq.Step, results bool) (js []jsonStep) {
	for _, s := range all {
		j := jsonStep{
			Name:         s.Name,
			Key:          s.Key,
			DoneAt:       s.DoneAt.UTC(),
			OtherPayload: s.OtherPayload,
		}
		if results {
			j.Result = json.RawMessage(s.Result)
		}
		js = append(js, j)
	}
	return js
}

// printSteps prints a line for each step, with its result if the user asked for payloads.
func printSteps(p *program.Program, all []dlq.Step, results bool) {
	for _, s := range all {
		fmt.Fprintf(p.Out, "step %s: done %s, key %s", terminal.Clean(s.Name), s.DoneAt.UTC().Format(time.RFC3339), s.Key)
		if s.OtherPayload {
			fmt.Fprint(p.Out, ", of another payload")
		}
		if results {
			fmt.Fprintf(p.Out, ", result %s", terminal.Clean(s.Result))
		}
		fmt.Fprintln(p.Out)
	}
	if len(all) == steps.Most {
		fmt.Fprintln(p.Out, "there may be more steps, done earlier: the table inbox_step has them")
	}
}
