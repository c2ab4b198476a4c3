package waiting_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/waiting"
)

func (b bundle) pause(t testing.TB, p waiting.Pausable) {
	t.Helper()
	if changed, err := b.w.Pause(t.Context(), p, "ann", "a fix is on its way"); !changed || err != nil {
		t.Fatalf("pause %v: %t, %v", p, changed, err)
	}
}

func (b bundle) resume(t testing.TB, p waiting.Pausable) {
	t.Helper()
	if changed, err := b.w.Resume(t.Context(), p, "bob", "the fix is there"); !changed || err != nil {
		t.Fatalf("resume %v: %t, %v", p, changed, err)
	}
}

// heeded writes events of a paused topic until one of them is parked.
func (b bundle) heeded(t testing.TB, all *[]holdfast.Event) {
	t.Helper()
	wait.Until(t, "the relay heeds the pause", func() bool {
		e := of("orders", 3, len(*all), 1)[0]
		b.write(t, e)
		*all = append(*all, e)
		return wait.For(time.Second/2, func() bool { return b.parked(t, "orders") > 0 })
	})
}

// What shows that nothing of the topic is published is an event of another one, which is written later and passes.
func TestPause_APausedTopicIsParkedInOrderAndOthersPass(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	b, p := setup(t), &topics{}
	orders := waiting.Pausable{Topic: "orders"}
	stop := b.relays(t, p, relay.Config{})
	written := of("orders", 3, 0, 10)
	b.write(t, written...)
	wait.Until(t, "they are published", func() bool { return p.count() == 10 })
	b.pause(t, orders)
	b.heeded(t, &written)
	mails, before := 0, 0
	passes := func() {
		t.Helper()
		mails++
		b.write(t, of("mail", 1, mails, 1)...)
		wait.Until(t, "another topic passes", func() bool { return len(p.published("mail")["k0"]) == mails })
	}
	passes()
	before = p.count() - mails
	more := of("orders", 3, len(written), 300)
	b.write(t, more...)
	written = append(written, more...)
	passes()
	stop()
	b.relays(t, p, relay.Config{}) // A relay that starts heeds it too, and does not try what it finds parked.
	b.relays(t, p, relay.Config{})
	more = of("orders", 3, len(written), 30)
	b.write(t, more...)
	written = append(written, more...)
	wait.Until(t, "they are parked", func() bool { return b.parked(t, "orders") == int64(len(written)-before) })
	for range 3 {
		passes()
	}
	if n := p.count() - mails; n != before {
		t.Errorf("%d events of a paused topic were published", n-before)
	}
	b.resume(t, orders)
	more = of("orders", 3, len(written), 30) // While the others go on, they come after them.
	b.write(t, more...)
	written = append(written, more...)
	wait.Until(t, "all are published", func() bool { return p.count() == len(written)+mails })
	wantKeys(t, p.published("orders"), written...)
	wait.Until(t, "nothing is parked", func() bool { return b.parked(t, "orders") == 0 })
	b.write(t, of("orders", 3, len(written), 1)...)
	wait.Until(t, "the topic flows", func() bool { return p.count() == len(written)+mails+1 })
}

// The topic was missing before it was paused, and is when it is resumed.
func TestPause_APausedTopicThatIsMissingIsHeldWhenItIsResumed(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	b, p := setup(t), &topics{missing: []string{"orders"}}
	b.relays(t, p, relay.Config{})
	written := of("orders", 3, 0, 10)
	b.write(t, written...)
	wait.Until(t, "they are parked", func() bool { return b.parked(t, "orders") == 10 })
	b.pause(t, waiting.Pausable{Topic: "orders"})
	var mu sync.Mutex
	tries := 0
	p.onCall(func(events []holdfast.Event) { mu.Lock(); defer mu.Unlock(); tries += len(events) })
	wait.Until(t, "nothing is tried for five seconds: without a pause, one is every two", func() bool {
		mu.Lock()
		tries = 0
		mu.Unlock()
		return !wait.For(5*time.Second, func() bool { mu.Lock(); defer mu.Unlock(); return tries > 0 })
	})
	b.resume(t, waiting.Pausable{Topic: "orders"})
	wait.Until(t, "it is tried again", func() bool { mu.Lock(); defer mu.Unlock(); return tries > 0 })
	wait.Until(t, "it is held again", func() bool {
		return pgtest.Count(t, b.Pool, "select count(*) from holdfast.parked where why = 'topic' and errors <> '{}'") > 0
	})
	p.miss()
	wait.Until(t, "all are published", func() bool { return p.count() == len(written) })
	wantKeys(t, p.published("orders"), written...)
}

