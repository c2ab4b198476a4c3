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
	"github.com/holdfast-go/holdfast/internal/correlation"
	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/internal/quiet"
	"github.com/holdfast-go/holdfast/retry"
)

// New makes the handler of one endpoint: requests that v accepts become events of source in the inbox. A request is
// verified over the raw bytes of its body, before anything in it is read and before the database is used. An answer of
// 2xx means that the event is committed, or unwanted; docs/reference/http.md has the table of answers.
//
// source names the provider's account: ids are unique within it. Two endpoints of one inbox cannot share it, unless
// Config.SharedSource says that they may.
//
// First register handlers with the inbox. In every mode, call Inbox.Run on at least one node, because it makes the
// retries. Several endpoints may share an inbox. The error lists every problem of the configuration. If the inbox's
// retention is short for webhooks without a signed time, New logs a warning and returns no error. Many goroutines may
// call the handler at once. Once a verified request has a worker (Config.Workers), it is carried out even if the sender
// disconnects.
func New(in *inbox.Inbox, source string, v Verifier, c Config) (http.Handler, error) {
	var problems []error
	if in == nil {
		return nil, errors.New("webhook config: inbox is nil: it must be the one that handles the events")
	}
	if v == nil {
		problems = append(problems, errors.New("verifier is nil: it must be Standard, Stripe, GitHub, Slack, Shopify, or one of your own"))
	}
	of := in.Config()
	chosen := c.Horizon != 0
	c = c.withDefaults(source, of)
	if err := errors.Join(append(problems, c.validate(source, of))...); err != nil {
		return nil, fmt.Errorf("webhook config: %w", err)
	}
	if err := claimSource(in, source, c.SharedSource); err != nil {
		return nil, fmt.Errorf("webhook config: %w", err)
	}
	r := &receiver{
		in: in, source: source, v: v, c: c,
		turns:  make(chan struct{}, c.Workers),
		window: of.RetentionOf(source),
	}
	if signsNoTime(v) {
		r.warnTimeless()
	}
	if by := resentWithin(v); by > r.window && !chosen {
		c.Logger.Warn("webhooks that people send again by hand may be handled again: set inbox.Config.SourceRetention for this source, or webhook.Config.Horizon", "source", source, "window", r.window, "want", by)
	}
	return r, nil
}

// refusedEvery is how often an endpoint logs requests that it refuses for one reason.
const refusedEvery = time.Minute

type receiver struct {
	in     *inbox.Inbox
	source string
	v      Verifier
	c      Config
	turns  chan struct{}
	window time.Duration // how long the inbox remembers an id of source
	warned sync.Once     // warned that the window is short
	quiet  quiet.Limiter // of refused requests: anybody can send them
}

// ServeHTTP handles one request.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	begun := time.Now()
	var headers map[string]string
	if r.c.Observer.OnRequest != nil {
		ctx, more, ended := r.c.Observer.OnRequest(req.Context(), r.source, req)
		defer ended()
		req, headers = req.WithContext(ctx), more
	}
	// 1. Read the bytes and verify them before anything else.
	body, err := r.read(w, req)
	if err != nil {
		r.refused(w, req, err)
		return
	}
	now := r.c.NowFunc()
	d, err := r.v.Verify(req.Header, body, now)
	if err = foreign.Error(err); err != nil {
		r.refused(w, req, err)
		return
	}
	// 2. Find out what they say.
	if d.Answer != nil {
		writeHandshake(w, d.Answer)
		r.answered(Answered{
			Context:  req.Context(),
			Delivery: d,
			Status:   http.StatusOK,
			Took:     time.Since(begun),
		})
		return
	}
	if d.Timestamp.IsZero() {
		r.warnTimeless()
	}
	e, err := r.c.event(r.source, d, req.Header, body, now)
	if err != nil {
		r.refused(w, req, err)
		return
	}
	addHeaders(e.Headers, headers)
	correlated := correlation.ID(req.Header.Get, "X-Request-Id")
	// 3. Pass the event to the inbox, and answer after its commit.
	out, err := r.receive(req.Context(), e, d.content)
	status := statusOf(out, err)
	writeAnswer(w, status, r.c.RetryAfter)
	r.answered(Answered{
		Context:       req.Context(),
		Delivery:      d,
		EventID:       e.ID,
		CorrelationID: correlated,
		Outcome:       out,
		Status:        status,
		Err:           err,
		Took:          time.Since(begun),
	})
}

