package idempotency

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// What becomes of a request whose key another one has in hand.

// R11.
func TestWait_OfManyAtOnceOneRunsAndAllGetItsAnswer(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	h := b.service(b.guard(), b.charge)
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[int]int{}
	for range 50 {
		wg.Go(func() {
			w := b.send(h, sent{key: "k"})
			mu.Lock()
			defer mu.Unlock()
			got[w.Code]++
			if w.Code == 409 && (w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), codeInProgress)) {
				t.Errorf("got 409 with %v %s", w.Header(), w.Body)
			}
		})
	}
	wg.Wait()
	if got[201]+got[409] != 50 || got[201] == 0 {
		t.Errorf("got %v", got)
	}
	first := b.send(h, sent{key: "k"})
	b.is(first, 201, "")
	b.kept(1, 1, 1)
	if n := b.runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

// slow is a handler that is held until it is let go.
func (b *bundle) slow() (h http.HandlerFunc, entered <-chan struct{}, letGo func()) {
	in, out := make(chan struct{}, 10), make(chan struct{})
	return func(w http.ResponseWriter, r *http.Request) {
		in <- struct{}{}
		<-out
		b.charge(w, r)
	}, in, sync.OnceFunc(func() { close(out) })
}

// waitsOf tells when a request of g waits for another one with its key.
func waitsOf(ctx context.Context, g *Guard) <-chan struct{} {
	waits := make(chan struct{})
	go func() {
		defer close(waits)
		for ctx.Err() == nil && g.waiters.waiting.Load() == 0 {
			time.Sleep(time.Millisecond) // sleep: nothing tells that a request waits
		}
	}()
	return waits
}

// R11.
func TestWait_ARepeatWhileTheFirstRunsWaitsOrIsAConflict(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	handler, entered, letGo := b.slow()
	defer letGo()
	g := b.guard()
	h := b.service(g, handler, Route{Operation: "charge"})
	waiting := b.service(g, handler, Route{Operation: "charge", Wait: time.Minute})
	async := b.service(g, handler, Route{Operation: "charge", StatusURL: func(r *http.Request, key string) string { return "/status/" + key }})
	first := make(chan *httptest.ResponseRecorder, 2)
	go func() { first <- b.send(h, sent{key: "k"}) }()
	<-entered
	w := b.send(h, sent{key: "k"})
	b.is(w, 409, codeInProgress)
	if w.Header().Get("Retry-After") != "1" {
		t.Errorf("got Retry-After %q", w.Header().Get("Retry-After"))
	}
	w = b.send(async, sent{key: "k"})
	b.is(w, 202, codeInProgress)
	if w.Header().Get("Location") != "/status/k" {
		t.Errorf("got location %q", w.Header().Get("Location"))
	}
	if w := b.send(waiting, sent{key: "k", header: http.Header{"X-Request-Timeout": {"0.1"}}}); w.Code != 409 && w.Code != 503 {
		t.Errorf("R45: got %d %s", w.Code, w.Body)
	}
	patient := b.guard()
	waits := waitsOf(t.Context(), patient)
	go func() {
		first <- b.send(b.service(patient, handler, Route{Operation: "charge", Wait: time.Minute}), sent{key: "k"})
	}()
	select {
	case <-waits:
	case w := <-first:
		t.Fatalf("it did not wait: it got %d %s", w.Code, w.Body)
	}
	letGo()
	b.same(<-first, <-first)
	b.kept(1, 1, 1)
}

// R11.
func TestWait_AWaitingRepeatRunsWhenTheFirstFails(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in, out := make(chan struct{}, 2), make(chan struct{})
	failed := false
	g := b.guard()
	waits := waitsOf(t.Context(), g)
	h := b.service(g, func(w http.ResponseWriter, r *http.Request) {
		if !failed {
			failed = true
			in <- struct{}{}
			<-out
			http.Error(w, "no", 500)
			return
		}
		b.charge(w, r)
	}, Route{Wait: time.Minute})
	first := make(chan int, 1)
	go func() { first <- b.send(h, sent{key: "k"}).Code }()
	<-in
	second := make(chan int, 1)
	go func() { second <- b.send(h, sent{key: "k"}).Code }()
	select {
	case <-waits:
	case code := <-second:
		t.Fatalf("it did not wait: it got %d", code)
	}
	close(out)
	if code := <-first; code != 500 {
		t.Errorf("the first got %d", code)
	}
	if code := <-second; code != 201 {
		t.Errorf("the second got %d", code)
	}
	b.kept(1, 1, 1)
}

// R11.
func TestWait_RepeatsThatWaitHoldNoConnection(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	handler, entered, letGo := b.slow()
	defer letGo()
	pool := b.pool(3)
	h := b.service(b.guardOn(pool), handler, Route{Wait: time.Minute})
	codes := make(chan int, 20)
	go func() { codes <- b.send(h, sent{key: "k"}).Code }()
	<-entered
	for range 19 {
		go func() { codes <- b.send(h, sent{key: "k"}).Code }()
	}
	other := b.service(b.guardOn(pool), b.charge)
	for i := range 5 { // While they wait, others find room.
		b.is(b.send(other, sent{key: fmt.Sprint("other-", i)}), 201, "")
	}
	letGo()
	for range 20 {
		if code := <-codes; code != 201 {
			t.Errorf("got %d", code)
		}
	}
	b.kept(6, 6, 6)
}
