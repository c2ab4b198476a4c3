package idempotency

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// R40.
func TestLease_ALeasedRequestIsAnsweredOnceAndReplayedWithoutAWrite(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := openTill(t)
	h := b.sell(b.guard())
	first := b.send(h, sent{key: "k"})
	b.is(first, 201, "")
	if first.Header().Get("Idempotency-Status") != "stored" {
		t.Errorf("got %v", first.Header())
	}
	row := "select ctid::text || xmin::text || xmax::text from holdfast.idempotency"
	var before, after string
	if err := b.db.QueryRow(t.Context(), row).Scan(&before); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		second := b.send(h, sent{key: "k"})
		b.same(first, second)
		if second.Header().Get("Idempotency-Status") != "replayed" {
			t.Errorf("got %v", second.Header())
		}
	}
	if err := b.db.QueryRow(t.Context(), row).Scan(&after); err != nil {
		t.Fatal(err)
	}
	if before != after {
		t.Errorf("a repeat wrote: the row was %s and is %s", before, after)
	}
	b.is(b.send(h, sent{key: "k", body: `{"amount": 20}`}), 409, codePayloadMismatch)
	b.sold(1)
	if got := b.results(); !slices.Equal(got, []Result{Created, Replayed, Replayed, Replayed, Conflict}) || b.observed[0].Attempt != 1 || b.observed[1].Attempt != 0 {
		t.Errorf("reported %+v", b.observed)
	}
}

// R40.
func TestLease_ARequestGoesOnAfterItsLastStep(t *testing.T) {
	for _, place := range []string{"begin", "in order", "before the call", "after the call", "end"} {
		t.Run(place, func(t *testing.T) {
			b := openTill(t)
			h := b.sell(b.guard())
			for name, how := range map[string]func() error{
				"an error": func() error { return errors.New("planned") },
				"a panic":  func() error { panic("planned") },
				"go exit":  func() error { runtime.Goexit(); return nil },
			} {
				s := sent{key: strings.ReplaceAll(name, " ", "-")}
				b.at = func(at string, r *http.Request) error {
					if at == place {
						return how()
					}
					return nil
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					b.send(h, s)
				}()
				<-done
				orders := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_step where name = 'order'")
				if want := map[bool]int64{true: 0, false: 1}[place == "begin" || place == "in order"]; orders != want {
					t.Fatalf("%s: %d steps are noted, want %d", name, orders, want)
				}
				b.at = nil
				b.is(b.send(h, s), 201, "") // at once: the lease was released
				if n := b.observed[len(b.observed)-1]; n.Attempt != 2 || n.Result != Created {
					t.Errorf("%s: reported %+v", name, n)
				}
			}
			b.sold(3)
		})
	}
}

// R40.
func TestLease_AKeyWhoseProcessEndedIsInUseUntilItsLeaseRunsOut(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := openTill(t)
	g := b.guard()
	b.abandonAt(g, "after the call")
	other := b.sell(b.guard())
	w := b.send(other, sent{key: "k"})
	b.is(w, 409, codeInProgress)
	if w.Header().Get("Retry-After") == "" {
		t.Error("it is not said when to ask again")
	}
	b.is(b.send(b.sell(b.guard(), Route{Lease: aLease, StatusURL: func(r *http.Request, key string) string { return "/status/" + key }}), sent{key: "k"}), 202, codeInProgress)
	b.is(b.send(other, sent{key: "k", body: `{"amount": 20}`}), 409, codePayloadMismatch)
	b.ending()
	b.is(b.send(b.sell(b.guard(), Route{Lease: aLease, Wait: time.Minute}), sent{key: "k"}), 201, "") // waits for the lease to end
	b.is(b.send(other, sent{key: "k", body: `{"amount": 20}`}), 409, codePayloadMismatch)
	b.sold(1)
}

// R6.
func TestLease_AMismatchIsSaidAlsoAfterALeaseThatRanOut(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := openTill(t)
	g := b.guard()
	b.abandonAt(g, "before the call")
	b.lapse()
	h := b.sell(b.guard())
	b.is(b.send(h, sent{key: "k", body: `{"amount": 20}`}), 409, codePayloadMismatch)
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.sold(1)
}

