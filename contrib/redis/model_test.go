package redisstore

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/idempotency/store"
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
func (m *model) claim(fingerprint string) string {
	switch {
	case m.state == "":
		m.attempt = 0
	case m.state == "done":
		return "done"
	case m.fingerprint != fingerprint, m.state == "claimed" && !m.runOut:
		return "busy"
	}
	m.state, m.runOut, m.fingerprint = "claimed", false, fingerprint
	m.attempt++
	return "mine"
}

func (m *model) renew(fence int64) bool {
	mine := m.state == "claimed" && fence == m.fence
	if mine {
		m.runOut = false
	}
	return mine
}

func (m *model) finish(fence int64, body string) bool {
	if fence != m.fence || m.state != "claimed" && m.state != "done" {
		return false
	}
	if m.state == "claimed" {
		m.state, m.body = "done", body
	}
	return true
}

func (m *model) release(fence int64) {
	if m.state == "claimed" && fence == m.fence {
		m.state = "released"
	}
}

func TestModel_ARedisAgreesWithItsTwinWhateverIsDoneInWhichOrder(t *testing.T) {
	b := setup(t)
	histories := 0
	rapid.Check(t, func(r *rapid.T) {
		histories++
		ctx, k, w := t.Context(), store.Key{Key: fmt.Sprint(histories)}, &model{}
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
				b.client.Del(ctx, nameOf(defaultPrefix, k))
			}
		}
	})
}
