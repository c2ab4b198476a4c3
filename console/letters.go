package console

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/internal/foreign"
)

// letterFields are the fields of a filter of letters, as in links and forms.
var letterFields = []string{"origin", "consumer", "type", "topic", "key", "source", "event", "fingerprint", "state"}

// filterOf makes a filter of the fields of a request.
func filterOf(f map[string]string) dlq.Filter {
	return dlq.Filter{
		Origin:      f["origin"],
		Consumer:    f["consumer"],
		Type:        f["type"],
		Topic:       f["topic"],
		Key:         f["key"],
		Source:      f["source"],
		EventID:     f["event"],
		Fingerprint: f["fingerprint"],
		State:       f["state"],
		NoPayloads:  true,
	}
}

// checked says whether a filter of a request can be asked for.
func checked(f map[string]string) error {
	switch f["origin"] {
	case "", dlq.OriginRelay, dlq.OriginInbox:
	default:
		return refusal{http.StatusUnprocessableEntity, "origin is " + strconv.Quote(f["origin"]) + ": it must be relay or inbox"}
	}
	switch f["state"] {
	case "", dlq.StateOpen, dlq.StateReplaying, dlq.StateReplayed, dlq.StateDiscarded, dlq.StateAny:
	default:
		return refusal{http.StatusUnprocessableEntity, "state is " + strconv.Quote(f["state"]) + ": it must be open, replaying, replayed, discarded or any"}
	}
	return noNUL(f)
}

func noNUL(f map[string]string) error {
	for name, value := range f {
		if strings.ContainsRune(value, 0) {
			return refusal{http.StatusUnprocessableEntity, name + " has a NUL: no event has one"}
		}
	}
	return nil
}

type groupsPage struct {
	Filter map[string]string
	Names  names
	Sort   string
	Groups []dlq.Group
	Total  int
}

// groupOrders are how groups of letters can be sorted, the largest first.
var groupOrders = map[string]func(a, b dlq.Group) int{
	"letters": func(a, b dlq.Group) int { return b.Letters - a.Letters },
	"holds":   func(a, b dlq.Group) int { return b.Holding - a.Holding },
	"last":    func(a, b dlq.Group) int { return b.LastAt.Compare(a.LastAt) },
}

func (c *Console) letterGroups(v *visit) (answer, error) {
	p := groupsPage{Filter: fields(v, letterFields...)}
	if err := checked(p.Filter); err != nil {
		return answer{}, err
	}
	var err error
	if p.Groups, err = c.dlq.Groups(v.Context(), filterOf(p.Filter)); err != nil {
		return answer{}, err
	}
	p.Sort = sorted(v, p.Groups, groupOrders, "letters")
	for _, g := range p.Groups {
		p.Total += g.Letters
	}
	p.Names, err = c.names(v.Context())
	return answer{page: "groups", title: "Dead letters", every: 10, data: p}, err
}

// sorted sorts rows as the request wants it, or else as usual, and says how. Rows that are equal stay as they are.
func sorted[T any](v *visit, rows []T, orders map[string]func(a, b T) int, usual string) string {
	by := v.FormValue("sort")
	if orders[by] == nil {
		by = usual
	}
	slices.SortStableFunc(rows, orders[by])
	return by
}

const lettersPerPage = 100

type lettersPage struct {
	Filter map[string]string
	Names  names
	Words  string

	Acts      bool   // some of them may be open
	OpenWords string // the filter of those

	Letters []dlq.Letter
	Next    int64        // the id after which the next page begins; 0 for none
	Trail   string       // the same of this page and of those before it, for the way back
	Turns   bool         // there is a page before
	Back    template.URL // what the query of the page before has besides the filter; "" on the first
}

