package redisstore

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestStore_OfFiftyClaimsAtOnceOneIsMine(t *testing.T) {
	b := setup(t)
	stores := make([]*Store, 5) // as many processes
	for i := range stores {
		stores[i] = storeOn(t, b.server.Client())
	}
	var mine, busy atomic.Int32
	var all sync.WaitGroup
	begin := make(chan struct{})
	for i := range 50 {
		all.Go(func() {
			<-begin
			c, err := stores[i%len(stores)].Claim(t.Context(), one, asked, long, day)
			switch {
			case err != nil:
				t.Error(err)
			case c.Mine:
				mine.Add(1)
			case string(c.Fingerprint) == string(asked) && c.Answer == nil:
				busy.Add(1)
			}
		})
	}
	close(begin)
	all.Wait()
	if mine.Load() != 1 || busy.Load() != 49 {
		t.Errorf("%d are mine and %d in use, want 1 and 49", mine.Load(), busy.Load())
	}
}

func TestStore_AClaimFinishedIsAnsweredByteForByte(t *testing.T) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	b := setup(t)
	for name, a := range map[string]store.Answer{
		"an ordinary one":        answerOf("{\"id\": 1}\n"),
		"every byte":             answerOf(string(every)),
		"a mebibyte":             answerOf(strings.Repeat(string(every), 4096)),
		"no body":                {Status: 204, Header: http.Header{}, Body: []byte{}, BodyHash: []byte{}},
		"an omitted body":        {Status: 200, Header: http.Header{}, Omitted: true, BodyHash: []byte("x"), ResultRef: "r\x00\xff"},
		"every byte in a header": {Status: 200, Header: http.Header{"Link": {string(every), "", "b"}, "Content-Type": {}}, Body: []byte("x"), BodyHash: []byte{0}},
	} {
		k := store.Key{Operation: "POST /charges", Key: name}
		c := b.mine(k, asked)
		if c.Attempt != 1 || c.Expired {
			t.Errorf("claimed %+v, want the first attempt", c)
		}
		b.is(true)(b.finish(k, c.Fence, a))
		got := b.answered(k, a)
		if ends := b.client.PExpireTime(t.Context(), nameOf(defaultPrefix, k)).Val(); (time.Duration(got.ExpiresAt.UnixMicro())*time.Microsecond - ends).Abs() > time.Millisecond {
			t.Errorf("%s expires at %s, and the key at %s", name, got.ExpiresAt, ends)
		}
		if left := time.Until(got.ExpiresAt); left > day+time.Minute || left < day-time.Minute {
			t.Errorf("%s expires in %s, want a day", name, left)
		}
	}
}

func TestStore_AnAnswerComesWithTheFingerprintThatHasIt(t *testing.T) {
	b := setup(t)
	b.is(true)(b.finish(one, b.mine(one, asked).Fence, answerOf("x")))
	if c := b.claim(one, other); string(c.Fingerprint) != string(asked) || c.Mine || c.Answer == nil {
		t.Errorf("another request's claim is %+v", c)
	}
}

func TestStore_AKeyInUseComesWithTheFingerprintThatHasIt(t *testing.T) {
	b := setup(t)
	b.mine(one, asked)
	b.unchanged(one, func() {
		b.busy(one, asked, asked)
		b.busy(one, other, asked)
	})
}

func TestStore_ALeaseThatRanOutIsTakenOverUnderAHigherFence(t *testing.T) {
	b := setup(t)
	first, err := b.store.Claim(t.Context(), one, asked, 50*time.Millisecond, day)
	if err != nil || !first.Mine {
		t.Fatalf("claimed %+v, %v", first, err)
	}
	var second store.Claimed
	wait.Until(t, "the lease runs out", func() bool {
		second = b.claim(one, asked)
		return second.Mine
	})
	if second.Fence <= first.Fence || second.Attempt != 2 {
		t.Errorf("taken over as %+v after %+v", second, first)
	}
	if took := time.Duration(second.Fence-first.Fence) * time.Microsecond; took < 50*time.Millisecond {
		t.Errorf("taken over after %s, want the lease of 50ms to have run out", took)
	}
	b.runOut(one)
	b.busy(one, other, asked) // another request does not take it over
	if third := b.mine(one, asked); third.Attempt != 3 || third.Fence <= second.Fence {
		t.Errorf("taken over as %+v after %+v", third, second)
	}
}