func TestPause_APauseIsKeptUntilItIsResumedAndSigned(t *testing.T) {
	t.Parallel()
	b := setup(t)
	key := waiting.Pausable{Consumer: "billing", Topic: "orders", Key: "k"}
	for _, p := range []waiting.Pausable{{Topic: "orders"}, {Consumer: "billing"}, key} {
		b.pause(t, p)
		if changed, err := b.w.Pause(t.Context(), p, "bob", "again"); changed || err != nil {
			t.Errorf("a second pause of %v: %t, %v", p, changed, err)
		}
	}
	all, err := b.w.Paused(t.Context())
	if err != nil || len(all) != 3 {
		t.Fatalf("%v, %v", all, err)
	}
	for i, want := range []waiting.Pausable{{Topic: "orders"}, {Consumer: "billing"}, key} {
		if got := all[i]; got.Pausable != want || got.By != "ann" || got.Reason != "a fix is on its way" || got.Login == "" || time.Since(got.At).Abs() > time.Hour {
			t.Errorf("%d is %+v, want %v", i, got, want)
		}
	}
	b.resume(t, key)
	if changed, err := b.w.Resume(t.Context(), key, "bob", ""); changed || err != nil {
		t.Errorf("a second resume: %t, %v", changed, err)
	}
	if all, err := b.w.Paused(t.Context()); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
	if n := pgtest.Count(t, b.Pool, `select count(*) from holdfast.pause_action where (action, by, reason) in (('pause', 'ann', 'a fix is on its way'), ('resume', 'bob', 'the fix is there')) and login = session_user`); n != 4 {
		t.Errorf("%d actions are kept, want 3 pauses and a resume", n)
	}
	for _, wrong := range []struct {
		p    waiting.Pausable
		by   string
		says string
	}{
		{waiting.Pausable{}, "ann", "neither topic nor consumer is set"},
		{waiting.Pausable{Key: "k", Topic: "orders"}, "ann", "key is set without consumer"},
		{waiting.Pausable{Consumer: "billing", Topic: "orders"}, "ann", "of topic and key one is set"},
		{waiting.Pausable{Topic: "or ders"}, "ann", "topic is \"or ders\""},
		{waiting.Pausable{Consumer: strings.Repeat("x", 256)}, "ann", "consumer has 256 bytes"},
		{waiting.Pausable{Topic: "orders"}, " ", "by is empty"},
	} {
		if _, err := b.w.Pause(t.Context(), wrong.p, wrong.by, ""); err == nil || !strings.Contains(err.Error(), wrong.says) {
			t.Errorf("%+v by %q: %v, want %q", wrong.p, wrong.by, err, wrong.says)
		}
	}
}

// handled are the ids of the events that a consumer has handled, in order.
type handled struct {
	mu  sync.Mutex
	ids []string
}

func (h *handled) handle(_ context.Context, _ pgx.Tx, e holdfast.Event) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ids = append(h.ids, e.ID)
	return nil
}

func (h *handled) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.ids, " ")
}