// abandonAt leaves the key k as a process does that ended at a place of the handler: its lease lives on, until lapse or
// ending are called, for longer than any machine needs to come there.
func (ti *till) abandonAt(g *Guard, place string, route ...Route) {
	ti.Helper()
	ti.abandon(g, place, sent{key: "k"}, route...)
	pgtest.Exec(ti, ti.db, "update holdfast.idempotency set lease_until = clock_timestamp() + interval '1 hour' where state = 'pending'")
}

// ending lets every lease run out by itself, soon.
func (ti *till) ending() {
	ti.Helper()
	pgtest.Exec(ti, ti.db, "update holdfast.idempotency set lease_until = clock_timestamp() + interval '1 second' where state = 'pending'")
}

// R11.
func TestLease_OfManyRequestsAtOnceUnderALeaseOneRuns(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := openTill(t)
	g := b.guard()
	b.at = func(place string, r *http.Request) error { // all have asked before it ends
		if place == "after the call" {
			wait.Until(b, "the others were answered", func() bool { return len(b.results()) >= 49 })
		}
		return nil
	}
	h := b.sell(g, Route{Lease: time.Minute})
	answers := b.atOnce(h, 50)
	created := 0
	for _, w := range answers {
		switch w.Code {
		case 201:
			created++
		case 409:
		default:
			t.Fatalf("got %s", statusesOf(answers))
		}
	}
	if created != 1 || b.runs.Load() != 1 {
		t.Fatalf("%d were created by %d runs: %s", created, b.runs.Load(), statusesOf(answers))
	}
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.sold(1)
}

// R11.
func TestLease_RequestsThatWaitForALeaseGetItsAnswer(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := openTill(t)
	h := b.sell(b.guard(), Route{Lease: time.Minute, Wait: time.Minute}) // so long that nobody takes over whom a busy machine stops
	fail := true
	var mu sync.Mutex
	b.at = func(place string, r *http.Request) error {
		mu.Lock()
		defer mu.Unlock()
		if place == "before the call" && fail { // The first one fails, another goes on.
			fail = false
			return errors.New("planned")
		}
		return nil
	}
	answers := b.atOnce(h, 20)
	failed := 0
	for _, w := range answers {
		if w.Code == 500 {
			failed++
		} else {
			b.is(w, 201, "")
		}
	}
	if failed != 1 || b.runs.Load() != 2 {
		t.Errorf("%d failed in %d runs: %s", failed, b.runs.Load(), statusesOf(answers))
	}
	b.sold(1)
}

// A process that is frozen past its lease and thawed does nothing more, whatever it thinks.
func TestLease_Trap30WhoIsThawedAfterItsLeaseWritesNothing(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := openTill(t)
	thaw, froze := make(chan struct{}), make(chan struct{})
	b.at = func(place string, r *http.Request) error {
		if place == "after the call" && r.Header.Get("Node") == "frozen" {
			close(froze)
			<-thaw
		}
		return nil
	}
	first := b.guard()
	first.store = frozen{first.store}
	h1, h2 := b.sell(first), b.sell(b.guard())
	answer := make(chan *httptest.ResponseRecorder)
	go func() {
		answer <- b.send(h1, sent{key: "k", header: http.Header{"Node": {"frozen"}}})
	}()
	<-froze
	var second *httptest.ResponseRecorder
	wait.Until(b, "the lease runs out", func() bool {
		second = b.send(h2, sent{key: "k"})
		return second.Code != 409
	})
	b.is(second, 201, "")
	close(thaw)
	w := <-answer
	b.is(w, 409, codeInProgress)
	if w.Header().Get("Retry-After") == "" {
		t.Error("it is not said when to ask again")
	}
	b.same(second, b.send(h1, sent{key: "k"}))
	b.sold(1)
	if got := b.results(); got[len(got)-2] != Lost {
		t.Errorf("reported %v", got)
	}
}