// late does under a fence all that its owner might: it has come too late, and nothing changes.
func (b *bundle) late(k store.Key, fence int64) {
	b.Helper()
	b.unchanged(k, func() {
		b.is(false)(b.store.Renew(b.Context(), k, fence, long))
		b.is(false)(b.finish(k, fence, answerOf("late")))
		if err := b.store.Release(b.Context(), k, fence); err != nil {
			b.Fatal(err)
		}
	})
}

func TestStore_UnderAnOldFenceNothingChanges(t *testing.T) {
	b := setup(t)
	old := b.mine(one, asked).Fence
	b.runOut(one)
	now := b.mine(one, asked).Fence
	for _, fence := range []int64{old, 0, -1, now + 1} {
		b.late(one, fence)
	}
	b.is(true)(b.finish(one, now, answerOf("in time")))
	b.late(one, old)
	b.answered(one, answerOf("in time"))
}

func TestStore_WhatIsFinishedStaysAsItIsUnderItsOwnFence(t *testing.T) {
	b := setup(t)
	fence := b.mine(one, asked).Fence
	b.is(true)(b.finish(one, fence, answerOf("once")))
	b.unchanged(one, func() {
		b.is(true)(b.finish(one, fence, answerOf("twice")))
		b.is(false)(b.store.Renew(t.Context(), one, fence, long))
		if err := b.store.Release(t.Context(), one, fence); err != nil {
			t.Fatal(err)
		}
	})
	b.answered(one, answerOf("once"))
}

func TestStore_ALeaseThatRanOutIsStillItsOwnersWhileNobodyElseClaims(t *testing.T) {
	b := setup(t)
	fence := b.mine(one, asked).Fence
	b.runOut(one)
	b.is(true)(b.store.Renew(t.Context(), one, fence, long))
	b.busy(one, asked, asked)
	b.runOut(one)
	b.is(true)(b.finish(one, fence, answerOf("x")))
	b.answered(one, answerOf("x"))
}

