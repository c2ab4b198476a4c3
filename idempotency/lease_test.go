package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/pgtest"
)

func TestR40ARequestUnderALeaseIsAnsweredOnceAndReplayedWithoutAWrite(t *testing.T) {
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
	b.is(b.send(h, sent{key: "k", body: `{"amount": 20}`}), 409, CodePayloadMismatch)
	b.sold(1)
	if got := b.results(); !slices.Equal(got, []Result{Created, Replayed, Replayed, Replayed, Conflict}) || b.told[0].Attempt != 1 || b.told[1].Attempt != 0 {
		t.Errorf("told %+v", b.told)
	}
}

func TestR40ARequestGoesOnBehindItsLastStep(t *testing.T) {
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
				if n := b.told[len(b.told)-1]; n.Attempt != 2 || n.Result != Created {
					t.Errorf("%s: told %+v", name, n)
				}
			}
			b.sold(3)
		})
	}
}

func TestR40AKeyWhoseProcessEndedIsInUseUntilItsLeaseRunsOut(t *testing.T) {
	b := openTill(t)
	g := b.guard()
	b.abandonAt(g, "after the call")
	other := b.sell(b.guard())
	w := b.send(other, sent{key: "k"})
	b.is(w, 409, CodeInProgress)
	if w.Header().Get("Retry-After") == "" {
		t.Error("it is not said when to ask again")
	}
	b.is(b.send(b.sell(b.guard(), Route{Lease: aLease, StatusURL: func(r *http.Request, key string) string { return "/status/" + key }}), sent{key: "k"}), 202, CodeInProgress)
	b.is(b.send(other, sent{key: "k", body: `{"amount": 20}`}), 409, CodePayloadMismatch)
	b.is(b.send(b.sell(b.guard(), Route{Lease: aLease, Wait: 20 * time.Second}), sent{key: "k"}), 201, "") // waits for the lease to end
	b.is(b.send(other, sent{key: "k", body: `{"amount": 20}`}), 409, CodePayloadMismatch)
	b.sold(1)
}

func TestR6AMismatchIsSaidAlsoBehindALeaseThatRanOut(t *testing.T) {
	b := openTill(t)
	g := b.guard()
	b.abandonAt(g, "before the call")
	b.lapse()
	h := b.sell(b.guard())
	b.is(b.send(h, sent{key: "k", body: `{"amount": 20}`}), 409, CodePayloadMismatch)
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.sold(1)
}

// abandonAt leaves the key k as a process does that ended at a place of the handler: its lease lives on.
func (b *till) abandonAt(g *Guard, place string, route ...Route) {
	b.Helper()
	b.abandon(g, place, sent{key: "k"}, route...)
	pgtest.Exec(b, b.db, "update holdfast.idempotency set lease_until = clock_timestamp() + interval '1 second' where state = 'pending'")
}

func TestR11OfManyRequestsAtOnceUnderALeaseOneRuns(t *testing.T) {
	b := openTill(t)
	g := b.guard()
	b.at = func(place string, r *http.Request) error { // all have asked before it ends
		if place == "after the call" {
			b.eventually("the others were told", func() bool { return len(b.results()) >= 49 })
		}
		return nil
	}
	h := b.sell(g, Route{Lease: 10 * time.Second})
	answers := make([]*httptest.ResponseRecorder, 50)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = b.send(h, sent{key: "k"}) })
	}
	wg.Wait()
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

func TestR11RequestsThatWaitForALeaseGetItsAnswer(t *testing.T) {
	b := openTill(t)
	h := b.sell(b.guard(), Route{Lease: aLease, Wait: 30 * time.Second})
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
	answers := make([]*httptest.ResponseRecorder, 20)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = b.send(h, sent{key: "k"}) })
	}
	wg.Wait()
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

// TestTrap30: a process that is frozen past its lease and thawed does nothing more, whatever it thinks.
func TestTrap30WhoIsThawedAfterItsLeaseWritesNothing(t *testing.T) {
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
	b.eventually("the lease runs out", func() bool {
		second = b.send(h2, sent{key: "k"})
		return second.Code != 409
	})
	b.is(second, 201, "")
	close(thaw)
	w := <-answer
	b.is(w, 409, CodeInProgress)
	if w.Header().Get("Retry-After") == "" {
		t.Error("it is not said when to ask again")
	}
	b.same(second, b.send(h1, sent{key: "k"}))
	b.sold(1)
	if got := b.results(); got[len(got)-2] != Lost {
		t.Errorf("told %v", got)
	}
}