func (c *Console) letterList(v *visit) (answer, error) {
	p := lettersPage{Filter: fields(v, letterFields...)}
	if err := checked(p.Filter); err != nil {
		return answer{}, err
	}
	p.Words = inWords(p.Filter)
	open := maps.Clone(p.Filter)
	delete(open, "state")
	p.Acts, p.OpenWords = p.Filter["state"] == "" || p.Filter["state"] == dlq.StateOpen || p.Filter["state"] == dlq.StateAny, inWords(open)
	f := filterOf(p.Filter)
	f.Limit = lettersPerPage
	f.After, _ = strconv.ParseInt(v.FormValue("after"), 10, 64)
	p.Trail, p.Back = trail(v.FormValue("trail"), f.After)
	p.Turns = f.After > 0
	var err error
	if p.Letters, err = c.dlq.List(v.Context(), f); err != nil {
		return answer{}, err
	}
	if p.Names, err = c.names(v.Context()); err != nil {
		return answer{}, err
	}
	if len(p.Letters) == lettersPerPage {
		p.Next = p.Letters[len(p.Letters)-1].ID
	}
	return answer{page: "letters", title: "Dead letters: " + p.Words, every: 10, data: p}, nil
}

// longestTrail is how many pages the way back has.
const longestTrail = 50

// trail adds this page to those that led to it. back leads to the page before; where it is not known, to the first.
func trail(before string, after int64) (here string, back template.URL) {
	if after <= 0 {
		return "0", ""
	}
	var pages []string
	for text := range strings.SplitSeq(before, ",") {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n >= 0 {
			pages = append(pages, strconv.FormatInt(n, 10))
		}
	}
	if len(pages) == 0 {
		pages = []string{"0"}
	}
	pages = pages[max(0, len(pages)-longestTrail):]
	last := len(pages) - 1
	return strings.Join(pages, ",") + "," + strconv.FormatInt(after, 10), template.URL(queryOf("after", pages[last], "trail", strings.Join(pages[:last], ","))[1:])
}

// version is a payload that an edit replaced, and what the edit changed.
type version struct {
	dlq.Action
	Changed []line // nil if it cannot be shown line by line
}

// unsaved is an edit that was refused, as it was typed.
type unsaved struct{ Why, Text, Reason string }

type letterPage struct {
	dlq.Letter
	Payload   payload
	Editor    editor
	Unsaved   *unsaved // nil if no edit was refused
	Errors    []string
	Headers   map[string]string
	Steps     []dlq.Step // with results for those who may see payloads
	Actions   []version
	Open      bool
	Checked   bool // an edit is checked
	May, Sees bool
}

// check says what is wrong with a new payload of a letter.
func (c *Console) check(ctx context.Context, l dlq.Letter, payload []byte) error {
	if err := l.CheckPayload(payload); err != nil {
		return err
	}
	if c.c.CheckFuncs[l.Consumer] == nil || l.Origin != dlq.OriginInbox {
		return nil
	}
	edited := l.Event
	edited.Payload, edited.Headers = bytes.Clone(payload), maps.Clone(l.Event.Headers) // The check may keep them, and change them.
	switch answered, err := c.checkedBy(ctx, l.Consumer, edited); {
	case !answered:
		return fmt.Errorf("the new payload could not be checked: consumer %s did not say within %s whether it can read it", l.Consumer, checkWithin)
	case err != nil:
		return fmt.Errorf("consumer %s could not read the new payload: %w", l.Consumer, err)
	}
	return nil
}

// checkWithin is how long one of Config.CheckFuncs may take.
const checkWithin = 5 * time.Second

// checkedBy is what the consumer's function of Config.CheckFuncs says of an event. It may panic, end its goroutine, or not return in time:
// then it runs on by itself.
func (c *Console) checkedBy(ctx context.Context, consumer string, e holdfast.Event) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := errors.New("its check ended without an answer") // unless it returns or panics
		defer func() { done <- err }()
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("its check panicked: a value of type %T", p) // The value may quote the payload.
				c.c.Logger.Error("console request failed", "consumer", consumer, "error", err, "at", foreign.PanickedAt())
			}
		}()
		err = foreign.Error(c.c.CheckFuncs[consumer](ctx, e))
	}()
	select {
	case err := <-done:
		return err == nil || ctx.Err() == nil, err
	case <-ctx.Done():
		return false, nil
	}
}

func (c *Console) letter(v *visit) (answer, error) {
	id, err := idOf(v)
	if err != nil {
		return answer{}, err
	}
	l, err := c.dlq.Get(v.Context(), id)
	if err != nil {
		return answer{}, err
	}
	return c.letterOf(v, l, nil)
}

