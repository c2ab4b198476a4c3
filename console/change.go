package console

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// change is something that a user wants to do to many things. It is asked for twice: the first form says how much it would change, and
// the second does it.
type change struct {
	Does   string // "replay"
	Things string // "dead letter"
	Filter string // in words
	Count  int
	Reason string
	Action string            // the path that the form is sent to
	Fields map[string]string // of the form, besides reason
	Note   string            // what else the user should know
	Back   string            // the path to go to afterwards
}

// carryOut counts what a change would do, or does it if the form says so.
func (c *Console) carryOut(v *visit, ch change, count, do func(context.Context) (int, error)) (answer, error) {
	ch.Reason = strings.TrimSpace(v.PostForm.Get("reason"))
	if ch.Reason == "" || len(ch.Reason) > 1000 {
		return answer{}, refusal{http.StatusUnprocessableEntity, fmt.Sprintf("the reason has %d bytes: it must have 1 to 1000. It is kept with what you do", len(ch.Reason))}
	}
	if v.PostForm.Get("sure") == "" {
		n, err := count(v.Context())
		if err != nil {
			return answer{}, err
		}
		ch.Count = n
		return answer{page: "sure", data: ch}, nil
	}
	// A change goes on although the browser leaves: half of it would surprise. Each of its steps is a short transaction.
	n, err := do(context.WithoutCancel(v.Context()))
	c.c.Logger.Info("console change", "user", v.User.Name, "does", ch.Does, "things", ch.Things, "filter", ch.Filter, "changed", n, "reason", ch.Reason, "error", err)
	if err != nil {
		return answer{}, fmt.Errorf("%d changed, then: %w", n, err)
	}
	ch.Count = n
	return answer{page: "done", data: ch}, nil
}

// fields are those of a form that have a value.
func fields(v *visit, names ...string) map[string]string {
	values := map[string]string{}
	for _, name := range names {
		if value := v.FormValue(name); value != "" {
			values[name] = value
		}
	}
	return values
}

// inWords is a filter as a person reads it.
func inWords(filter map[string]string) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(filter)) {
		parts = append(parts, name+" "+filter[name])
	}
	if len(parts) == 0 {
		return "all"
	}
	return strings.Join(parts, ", ")
}

// queryOf is a link's query of pairs of name and value, without those that are empty.
func queryOf(pairs ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	return "?" + values.Encode()
}
