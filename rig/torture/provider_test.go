//go:build linux

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

func TestProvider_ACallFailsAsLongAsItIsAway(t *testing.T) {
	t.Parallel()
	p, err := startProvider()
	if err != nil {
		t.Fatal(err)
	}
	defer p.stop()
	n := &node{part: part{Provider: p.url, Actor: "consumer/1"}}
	call := func() error { return n.post(t.Context(), "", "1", asked{}) }
	for how, asks := range map[string]time.Duration{refuses: 0, busy: providerAsks, noAnswer: 0} {
		if err := call(); err != nil {
			t.Errorf("it is there: %v", err)
		}
		p.leave(how, time.Now())
		err := call()
		if after, _ := retry.AfterOf(err); err == nil || !strings.HasPrefix(err.Error(), providerSays) || !retry.Retryable(err) || after != asks {
			t.Errorf("%s: %v, asks for %s", how, err, after)
		}
		if late := errors.Is(err, context.DeadlineExceeded); late != (how == noAnswer) {
			t.Errorf("%s: %v", how, err)
		}
		if calls, tries, most := p.seen(); calls != 1 || tries != 1 || most != 1 {
			t.Errorf("%s: %d calls, %d tries, %d at once", how, calls, tries, most)
		}
		p.come()
	}
	wait.Until(t, "the provider knows that callers have hung up", func() bool { return p.caller() == "" })
}

func TestProvider_CallsAtOnceAreTriesOnceAllNodesKnow(t *testing.T) {
	t.Parallel()
	p := &provider{running: map[string]int{}}
	p.leave(refuses, time.Now().Add(time.Hour))
	_, left := p.enter("consumer/0")
	if calls, tries, _ := p.seen(); calls != 1 || tries != 0 || p.caller() != "" {
		t.Errorf("before: %d calls, %d tries, of %q", calls, tries, p.caller())
	}
	left()
	p.leave(refuses, time.Now())
	_, first := p.enter("consumer/0")
	_, second := p.enter("consumer/0")
	first()
	if calls, tries, most := p.seen(); calls != 2 || tries != 2 || most != 2 || p.caller() != "consumer/0" {
		t.Errorf("after: %d calls, %d tries, %d at once, of %q", calls, tries, most, p.caller())
	}
	if second(); p.caller() != "" {
		t.Errorf("%q still calls", p.caller())
	}
}