// letterOf is the page of a letter. One with an edit that was refused stays as it is: a refresh would ask for the page without it.
func (c *Console) letterOf(v *visit, l dlq.Letter, refused *unsaved) (answer, error) {
	p := letterPage{
		Letter:  l,
		Unsaved: refused,
		Open:    l.State == dlq.StateOpen,
		Checked: l.IsJSON() || l.Origin == dlq.OriginInbox && c.c.CheckFuncs[l.Consumer] != nil,
		May:     v.User.MayChange,
		Sees:    v.User.SeesPayload,
	}
	for _, s := range l.Steps {
		if !p.Sees {
			s.Result = ""
		}
		p.Steps = append(p.Steps, s)
	}
	for _, text := range l.Errors {
		if !p.Sees {
			text = firstLine(text)
		}
		p.Errors = append(p.Errors, text)
	}
	actions, err := c.dlq.Actions(v.Context(), l.ID)
	if err != nil {
		return answer{}, err
	}
	now := payloadOf(l.Event.Payload)
	if p.Sees {
		p.Payload, p.Headers = now, l.Event.Headers
		p.Editor = editorOf(l.Event.Payload)
	}
	if refused != nil {
		p.Editor.Text = refused.Text
	}
	after := now
	p.Actions = make([]version, len(actions))
	for i := len(actions) - 1; i >= 0; i-- {
		p.Actions[i].Action = actions[i]
		if actions[i].Action != "edit" {
			continue
		}
		before := payloadOf(actions[i].Payload)
		if p.Sees && before.Kind != "bytes" && after.Kind != "bytes" {
			p.Actions[i].Changed = compare(before.Text, after.Text)
		}
		after = before
	}
	a := answer{page: "letter", title: fmt.Sprint("Dead letter ", l.ID), every: 10, data: p}
	if refused != nil {
		a.title, a.every, a.status = "Not saved: "+a.title, 0, http.StatusUnprocessableEntity
	}
	return a, nil
}

func idOf(v *visit) (int64, error) {
	id, err := strconv.ParseInt(v.PathValue("id"), 10, 64)
	if err != nil {
		return 0, refusal{http.StatusNotFound, "there is no such dead letter"}
	}
	return id, nil
}

// changeLetters replays or discards the letters of a filter, or some by their ids.
func (c *Console) changeLetters(v *visit) (answer, error) {
	given := fields(v, append([]string{"which", "does", "forget"}, letterFields...)...)
	filter := fields(v, letterFields...)
	delete(filter, "state") // of open letters only
	if err := checked(filter); err != nil {
		return answer{}, err
	}
	f := filterOf(filter)
	words, back, backTo := inWords(filter), "/letters", "Dead letters"
	if given["which"] != "all" {
		ids, err := idsOf(v)
		if err != nil {
			return answer{}, err
		}
		if len(ids) == 1 {
			back, backTo = fmt.Sprint("/letters/", ids[0]), fmt.Sprint("Dead letter ", ids[0])
		}
		f = dlq.Filter{IDs: ids, NoPayloads: true}
		given["ids"] = strings.Trim(strings.ReplaceAll(fmt.Sprint(ids), " ", ","), "[]")
		words = plural(len(ids), "letter ", "letters ") + strings.ReplaceAll(given["ids"], ",", ", ")
	}
	ch := change{
		Does:   given["does"],
		Things: "dead letter",
		Filter: words,
		Action: "/letters",
		Fields: given,
		Back:   back,
		BackTo: backTo,
	}
	by, reason := v.User.Name, strings.TrimSpace(v.PostForm.Get("reason"))
	switch ch.Does {
	case "replay":
		ch.Note = "Each goes ahead of the events of its key that still wait. Fix the cause first: what fails again is a dead letter again."
		ch.After = "What fails again is a dead letter again."
		forget := given["forget"] != ""
		if forget {
			ch.Note += " Its steps are forgotten, and run again with the same keys."
		}
		with := func(ctx context.Context, o dlq.ReplayOptions) (int, error) {
			o.By, o.Reason, o.ForgetSteps = by, reason, forget
			return c.dlq.Replay(ctx, f, o)
		}
		return c.carryOut(v, ch, func(ctx context.Context) (int, error) { return with(ctx, dlq.ReplayOptions{DryRun: true}) },
			func(ctx context.Context, tell func(done, of int)) (int, error) {
				return with(ctx, dlq.ReplayOptions{ProgressFunc: func(p dlq.Progress) { tell(p.Looked, p.Total) }})
			})
	case "discard":
		ch.Note = "They are not handled then. Later events of the keys that they hold continue. The payloads stay until a purge."
		with := func(ctx context.Context, o dlq.DiscardOptions) (int, error) {
			o.By, o.Reason = by, reason
			return c.dlq.DiscardAll(ctx, f, o)
		}
		return c.carryOut(v, ch, func(ctx context.Context) (int, error) { return with(ctx, dlq.DiscardOptions{DryRun: true}) },
			func(ctx context.Context, tell func(done, of int)) (int, error) {
				return with(ctx, dlq.DiscardOptions{ProgressFunc: func(p dlq.Progress) { tell(p.Looked, p.Total) }})
			})
	}
	return answer{}, refusal{http.StatusUnprocessableEntity, "does is " + strconv.Quote(ch.Does) + ": it must be replay or discard"}
}

