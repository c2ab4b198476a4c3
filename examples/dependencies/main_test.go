package main

import (
	"context"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// telling is the story as a config has it.
func telling(c config) exampletest.Story {
	return func(ctx context.Context, out io.Writer) error { return run(ctx, out, c) }
}

func TestDependencies_WithoutAnyServerTheStoryIsToldToItsEnd(t *testing.T) {
	skip.InShort(t, "it takes 15 s beside the others")
	t.Parallel()
	exampletest.ToItsEnd(t, telling(config{}), len(promises)+1,
		"server answered 503", "connection refused", "Client.Timeout exceeded", "order 7 is charged")
}

func TestDependencies_AServerThatIsNamedIsUsedAndLeftAsItWas(t *testing.T) {
	skip.InShort(t, "it takes 15 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	exampletest.OnNamedServer(t, db, "dependencies", telling(config{DatabaseURL: db.DSN}))
}

func TestDependencies_AHandlerThatDoesNotSaySoBreaksThePromises(t *testing.T) {
	skip.InShort(t, "it takes 15 s beside the others")
	t.Parallel()
	exampletest.Breaks(t, telling(config{DatabaseURL: pgtest.New(t).DSN, careless: true}),
		"nothing is a dead letter", "no event has spent an attempt on the outage", "each order is paid once")
}

func TestDependencies_TheCommandExitsWithStatusOneWithoutItsServer(t *testing.T) {
	t.Parallel()
	exampletest.WithoutServer(t, "dependencies")
}

// saysAway reports that the handler says of an error that the provider is away.
func saysAway(err error) bool { return err != nil && inbox.Unavailable("payments", err) != err }

// No event is to blame for a call without an answer.
func TestDependencies_ACallWithoutAnAnswerBlamesNoEvent(t *testing.T) {
	t.Parallel()
	expired := httptest.NewUnstartedServer(http.NotFoundHandler()) // Nobody trusts its certificate.
	expired.Config.ErrorLog = log.New(io.Discard, "", 0)
	expired.StartTLS()
	defer expired.Close()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, url := range []string{expired.URL, gone.URL} {
		b := &billing{payments: url, http: &http.Client{Timeout: time.Minute}}
		if err := b.call(t.Context(), holdfast.Event{ID: "1"}); !saysAway(err) {
			t.Errorf("%v is the event's fault", err)
		}
	}
}

// Which answers say that the provider is away, and which that the request is refused.
func TestDependencies_AnAnswerSaysWhatIsToBlame(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int
		after  string
		away   bool
		wait   time.Duration
	}{
		"charged":           {201, "", false, 0},
		"busy":              {503, "2", true, 2 * time.Second},
		"too many requests": {429, time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), true, time.Hour},
		"an odd header":     {503, "soon", true, 0},
		"a bug of theirs":   {500, "", true, 0},
		"wrong credentials": {401, "", true, 0},
		"a refused card":    {402, "2", false, 0},
	} {
		provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", c.after)
			w.WriteHeader(c.status)
		}))
		b := &billing{payments: provider.URL, http: provider.Client()}
		err := b.call(t.Context(), holdfast.Event{ID: "1"})
		provider.Close()
		if (err == nil) != (c.status < 300) || saysAway(err) != c.away {
			t.Errorf("%s: %v, which says that the provider is away: %t", name, err, saysAway(err))
		}
		if wait, _ := retry.AfterOf(err); wait < c.wait-2*time.Second || wait > c.wait {
			t.Errorf("%s: it asks to wait for %s, want %s", name, wait, c.wait)
		}
	}
}
