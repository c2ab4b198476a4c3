package idempotency

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/badly"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

func TestUserErrors_AStepWhoseErrorMayPanicFails(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			for i, bad := range badly.Errors() {
				h := b.stepping(b.guard(), o, func(ctx context.Context) error {
					_, err := Step(ctx, "charge", func(ctx context.Context, tx pgx.Tx) (string, error) { return "", bad.Err })
					return err
				})
				if w := b.send(h, sent{key: fmt.Sprint(i)}); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), bad.Says) {
					t.Errorf("%s: got %d %s, want 500 and %q", bad.Name, w.Code, w.Body, bad.Says)
				}
			}
		})
	}
}

func TestUserErrors_AnErrorOfAFunctionOfTheGuardMayPanic(t *testing.T) {
	b := setup(t)
	ok := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
	for _, bad := range badly.Errors() {
		var log logtest.Log
		logged := func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }
		h := b.service(b.guard(logged, func(c *Config) { c.Principal = func(*http.Request) (string, error) { return "", bad.Err } }), ok)
		w := b.send(h, sent{key: "k"})
		if b.is(w, 401, codePrincipalUnknown); !strings.Contains(log.String(), bad.Says) {
			t.Errorf("%s, of Principal: the log says %q, want %q", bad.Name, log.String(), bad.Says)
		}
		for name, o := range map[string]Route{
			"KeyFunc":     {KeyFunc: func(*http.Request, []byte) (string, error) { return "", bad.Err }},
			"KeyFormat":   {KeyFormat: func(string) error { return bad.Err }},
			"Fingerprint": {Fingerprint: func(*http.Request, []byte) ([]byte, error) { return nil, bad.Err }},
		} {
			w := b.send(b.service(b.guard(), ok, o), sent{key: "k"})
			if want, _, _ := strings.Cut(bad.Says, ":"); w.Code/100 != 4 || !strings.Contains(w.Body.String(), want) {
				t.Errorf("%s, of %s: got %d %s, want %q", bad.Name, name, w.Code, w.Body, want)
			}
		}
	}
}

// badStore answers every call with an error.
type badStore struct{ err error }

func (s badStore) Claim(context.Context, store.Key, []byte, time.Duration, time.Duration) (store.Claimed, error) {
	return store.Claimed{}, s.err
}
func (s badStore) Renew(context.Context, store.Key, int64, time.Duration) (bool, error) {
	return false, s.err
}
func (s badStore) Finish(context.Context, store.Key, int64, store.Answer, time.Duration) (time.Time, bool, error) {
	return time.Time{}, false, s.err
}
func (s badStore) Release(context.Context, store.Key, int64) error { return s.err }

func TestUserErrors_AnErrorOfAStoreMayPanic(t *testing.T) {
	b := setup(t)
	for _, bad := range badly.Errors() {
		var log logtest.Log
		g, err := NewEphemeral(badStore{bad.Err}, b.config(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }))
		if err != nil {
			t.Fatal(err)
		}
		h := b.service(g, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
		if w := b.send(h, sent{key: "k"}); w.Code != http.StatusServiceUnavailable || !strings.Contains(log.String(), bad.Says) {
			t.Errorf("%s: got %d and the log %q, want 503 and %q", bad.Name, w.Code, log.String(), bad.Says)
		}
	}
}
