package console

import (
	"bytes"
	"context"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// deed is what a user can do, as buttons and pages call it.
type deed struct {
	Name  string // in forms and in the log
	Asks  string // "Give up"
	Doing string // "Giving up"
	Done  string // "Gave up"
	Ends  bool   // what it is done to comes back only if somebody replays it, or never: its button is red
	Light bool   // nothing is lost by doing it unasked: when the user is asked, its button has the focus
}

var deeds = []deed{
	{"replay", "Replay", "Replaying", "Started the replay of", false, true},
	{"retry", "Retry", "Retrying", "Asked for a retry of", false, true},
	{"redirect", "Redirect", "Redirecting", "Redirected", false, false},
	{"pause", "Pause", "Pausing", "Paused", false, true},
	{"resume", "Resume", "Resuming", "Resumed", false, true},
	{"give-up", "Give up", "Giving up", "Gave up", true, false},
	{"discard", "Discard", "Discarding", "Discarded", true, false},
	{"cancel", "Cancel", "Cancelling", "Cancelled", true, false},
}

// deedOf is the deed of that name, which is in the list.
func deedOf(name string) deed {
	return deeds[slices.IndexFunc(deeds, func(d deed) bool { return d.Name == name })]
}

// change is something that a user wants to do to many things. It is asked for twice: the first form says how much it would change, and
// the second does it.
type change struct {
	Does   string // the name of a deed
	Things string // "dead letter"
	Filter string // in words
	Count  int
	Reason string
	Action string            // the path that the form is sent to
	Fields map[string]string // of the form, besides reason
	Note   string            // what else the user should know before
	After  string            // what afterwards
	Back   string            // the path to go to afterwards
	BackTo string            // what is there
}

// Deed is what is done.
func (ch change) Deed() deed { return deedOf(ch.Does) }

// Many is how many things, in words.
func (ch change) Many() string {
	return fmt.Sprint(ch.Count, " ", plural(ch.Count, ch.Things, ch.Things+"s"))
}

// longestReason is how many bytes a reason may have.
const longestReason = 1000

// carryOut counts what a change would do, or does it if the form says so. do tells how far it is, of how many.
func (c *Console) carryOut(v *visit, ch change, count func(context.Context) (int, error), do func(context.Context, func(done, of int)) (int, error)) (answer, error) {
	ch.Reason = strings.TrimSpace(v.PostForm.Get("reason"))
	if ch.Reason == "" || len(ch.Reason) > longestReason {
		return answer{}, refusal{http.StatusUnprocessableEntity, fmt.Sprintf("the reason has %d bytes: it must have 1 to %d. It is kept with what you do", len(ch.Reason), longestReason)}
	}
	if v.PostForm.Get("sure") == "" {
		n, err := count(v.Context())
		if err != nil {
			return answer{}, err
		}
		ch.Count = n
		return answer{page: "sure", title: ch.Deed().Asks + " " + ch.Many() + "?", data: ch}, nil
	}
	p := progress{
		c:     c,
		v:     v,
		ch:    ch,
		began: time.Now(),
	}
	// A change goes on although the browser leaves: half of it would surprise. Each of its steps is a short transaction.
	n, err := do(context.WithoutCancel(v.Context()), p.tell)
	c.c.Logger.Info("console change", "user", v.User.Name, "does", ch.Does, "things", ch.Things, "filter", ch.Filter, "changed", n, "reason", ch.Reason, "error", err)
	c.tally.forget() // the page that says what was done counts again
	ch.Count = n
	if err != nil {
		err = fmt.Errorf("%d changed, then: %w", n, err)
	}
	p.mayWrite()
	if p.told.IsZero() {
		return answer{page: "done", title: ch.Deed().Done + " " + ch.Many(), data: ch}, err
	}
	p.end(ch, err)
	return answer{sent: true}, nil
}

// progress tells a user how far a change is that takes longer than a moment. The page is sent in parts, so it needs no script and nothing
// that the console would have to remember: a line for each second, of which the page shows the last, and then what came of it.
type progress struct {
	c     *Console
	v     *visit
	ch    change
	began time.Time
	told  time.Time // the last line
}

// tellEvery is how long a change may take before its first line, and how far lines are apart.
const tellEvery = time.Second

func (p *progress) tell(done, of int) {
	now := time.Now()
	if now.Sub(p.began) < tellEvery || now.Sub(p.told) < tellEvery {
		return
	}
	if p.told.IsZero() {
		p.ch.Count = of
		title := p.ch.Deed().Doing + " …"
		if of > 0 {
			title = p.ch.Deed().Doing + " " + p.ch.Many() + " …"
		}
		p.v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
		p.v.w.Header().Set("X-Accel-Buffering", "no") // as nginx understands it
		p.write("working", p.c.shownTo(p.v, answer{page: "working", title: title, data: p.ch}))
	}
	p.told = now
	p.write("step", map[string]any{"Done": done, "Of": of, "Left": left(done, of, now.Sub(p.began))})
}

// left is about how long the rest takes; 0 if that cannot be said.
func left(done, of int, took time.Duration) time.Duration {
	if done <= 0 || of <= done {
		return 0
	}
	return time.Duration(float64(took) / float64(done) * float64(of-done)).Round(time.Second)
}

// end says what came of it.
func (p *progress) end(ch change, err error) {
	if err != nil {
		_, title, text := p.c.explain(p.v, err)
		p.write("broke", map[string]any{"Title": title, "Text": text, "Change": ch})
		return
	}
	p.write("ended", ch)
}

// write sends a part of the page now. That the browser has left is no error.
func (p *progress) write(part string, data any) {
	var text bytes.Buffer
	if err := p.c.pages.ExecuteTemplate(&text, part, data); err != nil {
		p.c.c.Logger.Error("console page not rendered", "page", part, "error", err)
	}
	p.mayWrite()
	_, _ = p.v.w.Write(text.Bytes())
	_ = http.NewResponseController(p.v.w).Flush()
}

// mayWrite gives the answer some more time: a change may take longer than the server's WriteTimeout.
func (p *progress) mayWrite() {
	_ = http.NewResponseController(p.v.w).SetWriteDeadline(time.Now().Add(30 * time.Second))
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
		switch value := filter[name]; name {
		case "origin":
			parts = append(parts, map[string]string{"relay": "in the relays", "inbox": "in consumers"}[value])
		case "heads":
			parts = append(parts, "only the first of each key")
		default:
			parts = append(parts, name+" "+value)
		}
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

// queryFor is the query of a filter.
func queryFor(names []string, filter map[string]string) template.URL {
	var pairs []string
	for _, name := range names {
		pairs = append(pairs, name, filter[name])
	}
	return template.URL(queryOf(pairs...)) // it is encoded, and begins with ?
}