func TestLease_Trap30AHandlerHearsThatItsLeaseIsLost(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := openTill(t)
	began := make(chan struct{})
	var cause, stepped error
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		close(began)
		<-r.Context().Done() // by the heartbeat
		cause = context.Cause(r.Context())
		_, stepped = Step(context.WithoutCancel(r.Context()), "late", func(ctx context.Context, tx pgx.Tx) (int, error) {
			t.Error("a step ran without its lease")
			return 0, nil
		})
		w.WriteHeader(201)
	}, Route{Lease: aLease})
	answer := make(chan *httptest.ResponseRecorder)
	go func() { answer <- b.send(h, sent{key: "k"}) }()
	<-began
	pgtest.Exec(t, b.db, "update holdfast.idempotency set fence = nextval('holdfast.idempotency_fence')")
	b.is(<-answer, 409, codeInProgress)
	if !errors.Is(cause, ErrLeaseLost) || !errors.Is(stepped, ErrLeaseLost) {
		t.Errorf("its context ended by %v, its step by %v", cause, stepped)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state = 'pending'"); n != 1 {
		t.Error("it ended what is another's")
	}
}

func TestLease_ALeaseIsRenewedWhileItsHandlerRuns(t *testing.T) {
	skip.InShort(t, "it takes 15 s beside the others")
	b := openTill(t)
	const lease = 10 * time.Second // none that a busy machine lets run out: it is renewed every three seconds
	var until, later time.Time
	b.at = func(place string, r *http.Request) error {
		read := func() (at time.Time) {
			if err := b.db.QueryRow(t.Context(), "select lease_until from holdfast.idempotency").Scan(&at); err != nil {
				t.Error(err)
			}
			return at
		}
		if place == "begin" {
			until = read()
			wait.Until(b, "it was renewed past its end", func() bool { later = read(); return later.Sub(until) > lease })
		}
		return nil
	}
	h := b.sell(b.guard(), Route{Lease: lease, TTL: time.Second}) // A key under a lease does not expire either.
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.sold(1)
	if n := b.observed[0]; n.Attempt != 1 {
		t.Errorf("reported %+v", n)
	}
}

func TestLease_ALeaseOutlastsAStepThatTakesLonger(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	b := openTill(t)
	other := b.sell(b.guard())
	b.at = func(place string, r *http.Request) error {
		if place != "in order" {
			return nil
		}
		wait.Until(b, "the lease has run out", func() bool {
			return pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where lease_until < clock_timestamp()") == 1
		})
		begun := time.Now()
		b.is(b.send(other, sent{key: "k"}), 409, codeInProgress) // The row is locked by the step: nobody waits for it, nobody gets it.
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("a claim waited %s for a step", took)
		}
		return nil
	}
	b.is(b.send(b.sell(b.guard()), sent{key: "k"}), 201, "")
	b.sold(1)
	if n := b.runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

// R6, R12.
func TestLease_ARaceForAKeyIsDecidedByItsClaim(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := openTill(t)
	first := b.sell(b.guard())
	fail := true
	b.at = func(place string, r *http.Request) error {
		if place == "before the call" && fail {
			return errors.New("planned")
		}
		return nil
	}
	// Between the look and the claim of another request with the key, one comes and fails.
	second := b.guard()
	var once sync.Once
	second.pool = b.traced(&beforeQuery{match: "idempotency.claim", do: func() { once.Do(func() { b.is(b.send(first, sent{key: "k"}), 500, "") }) }})
	b.is(b.send(b.sell(second), sent{key: "k", body: `{"amount": 20}`}), 409, codePayloadMismatch)
	// One comes and is answered.
	fail = false
	b.is(b.send(first, sent{key: "k"}), 201, "")
	third := b.guard()
	once = sync.Once{}
	third.pool = b.traced(&beforeQuery{match: "idempotency.claim", do: func() { once.Do(func() { b.is(b.send(first, sent{key: "k2"}), 201, "") }) }})
	w := b.send(b.sell(third), sent{key: "k2"})
	b.is(w, 201, "")
	if w.Header().Get("Idempotency-Status") != "replayed" {
		t.Errorf("got %v", w.Header())
	}
	b.sold(2)
}
