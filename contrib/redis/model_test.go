package redisstore

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// The properties of this package have the seed of the run.
var _ = seed.Properties()

// model is what a Store should make of one key, written without Redis.
type model struct {
	state       string // "", claimed, released, done
	runOut      bool   // of claimed
	fingerprint string
	fence       int64
	attempt     int
	body        string
}

// claim returns what a claim gets: mine, busy or done.
func (w *model) claim(fingerprint string) string {
	switch {
	case w.state == "":
		w.attempt = 0
	case w.state == "done":
		return "done"
	case w.fingerprint != fingerprint, w.state == "claimed" && !w.runOut:
		return "busy"
	}
	w.state, w.runOut, w.fingerprint = "claimed", false, fingerprint
	w.attempt++
	return "mine"
}

func (w *model) renew(fence int64) bool {
	mine := w.state == "claimed" && fence == w.fence
	if mine {
		w.runOut = false
	}
	return mine
}

func (w *model) finish(fence int64, body string) bool {
	if fence != w.fence || w.state != "claimed" && w.state != "done" {
		return false
	}
	if w.state == "claimed" {
		w.state, w.body = "done", body
	}
	return true
}

func (w *model) release(fence int64) {
	if w.state == "claimed" && fence == w.fence {
		w.state = "released"
	}
}

func TestModel_ARedisAgreesWithItsTwinWhateverIsDoneInWhichOrder(t *testing.T) {
	b := setup(t)
	histories := 0
	rapid.Check(t, func(r *rapid.T) {
		histories++
		ctx, k, w := t.Context(), idempotency.StoreKey{Key: fmt.Sprint(histories)}, &model{}
		fences := []int64{0}
		agree := func(what string, got, want any, err error) {
			if err != nil || got != want {
				r.Fatalf("%s is %v, %v, want %v", what, got, err, want)
			}
		}
		for range rapid.IntRange(1, 20).Draw(r, "steps") {
			fence := rapid.SampledFrom(fences).Draw(r, "fence")
			switch rapid.SampledFrom([]string{"claim", "claim", "renew", "finish", "release", "run out", "expire"}).Draw(r, "step") {
			case "claim":
				fingerprint := rapid.SampledFrom([]string{"a", "b"}).Draw(r, "fingerprint")
				c, err := b.store.Claim(ctx, k, []byte(fingerprint), long, day)
				got, want := "busy", w.claim(fingerprint)
				switch {
				case c.Mine:
					got = "mine"
					if c.Fence <= w.fence || c.Attempt != w.attempt {
						r.Fatalf("claimed %+v after fence %d, want attempt %d", c, w.fence, w.attempt)
					}
					w.fence = c.Fence
					fences = append(fences, c.Fence)
				case c.Answer != nil:
					got = "done"
					agree("the answer", string(c.Answer.Body), w.body, nil)
					fallthrough
				default:
					agree("the holder", string(c.Fingerprint), w.fingerprint, nil)
				}
				agree("a claim", got, want, err)
			case "renew":
				got, err := b.store.Renew(ctx, k, fence, long)
				agree("a renewal", got, w.renew(fence), err)
			case "finish":
				body := rapid.SampledFrom([]string{"", "x", "y"}).Draw(r, "body")
				_, got, err := b.store.Finish(ctx, k, fence, answerOf(body), day)
				agree("a finish", got, w.finish(fence, body), err)
			case "release":
				w.release(fence)
				agree("a release", b.store.Release(ctx, k, fence), nil, nil)
			case "run out":
				if w.state == "claimed" {
					w.runOut = true
					b.runOut(k)
				}
			case "expire":
				w.state, w.runOut = "", false
				b.client.Del(ctx, nameOf(DefaultPrefix, k))
			}
		}
	})
}
