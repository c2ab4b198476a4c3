package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
)

// New makes the handler of one endpoint: requests that v accepts become events of source in the inbox. A request is
// verified over the bytes of its body as they came, before anything of it is read and before the database is asked. An
// answer of 2xx means that the event is committed, or is not wanted; docs/reference/http.md has the table of answers.
//
// Register handlers with the inbox first, and let Inbox.Run run on some node, in every mode: it makes the retries. The
// inbox of several endpoints may be one. The error names every problem of the configuration; that the inbox's window is
// short for webhooks that sign no time is no error, and logged as a warning. The handler may be called from many
// goroutines at once; a request that it has verified is brought to its end when the sender goes away.
func New(in *inbox.Inbox, source string, v Verifier, c Config) (http.Handler, error) {
	var problems []error
	if in == nil {
		return nil, errors.New("webhook config: inbox is nil: pass the one that handles the events")
	}
	if v == nil {
		problems = append(problems, errors.New("verifier is nil: pass Standard, Stripe, GitHub, Slack, Shopify, or one of your own"))
	}
	of := in.Config()
	c = c.withDefaults(source, of)
	if err := errors.Join(append(problems, c.validate(source, of))...); err != nil {
		return nil, fmt.Errorf("webhook config: %w", err)
	}
	r := &receiver{
		in: in, source: source, v: v, c: c,
		turns: make(chan struct{}, c.Workers),
		// As long as the inbox can need for an event and all its tries in place, and some time to get a connection.
		timeout: time.Duration(max(of.ImmediateRetries, 0)+1)*(of.Timeout+of.Grace) + 30*time.Second,
		window:  of.Retention,
	}
	if signsNoTime(v) {
		r.timeless()
	}
	return r, nil
}

type receiver struct {
	in      *inbox.Inbox
	source  string
	v       Verifier
	c       Config
	turns   chan struct{}
	timeout time.Duration
	window  time.Duration // for which the inbox knows an id
	warned  sync.Once     // of a window that is short
}

// ServeHTTP takes one request from its method to its answer.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	begun := time.Now()
	// 1. The bytes, and nothing else, until it is known whose they are.
	body, err := r.read(w, req)
	if err != nil {
		r.refused(w, err)
		return
	}
	now := r.c.NowFunc()
	d, err := r.v.Verify(req.Header, body, now)
	if err != nil {
		r.refused(w, err)
		return
	}
	// 2. What they say.
	if d.Answer != nil {
		writeHandshake(w, d.Answer)
		r.answered(Answered{Delivery: d, Status: http.StatusOK, Took: time.Since(begun)})
		return
	}
	if d.Timestamp.IsZero() {
		r.timeless()
	}
	e, err := r.c.event(r.source, d, req.Header, body, now)
	if err != nil {
		r.refused(w, err)
		return
	}
	// 3. The inbox, and its answer once that is committed.
	out, err := r.take(req.Context(), e, d.content)
	status := statusOf(out, err)
	writeAnswer(w, status, r.c.RetryAfter)
	r.answered(Answered{Delivery: d, EventID: e.ID, Outcome: out, Status: status, Err: err, Took: time.Since(begun)})
}

// read reads the body of a request that may be a delivery.
func (r *receiver) read(w http.ResponseWriter, req *http.Request) ([]byte, error) {
	if req.Method != http.MethodPost {
		return nil, refuse(ReasonMethod, "the method must be POST")
	}
	for _, encoding := range req.Header.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(encoding), "identity") {
			return nil, refuse(ReasonEncoding, "the body must not be encoded: a few bytes could become many, and it is signed as it came")
		}
	}
	if req.Body == nil { // a request that no server has read
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.c.MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, refuse(ReasonSize, "the body must have at most %d bytes", r.c.MaxBody)
	case err != nil:
		return nil, refuse(ReasonBroken, "the body must be there as a whole")
	}
	return body, nil
}

// errBusy is said of a delivery whose turn did not come.
var errBusy = errors.New("too many deliveries are in progress")

// take gives the event to the inbox when its turn has come. A sender that goes away meanwhile changes nothing any more:
// one that never waits as long as its handler takes would have it cancelled at every try, and never handled. By hash the
// inbox tells another body under the event's id; nil means that of all its bytes.
func (r *receiver) take(ctx context.Context, e holdfast.Event, hash []byte) (inbox.Outcome, error) {
	wait := time.NewTimer(r.c.Wait)
	defer wait.Stop()
	select {
	case r.turns <- struct{}{}:
	default:
		select {
		case r.turns <- struct{}{}:
		case <-wait.C:
			return "", errBusy
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	defer func() { <-r.turns }()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.timeout)
	defer cancel()
	hooks := r.in.Hooks()
	if r.c.Mode == StoreFirst {
		return hooks.TryStore(ctx, e, hash)
	}
	return hooks.TryReceive(ctx, e, hash)
}

// timeless warns, once, where the inbox forgets webhooks that sign no time sooner than it should.
func (r *receiver) timeless() {
	if r.window >= timelessWindow {
		return
	}
	r.warned.Do(func() {
		r.c.Logger.Warn("webhooks that sign no time are forgotten early: lengthen inbox.Config.Retention", "source", r.source, "window", r.window, "want", timelessWindow)
	})
}

func (r *receiver) refused(w http.ResponseWriter, err error) {
	reason := reasonOf(err)
	status := statusOfRefusal(reason)
	writeProblem(w, status, 0)
	r.c.Logger.Warn("webhook refused", "source", r.source, "status", status, "reason", reason, "error", err)
	if r.c.Observer.OnRefused != nil {
		r.c.Observer.OnRefused(Refused{r.source, status, reason, err})
	}
}

func (r *receiver) answered(a Answered) {
	a.Source = r.source
	if a.Err != nil {
		r.c.Logger.Warn("webhook not taken in", "source", a.Source, "id", a.EventID, "type", a.Delivery.Type, "status", a.Status, "error", a.Err)
	}
	if r.c.Observer.OnDelivery != nil {
		r.c.Observer.OnDelivery(a)
	}
}