func TestStore_ARenewedLeaseKeepsAKeyThatWouldHaveExpired(t *testing.T) {
	b := setup(t)
	c, err := b.store.Claim(t.Context(), one, asked, time.Minute, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	b.is(true)(b.store.Renew(t.Context(), one, c.Fence, time.Hour))
	if left := b.client.PTTL(t.Context(), nameOf(defaultPrefix, one)).Val(); left < 59*time.Minute {
		t.Errorf("the key ends in %s, before its lease", left)
	}
	b.unchangedExpiry(one, func() { b.is(true)(b.store.Renew(t.Context(), one, c.Fence, time.Second)) })
}

// unchangedExpiry checks that f leaves alone when a key ends.
func (b *bundle) unchangedExpiry(k store.Key, f func()) {
	b.Helper()
	before := b.client.PExpireTime(b.Context(), nameOf(defaultPrefix, k)).Val()
	if f(); b.client.PExpireTime(b.Context(), nameOf(defaultPrefix, k)).Val() != before {
		b.Fatal("the key ends at another time")
	}
}

func TestStore_ALeaseLongerThanTheTTLKeepsItsKey(t *testing.T) {
	b := setup(t)
	if _, err := b.store.Claim(t.Context(), one, asked, time.Hour, time.Second); err != nil {
		t.Fatal(err)
	}
	if left := b.client.PTTL(t.Context(), nameOf(defaultPrefix, one)).Val(); left < 59*time.Minute {
		t.Errorf("the key ends in %s, before its lease", left)
	}
}

func TestStore_AReleasedKeyIsFreeForItsOwnRequestOnly(t *testing.T) {
	b := setup(t)
	first := b.mine(one, asked)
	if err := b.store.Release(t.Context(), one, first.Fence); err != nil {
		t.Fatal(err)
	}
	b.unchanged(one, func() {
		b.busy(one, other, asked)
		b.is(false)(b.store.Renew(t.Context(), one, first.Fence, long))
		b.is(false)(b.finish(one, first.Fence, answerOf("late")))
	})
	if second := b.mine(one, asked); second.Fence <= first.Fence || second.Attempt != 2 {
		t.Errorf("claimed %+v after %+v", second, first)
	}
}

func TestStore_AfterItsTimeAKeyIsNewForAnyRequestAndItsFencesStillRise(t *testing.T) {
	b := setup(t)
	first := b.mine(one, asked)
	if until, mine, err := b.store.Finish(t.Context(), one, first.Fence, answerOf("x"), time.Millisecond); !mine || err != nil || time.Until(until).Abs() > time.Minute {
		t.Fatalf("finished until %v: %t, %v", until, mine, err)
	}
	var second store.Claimed
	wait.Until(t, "the answer expires", func() bool {
		second = b.claim(one, other)
		return second.Mine
	})
	if second.Fence <= first.Fence || second.Attempt != 1 {
		t.Errorf("claimed %+v after %+v", second, first)
	}
	b.is(false)(b.finish(one, first.Fence, answerOf("late")))
	b.busy(one, other, other)
}

func TestStore_AFenceRisesAlsoWhereTheClockHasGoneBack(t *testing.T) {
	b := setup(t)
	b.mine(one, asked)
	const ahead = 4_000_000_000_000_000 // the year 2096
	b.set(one, "fence", "4000000000000000")
	b.runOut(one)
	if c := b.mine(one, asked); c.Fence != ahead+1 {
		t.Errorf("the fence is %d, want %d", c.Fence, int64(ahead)+1)
	}
	b.is(true)(b.finish(one, ahead+1, answerOf("x")))
}

func TestStore_WhatCannotBeReadIsNeitherRunNorReplayed(t *testing.T) {
	b := setup(t)
	fence := b.mine(one, asked).Fence
	b.is(true)(b.finish(one, fence, answerOf("x")))
	done := b.kept(one)
	k := store.Key{Key: "broken"}
	name := nameOf(defaultPrefix, k)
	for what, change := range map[string]func(){
		"something else than a hash": func() { b.client.Set(t.Context(), name, "x", 0) },
		"a hash of somebody else's":  func() { b.client.HSet(t.Context(), name, "a", "b") },
		"a later version":            func() { b.client.HSet(t.Context(), name, done); b.set(k, "version", "2") },
		"an unknown state":           func() { b.client.HSet(t.Context(), name, done); b.set(k, "state", "paused") },
		"a fence that is none":       func() { b.client.HSet(t.Context(), name, done); b.set(k, "fence", "x") },
		"no fingerprint":             func() { b.client.HSet(t.Context(), name, done); b.client.HDel(t.Context(), name, "fingerprint") },
		"no body":                    func() { b.client.HSet(t.Context(), name, done); b.client.HDel(t.Context(), name, "body") },
		"no result":                  func() { b.client.HSet(t.Context(), name, done); b.client.HDel(t.Context(), name, "result_ref") },
		"a status that is none":      func() { b.client.HSet(t.Context(), name, done); b.set(k, "status", "OK") },
		"an expiry that is none":     func() { b.client.HSet(t.Context(), name, done); b.set(k, "expires_at", "never") },
		"headers that are none":      func() { b.client.HSet(t.Context(), name, done); b.set(k, "headers", "{") },
		"omitted that is neither":    func() { b.client.HSet(t.Context(), name, done); b.set(k, "omitted", "perhaps") },
		"a claim without an end":     func() { b.client.HSet(t.Context(), name, done); b.set(k, "state", "claimed") },
		"a claim without a number": func() {
			b.client.HSet(t.Context(), name, done)
			b.set(k, "state", "released")
			b.set(k, "attempt", "x")
		},
	} {
		b.client.Del(t.Context(), name)
		change()
		before := b.client.Dump(t.Context(), name).Val()
		c, err := b.store.Claim(t.Context(), k, asked, long, day)
		if !errors.Is(err, store.ErrUnusable) || c.Mine || c.Answer != nil {
			t.Errorf("%s: claimed %+v, %v", what, c, err)
		}
		if b.client.Dump(t.Context(), name).Val() != before {
			t.Errorf("%s: it was changed", what)
		}
	}
	b.client.Set(t.Context(), name, "x", 0)
	_, renewing := b.store.Renew(t.Context(), k, 1, long)
	_, finishing := b.finish(k, 1, answerOf("x"))
	for _, err := range []error{renewing, finishing, b.store.Release(t.Context(), k, 1)} {
		if !errors.Is(err, store.ErrUnusable) {
			t.Errorf("err = %v", err)
		}
	}
}

func TestStore_KeysOfAnyBytesAreToldApart(t *testing.T) {
	b := setup(t)
	var keys []store.Key
	for c := range 256 {
		keys = append(keys, store.Key{Operation: "POST /charges", Key: string([]byte{byte(c)})},
			store.Key{Operation: string([]byte{byte(c)}), Key: "k"}, store.Key{Scope: string([]byte{byte(c)}), Key: "k"})
	}
	keys = append(keys, store.Key{}, store.Key{Scope: "ab", Operation: "c", Key: "d"}, store.Key{Scope: "a", Operation: "bc", Key: "d"},
		store.Key{Scope: "a", Operation: "b", Key: "cd"}, store.Key{Operation: strings.Repeat("x", 300)}, store.Key{Operation: strings.Repeat("x", 301)})
	for _, k := range keys {
		b.mine(k, asked)
	}
	for _, k := range keys {
		b.busy(k, asked, asked)
	}
}

func TestStore_ANameShowsTheOperationAndNothingThatMeansSomething(t *testing.T) {
	t.Parallel()
	got := nameOf(defaultPrefix, store.Key{Scope: "principal:a", Operation: "POST /charges/{id}/refunds:*\n", Key: "k1"})
	if head, tail := got[:len(got)-64], got[len(got)-64:]; head != "idempotency:POST_/charges/_id_/refunds___:" || strings.Trim(tail, "0123456789abcdef") != "" {
		t.Errorf("the name is %q", got)
	}
	for _, operation := range []string{"", "{}", "ü\xff", strings.Repeat("/{x}", 500)} {
		name := nameOf(defaultPrefix, store.Key{Operation: operation})
		if strings.ContainsAny(name, "{}*?[]\n\x00") || len(name) > len(defaultPrefix)+shownOperation+1+64 {
			t.Errorf("the name of %q is %q", operation, name)
		}
	}
	// What is in Redis was named by an older version: a name never changes.
	const golden = "idempotency:POST_/charges:c980b6f6c7acd3abca87baa9bc0b5609ca87cf2156148fde7c066b4bb9bf2604"
	if got := nameOf(defaultPrefix, one); got != golden {
		t.Errorf("the name is %q, want %q", got, golden)
	}
}

func TestStore_SeveralServicesShareARedisByPrefixes(t *testing.T) {
	b := setup(t)
	shop, err := New(b.client, Config{Prefix: "shop:"})
	if err != nil {
		t.Fatal(err)
	}
	b.mine(one, asked)
	if c, err := shop.Claim(t.Context(), one, other, long, day); err != nil || !c.Mine {
		t.Errorf("claimed %+v, %v", c, err)
	}
	names, err := b.client.Keys(t.Context(), "shop:*").Result()
	if diff := cmp.Diff([]string{nameOf("shop:", one)}, names); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

func TestStore_AnAnswerThatIsStoredAgainKeepsItsTime(t *testing.T) {
	b := setup(t)
	first := b.mine(one, asked)
	until, mine, err := b.store.Finish(t.Context(), one, first.Fence, answerOf("x"), time.Hour)
	if left := time.Until(until); !mine || err != nil || left < 50*time.Minute || left > 70*time.Minute {
		t.Fatalf("finished until %v: %t, %v", until, mine, err)
	}
	again, mine, err := b.store.Finish(t.Context(), one, first.Fence, answerOf("y"), 2*time.Hour)
	if !mine || err != nil || !again.Equal(until) {
		t.Errorf("finished again until %v, not %v: %t, %v", again, until, mine, err)
	}
	if c := b.claim(one, asked); c.Answer == nil || !c.ExpiresAt.Equal(until) || string(c.Answer.Body) != "x" {
		t.Errorf("claimed %+v", c)
	}
}
