package webhook

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/webhook/sign"
)

// What a sender that is not the provider may send, and what an operator may write, that nobody thought of.

// W12.
func TestHostile_ATopicThatTheInboxWouldRefuseIsRefusedAtTheStart(t *testing.T) {
	b := setup(t)
	for _, topic := range []string{".", ".."} {
		if _, err := New(b.in, "shop", must(Standard(macSecret)), Config{Topic: topic}); err == nil || !strings.Contains(err.Error(), "topic is") {
			t.Errorf("%q: got %v: every delivery would be told to come again, for ever", topic, err)
		}
	}
}

// W1.
func TestHostile_ARequestThatNoServerHasReadIsRefusedAndNotAPanic(t *testing.T) {
	b := setup(t)
	h, err := New(b.in, "shop", must(Standard(macSecret)), Config{})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil) // its Body is nil
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusUnauthorized {
		t.Errorf("got %d", w.Code)
	}
}

// W13.
func TestHostile_WhatIsSignedIsTakenInWhateverItsBytesAre(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	s := b.shop(func(c *Config) {
		c.TypeFunc = func(Delivery, []byte) string { return "order.placed" }
		c.Headers = []string{"X-Odd"}
	})
	bodies := map[string]string{"nothing": "", "a NUL": "a\x00b", "no UTF-8": "\xff\xfe\x00", "half a pair": `{"type":"\ud800"}`, "deep": strings.Repeat("[", 100_000), "a mebibyte": strings.Repeat("x", 1<<20)}
	n := 0
	for name, body := range bodies {
		n++
		h, err := sign.Standard(fmt.Sprint("msg_", n), now, []byte(body), macSecret)
		if err != nil {
			t.Fatal(err)
		}
		h.Set("X-Odd", "caf\xe9")
		if r := b.post(s, h, body); r.status != 200 {
			t.Errorf("%s: got %d", name, r.status)
		}
		if kept := b.count("select count(*) from effect where id = $1 and body = $2", fmt.Sprint("msg_", n), []byte(body)); kept != 1 {
			t.Errorf("%s: %d effects have its bytes", name, kept)
		}
	}
}

// W3, W4.
func TestHostile_HeadersThatAreAlmostRightAreRefused(t *testing.T) {
	v := must(Standard(macSecret))
	body := []byte(`{"type":"a"}`)
	good, err := sign.Standard("msg_1", now, body, macSecret)
	if err != nil {
		t.Fatal(err)
	}
	signature := good.Get("Webhook-Signature")
	at := fmt.Sprint(now.Unix())
	for name, change := range map[string]func(h http.Header){
		"an id more":             func(h http.Header) { h.Add("Webhook-Id", "msg_1") },
		"a time more":            func(h http.Header) { h.Add("Webhook-Timestamp", at) },
		"a signature line more":  func(h http.Header) { h.Add("Webhook-Signature", signature) },
		"a sign before the time": func(h http.Header) { h.Set("Webhook-Timestamp", "+"+at) },
		"a zero before the time": func(h http.Header) { h.Set("Webhook-Timestamp", "0"+at) },
		"a fraction":             func(h http.Header) { h.Set("Webhook-Timestamp", at+".0") },
		"other digits": func(h http.Header) {
			h.Set("Webhook-Timestamp", strings.Map(func(r rune) rune { return r - '0' + '٠' }, at))
		},
		"a time of many digits":      func(h http.Header) { h.Set("Webhook-Timestamp", strings.Repeat("9", 4000)) },
		"an id under the other name": func(h http.Header) { h.Set("Svix-Id", h.Get("Webhook-Id")); h.Del("Webhook-Id") },
		"an id that is empty":        func(h http.Header) { h.Set("Webhook-Id", "") },
		"a version that is none":     func(h http.Header) { h.Set("Webhook-Signature", strings.Replace(signature, "v1,", "v1a,", 1)) },
		"no version":                 func(h http.Header) { h.Set("Webhook-Signature", strings.TrimPrefix(signature, "v1,")) },
		"a signature that is cut":    func(h http.Header) { h.Set("Webhook-Signature", signature[:len(signature)-4]) },
		"an empty signature":         func(h http.Header) { h.Set("Webhook-Signature", "v1,") },
		"a signature of 5 KiB":       func(h http.Header) { h.Set("Webhook-Signature", signature+strings.Repeat(" v0,x", 1000)) },
		"a v1a signature under an HMAC key": func(h http.Header) {
			h.Set("Webhook-Signature", "v1a,"+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0}, 64)))
		},
	} {
		h := good.Clone()
		change(h)
		if d, err := v.Verify(h, body, now); err == nil || d.ID != "" {
			t.Errorf("%s: it is accepted, as %+v", name, d)
		}
	}
	if _, err := v.Verify(good, body, now); err != nil {
		t.Error(err)
	}
	// What is added behind a good signature takes nothing from it.
	h := good.Clone()
	h.Set("Webhook-Signature", "v9,x  v1,!!! "+signature+" v1a,x")
	if _, err := v.Verify(h, body, now); err != nil {
		t.Error(err)
	}
}

// A sender that is turned away at once must not find the turn taken by those that wait.
// W14.
func TestHostile_WaitingDeliveriesGiveUpWhenTheirTimeIsOver(t *testing.T) {
	b := setup(t, func(c *inbox.Config) { c.Timeout = time.Minute })
	s := b.shop(func(c *Config) { c.Workers, c.Wait = 1, -1 })
	open := b.gate("slow")
	h, body := order("slow")
	first := make(chan reply, 1)
	go func() { first <- b.post(s, h, body) }()
	<-b.begun
	for i := range 5 {
		h, body := order(fmt.Sprint("next", i))
		b.want(503, s, h, body)
	}
	open()
	if r := <-first; r.status != 200 {
		t.Errorf("the first got %d", r.status)
	}
	wait.Until(b, "the turn is free", func() bool {
		h, body := order("next0")
		return b.post(s, h, body).status == 200
	})
	if n := b.effects(); n != 2 {
		t.Errorf("%d effects", n)
	}
}

// An id of one tenant's account would hide the same id of another's.
func TestHostile_TwoEndpointsOfOneInboxDoNotShareASource(t *testing.T) {
	b := setup(t)
	other := b.inbox()
	endpoint := func(in *inbox.Inbox, source string, shared bool) error {
		_, err := New(in, source, must(Standard(macSecret)), Config{SharedSource: shared})
		return err
	}
	for i, c := range []struct {
		in     *inbox.Inbox
		source string
		shared bool
		fails  bool
	}{
		{b.in, "tenant-a", false, false}, {b.in, "tenant-a", false, true}, {b.in, "tenant-b", false, false}, {b.in, "tenant-a", true, true},
		{b.in, "one-account", true, false}, {b.in, "one-account", true, false}, {b.in, "one-account", false, true}, {other, "tenant-a", false, false},
	} {
		if err := endpoint(c.in, c.source, c.shared); (err != nil) != c.fails || err != nil && !strings.Contains(err.Error(), "set shared source") {
			t.Errorf("%d, %s: %v", i, c.source, err)
		}
	}
}