func (b bundle) consumer(t testing.TB, h *handled) *inbox.Inbox {
	t.Helper()
	in, err := inbox.New(b.Pool, inbox.Config{Consumer: "billing", PollMin: time.Millisecond, PollMax: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("order.placed", h.handle)
	running(t, in.Run)
	return in
}

func TestPause_APausedKeyWaitsAndOtherKeysGoOn(t *testing.T) {
	t.Parallel()
	b, h := setup(t), &handled{}
	key := waiting.Pausable{Consumer: "billing", Topic: "orders", Key: "k"}
	in := b.consumer(t, h)
	receive := func(id, key string, want inbox.Outcome) {
		t.Helper()
		if got, err := in.Receive(t.Context(), order(id, key)); got != want || err != nil {
			t.Fatalf("%s: %q, %v; want %q", id, got, err, want)
		}
	}
	receive("1", "k", inbox.Handled)
	wait.Until(t, "the node has said what it handles", func() bool { return pgtest.Count(t, b.Pool, "select count(*) from holdfast.consumer_type") == 1 })
	b.pause(t, key)
	receive("2", "k", inbox.Stored)
	receive("3", "k", inbox.Stored)
	receive("a", "other", inbox.Handled)
	if _, err := in.Store(t.Context(), order("4", "k")); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Store(t.Context(), order("b", "other")); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "a stored event of another key is handled", func() bool {
		return strings.HasSuffix(h.String(), "b") && pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored where key = 'other'") == 0
	})
	if got, err := b.w.List(t.Context(), waiting.Filter{Consumer: "billing", Heads: true}); err != nil || len(got) != 1 || got[0].Why != waiting.Paused {
		t.Errorf("the list has %+v, %v", got, err)
	}
	if got := h.String(); got != "1 a b" {
		t.Errorf("handled: %s", got)
	}
	b.resume(t, key)
	wait.Until(t, "the key goes on", func() bool { return h.String() == "1 a b 2 3 4" })
	wait.Until(t, "nothing is stored", func() bool { return pgtest.Count(t, b.Pool, "select count(*) from holdfast.stored") == 0 })
	receive("5", "k", inbox.Handled)
}

func TestPause_ParkedEventsAreRetriedAtOnce(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	b, p := setup(t), &topics{missing: []string{"gone"}}
	b.relays(t, p, relay.Config{})
	gone := of("gone", 3, 0, 10)
	b.write(t, gone...)
	wait.Until(t, "they are parked", func() bool { return b.parked(t, "gone") == 10 })
	pgtest.Exec(t, b.Pool, `insert into holdfast.parked (lane, topic, key, place, why, next_at, id, source, type, time, payload)
		select holdfast.lane_of('r', '', 8), 'refused', 'r', nextval('holdfast.parked_place'), case n when 1 then 'record' else 'follows' end,
		       case n when 1 then now() + interval '1 day' else 'infinity' end, n, 's', 't', now(), convert_to('refused ' || n, 'UTF8') from generate_series(1, 2) n`)
	if n, err := b.w.Retry(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "refused"}, waiting.Options{DryRun: true}); n != 1 || err != nil {
		t.Errorf("a dry run: %d, %v", n, err)
	}
	if n, err := b.w.Retry(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "refused"}, ann); n != 1 || err != nil {
		t.Errorf("%d are due, %v", n, err)
	}
	if n, err := b.w.Retry(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann); n != 0 || err != nil {
		t.Errorf("%d are due, %v", n, err)
	}
	p.miss()
	wait.Until(t, "all are published", func() bool { return p.count() == 12 })
	wantKeys(t, p.published("gone"), gone...)
	if got := p.published("refused")["r"]; fmt.Sprint(got) != "[refused 1 refused 2]" {
		t.Errorf("of the key there is %q", got)
	}
	if n := pgtest.Count(t, b.Pool, "select count(*) from holdfast.pause_action where action = 'retry' and by = 'ann' and topic in ('gone', 'refused')"); n != 2 {
		t.Errorf("%d actions are kept", n)
	}
	wait.Until(t, "nothing is parked", func() bool { return b.parked(t, "gone") == 0 })
	if _, err := b.w.Retry(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann); !errors.Is(err, waiting.ErrNotFound) {
		t.Errorf("nothing is parked: %v", err)
	}
	b.pause(t, waiting.Pausable{Topic: "gone"})
	if _, err := b.w.Retry(t.Context(), waiting.Filter{Origin: dlq.OriginRelay, Topic: "gone"}, ann); !errors.Is(err, waiting.ErrPaused) {
		t.Errorf("the topic is paused: %v", err)
	}
}