func TestTrap30AHandlerHearsThatItsLeaseIsLost(t *testing.T) {
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
	b.is(<-answer, 409, CodeInProgress)
	if !errors.Is(cause, ErrLeaseLost) || !errors.Is(stepped, ErrLeaseLost) {
		t.Errorf("its context ended by %v, its step by %v", cause, stepped)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state = 'pending'"); n != 1 {
		t.Error("it ended what is another's")
	}
}

func TestALeaseIsRenewedWhileItsHandlerRuns(t *testing.T) {
	b := openTill(t)
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
			b.eventually("it was renewed past two leases", func() bool { later = read(); return later.Sub(until) > 2*aLease })
		}
		return nil
	}
	h := b.sell(b.guard(), Route{Lease: aLease, TTL: time.Second}) // A key under a lease does not expire either.
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.sold(1)
	if n := b.told[0]; n.Attempt != 1 {
		t.Errorf("told %+v", n)
	}
}

func TestALeaseOutlastsAStepThatTakesLonger(t *testing.T) {
	b := openTill(t)
	other := b.sell(b.guard())
	b.at = func(place string, r *http.Request) error {
		if place != "in order" {
			return nil
		}
		b.eventually("the lease has run out", func() bool {
			return pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where lease_until < clock_timestamp()") == 1
		})
		begun := time.Now()
		b.is(b.send(other, sent{key: "k"}), 409, CodeInProgress) // The row is locked by the step: nobody waits for it, nobody gets it.
		if took := time.Since(begun); took > 5*time.Second {
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

func TestR20WhatIsNotStoredUnderALeaseLeavesTheKeyToTheNextRequest(t *testing.T) {
	b := openTill(t)
	status, stepped := 0, false
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		if stepped {
			if _, err := Step(r.Context(), "one", func(ctx context.Context, tx pgx.Tx) (int, error) { return 1, nil }); err != nil {
				t.Error(err)
			}
		}
		if status == http.StatusUnprocessableEntity {
			DoNotStore(r.Context())
		}
		w.WriteHeader(status)
	}, Route{Lease: aLease})
	for _, stepped = range []bool{false, true} {
		for _, status = range []int{401, 403, 408, 422, 425, 429, 500, 503} {
			key := fmt.Sprint(status, "-", stepped)
			for range 2 {
				if w := b.send(h, sent{key: key}); w.Code != status || w.Header().Get("Idempotency-Status") != "" {
					t.Errorf("%s: got %d %v", key, w.Code, w.Header())
				}
			}
			// Without a step and with an answer that blames the request nothing was done: the key is free for another one.
			w := b.send(h, sent{key: key, body: `{"amount": 20}`})
			if free := !stepped && status < 500; free != (w.Code == status) || !free && w.Code != 409 {
				t.Errorf("%s: another request got %d", key, w.Code)
			}
		}
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency where state <> 'pending' or lease_until > clock_timestamp()"); n != 0 {
		t.Errorf("%d keys are in use", n)
	}
	status = 402
	b.is(b.send(h, sent{key: "final"}), 402, "")
	runs := b.runs.Load()
	b.is(b.send(h, sent{key: "final"}), 402, "")
	if b.runs.Load() != runs {
		t.Error("an answer of 402 was made again")
	}
}

func TestAClientThatGoesAwayUnderALeaseFindsItsAnswerLater(t *testing.T) {
	b := openTill(t)
	ctx, cancel := context.WithCancel(t.Context())
	b.at = func(place string, r *http.Request) error {
		if place == "end" {
			cancel()
			<-r.Context().Done()
		}
		return nil
	}
	h := b.sell(b.guard())
	b.is(b.send(h, sent{key: "k", ctx: ctx}), 201, "")
	b.at = nil
	b.is(b.send(h, sent{key: "k"}), 201, "")
	b.sold(1)
	if n := b.runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

func TestR23AnUnfinishedRequestWithStepsOutlivesItsTTLAndOneWithoutDoesNot(t *testing.T) {
	b := openTill(t)
	g := b.guard(func(c *Config) { c.KeepExpired = time.Hour })
	o := Route{Lease: aLease, TTL: time.Hour}
	b.abandon(g, "begin", sent{key: "bare"}, o)
	b.abandon(g, "before the call", sent{key: "stepped"}, o)
	pgtest.Exec(t, b.db, "update holdfast.idempotency set expires_at = expires_at - interval '2 hours', lease_until = lease_until - interval '2 hours'")
	if n, err := g.RunOnce(t.Context()); n != 1 || err != nil {
		t.Errorf("removed %d, %v, want the one without steps", n, err)
	}
	h := b.sell(g, o)
	b.is(b.send(h, sent{key: "bare", body: `{"amount": 20}`}), 201, "") // It is a new request.
	b.is(b.send(h, sent{key: "stepped", body: `{"amount": 20}`}), 409, CodePayloadMismatch)
	b.is(b.send(h, sent{key: "stepped"}), 201, "")
	b.sold(2)

	b.abandon(g, "before the call", sent{key: "third"}, o)
	b.expire()
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_step"); n != 1 {
		t.Fatalf("%d steps", n)
	}
	if n, err := g.RunOnce(t.Context()); n != 3 || err != nil {
		t.Errorf("removed %d, %v", n, err)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_step"); n != 0 {
		t.Errorf("%d steps have no request", n)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_expired where status is null"); n != 2 {
		t.Errorf("%d unfinished ones are kept for audits", n)
	}
}

func TestR24AnExpiredKeyUnderALeaseIsANewRequestWithNewSteps(t *testing.T) {
	b := openTill(t)
	g := b.guard(func(c *Config) { c.KeepExpired = time.Hour })
	b.abandon(g, "before the call", sent{key: "k"}, Route{Lease: aLease, Operation: "sell", Complete: asItIs})
	b.expire()
	b.lapse()
	h := b.sell(b.guard(func(c *Config) { c.KeepExpired = time.Hour }), Route{Lease: aLease, Operation: "sell"})
	b.is(b.send(h, sent{key: "k"}), 201, "")
	if n := pgtest.Count(t, b.db, "select count(*) from charge"); n != 2 {
		t.Errorf("%d charges: the old request's step was taken for the new one's", n)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_step") + pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_request"); n != 0 {
		t.Errorf("%d rows of the old request are left", n)
	}
	if n := pgtest.Count(t, b.db, "select count(*) from holdfast.idempotency_expired"); n != 1 {
		t.Errorf("%d are kept for audits", n)
	}
	if o := b.told[len(b.told)-1]; !o.Expired || o.Attempt != 1 {
		t.Errorf("told %+v", o)
	}
}

func TestARouteThatChangesItsModeNeverRunsARequestTwice(t *testing.T) {
	b := openTill(t)
	inTx := b.service(b.guard(), b.charge, Route{Operation: "sell"})
	leased := b.sell(b.guard(), Route{Lease: 10 * time.Second, Operation: "sell"})

	// A transaction meets a lease: while it lives, and after it has run out.
	b.at = func(place string, r *http.Request) error {
		if place == "after the call" {
			b.is(b.send(inTx, sent{key: "k"}), 409, CodeInProgress)
			b.lapse()
			b.is(b.send(inTx, sent{key: "k"}), 409, CodeInProgress)
			b.is(b.send(inTx, sent{key: "k", body: `{"amount": 20}`}), 409, CodePayloadMismatch)
		}
		return nil
	}
	first := b.send(leased, sent{key: "k"})
	b.is(first, 201, "")
	b.same(first, b.send(inTx, sent{key: "k"}))
	b.sold(1)

	// A lease meets a transaction that runs: its lock is what it sees.
	busy := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		b.is(b.send(leased, sent{key: "k2"}), 409, CodeInProgress)
		b.charge(w, r)
	}, Route{Operation: "sell"})
	second := b.send(busy, sent{key: "k2"})
	b.is(second, 201, "")
	b.same(second, b.send(leased, sent{key: "k2"}))
	b.kept(2, 2, 2)

	// Should a claim come beside the lock for all that, the primary key undoes the transaction.
	beside := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		pgtest.Exec(t, b.db, `insert into holdfast.idempotency (scope, operation, key, fingerprint, fingerprint_version, state, owner, fence, run, lease_until, expires_at)
			select scope, operation, 'k3', fingerprint, fingerprint_version, 'pending', gen_random_uuid(), 7, 7, clock_timestamp() + interval '1 hour', clock_timestamp() + interval '1 day'
			from holdfast.idempotency where key = 'k2'`)
		b.charge(w, r)
	}, Route{Operation: "sell"})
	b.is(b.send(beside, sent{key: "k3"}), 409, CodeInProgress)
	b.kept(2, 2, 3)
}

func TestARequestWithoutAKeyRunsUnderNoLease(t *testing.T) {
	b := openTill(t)
	h := b.sell(b.guard(), Route{Lease: aLease, Optional: true})
	b.is(b.send(h, sent{}), 201, "")
	b.is(b.send(h, sent{}), 201, "")
	b.kept(2, 2, 0)
	if got := b.results(); !slices.Equal(got, []Result{Unguarded, Unguarded}) {
		t.Errorf("told %v", got)
	}
}