// read reads the body of a request.
func (r *receiver) read(w http.ResponseWriter, req *http.Request) ([]byte, error) {
	if req.Method != http.MethodPost {
		return nil, refuse(reasonMethod, "the method must be POST")
	}
	for _, encoding := range req.Header.Values("Content-Encoding") {
		if !strings.EqualFold(strings.TrimSpace(encoding), "identity") {
			return nil, refuse(reasonEncoding, "the body must not be encoded: a few bytes could become many, and the signature covers the encoded bytes")
		}
	}
	if req.Body == nil { // a request that no server read
		return nil, nil
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, r.c.MaxBody))
	var large *http.MaxBytesError
	switch err = foreign.Error(err); {
	case errors.As(err, &large):
		return nil, refuse(reasonSize, "the body must be at most %d bytes", r.c.MaxBody)
	case err != nil:
		return nil, refuse(reasonBroken, "the body must be complete")
	}
	return body, nil
}

// errBusy says that no worker became free in time.
var errBusy = errors.New("too many deliveries are in progress")

// receive passes the event to the inbox when a worker is free. A sender that disconnects after that changes
// nothing. Otherwise a sender that never waits as long as the handler takes would cancel it at every attempt. The inbox
// uses hash to recognise another body under the event's id; nil means the hash of the whole body.
func (r *receiver) receive(ctx context.Context, e holdfast.Event, hash []byte) (inbox.Outcome, error) {
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
	hooks, of := r.in.Hooks(), r.in.Config()
	// The time the inbox may need for an event with all its immediate retries, plus some time to get a connection.
	most := time.Duration(max(of.ImmediateRetries, 0)+1)*(hooks.Timeout(e.Type)+of.Grace) + 30*time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
	defer cancel()
	if r.c.Mode == StoreFirst {
		return hooks.TryStore(ctx, e, hash)
	}
	return hooks.TryReceive(ctx, e, hash)
}

// warnTimeless warns once if the inbox forgets webhooks without a signed time too soon.
func (r *receiver) warnTimeless() {
	if r.window >= timelessWindow {
		return
	}
	r.warned.Do(func() {
		r.c.Logger.Warn("webhooks without a signed time are forgotten early: set inbox.Config.SourceRetention for this source", "source", r.source, "window", r.window, "want", timelessWindow)
	})
}

func (r *receiver) refused(w http.ResponseWriter, req *http.Request, err error) {
	reason := reasonOf(err)
	status := statusOfRefusal(reason)
	writeProblem(w, status, 0)
	if suppressed, say := r.quiet.Allow(string(reason), refusedEvery, time.Now()); say {
		attrs := []any{"source", r.source, "status", status, "reason", reason, "suppressed", suppressed, "error_code", string(classOfRefusal(status)), "error", err}
		if id := correlation.ID(req.Header.Get, "X-Request-Id"); id != "" {
			attrs = append(attrs, "correlation_id", id)
		}
		r.c.Logger.WarnContext(req.Context(), "webhook refused", attrs...)
	}
	if r.c.Observer.OnRefused != nil {
		r.c.Observer.OnRefused(Refused{req.Context(), r.source, status, reason, err})
	}
}

func (r *receiver) answered(a Answered) {
	a.Source = r.source
	from, to := a.Outcome.States()
	attrs := []any{"source", a.Source, "event_id", a.EventID, "type", a.Delivery.Type, "status", a.Status, "from_state", from, "to_state", to}
	if a.CorrelationID != "" {
		attrs = append(attrs, "correlation_id", a.CorrelationID)
	}
	switch log := r.c.Logger; {
	case a.Err != nil:
		log.WarnContext(a.Context, "webhook not accepted", append(attrs, "error_code", string(retry.Classify(a.Err)), "error", private.Text(a.Err))...)
	case a.Outcome == inbox.Duplicate: // A hit is the only trace that a repeat leaves.
		log.InfoContext(a.Context, "webhook answered", append(attrs, "outcome", string(a.Outcome), "took", a.Took)...)
	default:
		log.DebugContext(a.Context, "webhook answered", append(attrs, "outcome", string(a.Outcome), "took", a.Took)...)
	}
	if r.c.Observer.OnDelivery != nil {
		r.c.Observer.OnDelivery(a)
	}
}