// mostSelected is how many letters may be chosen one by one: those of a page.
const mostSelected = lettersPerPage

// idsOf are the ids that a form names, each in a field of its own or with commas.
func idsOf(v *visit) (ids []int64, err error) {
	for text := range strings.SplitSeq(strings.Join(v.PostForm["ids"], ","), ",") {
		if text == "" {
			continue
		}
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, refusal{http.StatusUnprocessableEntity, "ids has " + strconv.Quote(text) + ": it must be a number"}
		}
		ids = append(ids, id)
	}
	if len(ids) == 0 || len(ids) > mostSelected {
		return nil, refusal{http.StatusUnprocessableEntity, fmt.Sprintf("%d dead letters are selected: select 1 to %d of them, or choose all of the filter", len(ids), mostSelected)}
	}
	return ids, nil
}

// editLetter gives a letter a new payload, without asking a second time: the old one is kept. What is wrong with an edit is said above the
// editor, which has what was typed.
func (c *Console) editLetter(v *visit) (answer, error) {
	id, err := idOf(v)
	if err != nil {
		return answer{}, err
	}
	if !v.User.SeesPayload {
		return answer{}, refusal{http.StatusForbidden, "you may not see payloads, so you cannot edit one"}
	}
	l, err := c.dlq.Get(v.Context(), id)
	if err != nil {
		return answer{}, err
	}
	// The version first: an editor that is shown again has the letter's version, and so must have begun with it.
	if v.PostForm.Get("version") != strconv.Itoa(l.Version) {
		return answer{}, refusal{http.StatusConflict, fmt.Sprintf("it was edited since: it is at version %d, and you edited version %s. Load it again", l.Version, v.PostForm.Get("version"))}
	}
	payload, err := edited(l.Event.Payload, v.PostForm.Get("payload"))
	if err != nil {
		return answer{}, err
	}
	reason := strings.TrimSpace(v.PostForm.Get("reason"))
	why := ""
	if n := len(reason); n == 0 || n > longestReason {
		why = fmt.Sprintf("the reason has %d bytes: it must have 1 to %d. It is kept with the edit", n, longestReason)
	} else if v.PostForm.Get("raw") == "" {
		if err := c.check(v.Context(), l, payload); err != nil {
			why = err.Error() + ". Correct it, or tick the box that stores it as it is"
		}
	}
	if why != "" && l.State == dlq.StateOpen { // else it has no editor, and Edit says so
		return c.letterOf(v, l, &unsaved{why, strings.ReplaceAll(v.PostForm.Get("payload"), "\r\n", "\n"), v.PostForm.Get("reason")})
	}
	if err := c.dlq.Edit(v.Context(), id, payload, v.User.Name, reason); err != nil {
		return answer{}, err
	}
	c.c.Logger.Info("console change", "user", v.User.Name, "does", "edit", "letter", id, "reason", reason)
	return answer{to: fmt.Sprintf("/letters/%d", id)}, nil
}

// unedited leads from the address of an edit to its letter: a browser that loads it again, or goes back to it, has no edit to send.
func (c *Console) unedited(v *visit) (answer, error) {
	id, err := idOf(v)
	return answer{to: fmt.Sprintf("/letters/%d", id)}, err
}
