package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/retry"
)

// transfer is an operation that moves money: a step in the database that says what is to happen, a call of the gateway
// that does it, and a step that records it. Each step commits by itself and is never repeated; the call may be, under
// one key. So wherever a try ends, the next one goes on after what is known to be done.
type transfer[T any] struct {
	kind   string // of movement that the gateway is asked for
	begin  func(ctx context.Context, tx pgx.Tx) (T, error)
	terms  func(T) (reference string, cents int64)
	record func(ctx context.Context, tx pgx.Tx, of T, receipt string) (T, error)
	giveUp func(ctx context.Context, tx pgx.Tx, of T) (T, error) // when the gateway declines
}

func (t transfer[T]) answer(s *service, w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	attempt(ctx)
	s.at(onArrival, "")
	of, err := idempotency.Step(ctx, "begin", t.begin)
	if err != nil {
		answerError(w, err)
		return
	}
	reference, cents := t.terms(of)
	receipt, err := s.provider.move(ctx, t.kind, idempotency.DownstreamKey(ctx, t.kind), reference, cents)
	if errors.Is(err, errDeclined) {
		if of, err = idempotency.Step(ctx, "give up", func(ctx context.Context, tx pgx.Tx) (T, error) { return t.giveUp(ctx, tx, of) }); err == nil {
			s.at(whenDeclined, reference)
			answerJSON(w, http.StatusPaymentRequired, of)
			return
		}
	}
	if err != nil {
		answerError(w, err)
		return
	}
	s.at(whenPaid, reference)
	of, err = idempotency.Step(ctx, "record", func(ctx context.Context, tx pgx.Tx) (T, error) { return t.record(ctx, tx, of, receipt) })
	if err != nil {
		answerError(w, err)
		return
	}
	s.at(whenRecorded, reference)
	idempotency.SetResult(ctx, reference)
	answerJSON(w, http.StatusCreated, of)
}

// newID makes an id. It is made within a step, so that every try has the same.
func newID(prefix string) string { return prefix + "_" + strings.ToLower(rand.Text()[:12]) }

// publish writes an event of a payment or a refund, in the transaction that makes it true.
func (s *service) publish(ctx context.Context, tx pgx.Tx, eventType, key string, of any) error {
	payload, err := json.Marshal(of)
	if err != nil {
		return err
	}
	return s.outbox.Write(ctx, tx, holdfast.Event{Topic: "payments", Type: eventType, Key: key, Payload: payload})
}

// refusal is an answer of the service's own rules: the same try again gets the same.
type refusal struct {
	status       int
	code, detail string
}

func (r *refusal) Error() string { return r.detail }

func refuse(status int, code, format string, args ...any) error {
	return &refusal{status, code, fmt.Sprintf(format, args...)}
}

// answerError says why a request was not carried out. Below 500 that is final, and kept; from there on the client tries
// again, and its key is free.
func answerError(w http.ResponseWriter, err error) {
	var refused *refusal
	if errors.As(err, &refused) {
		answerProblem(w, refused.status, refused.code, refused.detail)
		return
	}
	switch class := retry.Classify(err); class {
	case retry.Timeout:
		answerProblem(w, http.StatusGatewayTimeout, string(class), "the gateway did not answer in time: try again with the same key")
	case retry.RateLimit:
		if wait, asked := retry.AfterOf(err); asked {
			w.Header().Set("Retry-After", strconv.Itoa(int((wait+time.Second-1)/time.Second)))
		}
		answerProblem(w, http.StatusTooManyRequests, codeRateLimited, "the gateway takes no more at the moment: wait, and try again with the same key")
	default:
		answerProblem(w, http.StatusServiceUnavailable, string(retry.Unavailable), "it could not be completed now: try again with the same key")
	}
}

func answerProblem(w http.ResponseWriter, status int, code, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Error-Code", code)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"title": http.StatusText(status), "status": status, "code": code, "error_code": code, "detail": detail})
}

func answerJSON(w http.ResponseWriter, status int, of any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(of)
}
