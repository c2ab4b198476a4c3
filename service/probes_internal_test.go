package service

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/probe"
)

func TestProbes_WhatMakesAProgramReady(t *testing.T) {
	t.Parallel()
	away := map[string]probe.Health{"relay": {Live: true}, "consumer billing": {Live: true, Ready: true}}
	all := map[string]probe.Health{"relay": {Live: true, Ready: true}}
	for _, c := range []struct {
		name                      string
		parts                     map[string]probe.Health
		serves, stopping, answers bool
		want                      bool
	}{
		{"it serves, and the broker is away", away, true, false, true, true},
		{"it does not serve, and the broker is away", away, false, false, true, false},
		{"it does not serve, and all is well", all, false, false, true, true},
		{"its database is away", all, true, false, false, false},
		{"it does not serve, and its database is away", all, false, false, false, false},
		{"it stops", all, true, true, true, false},
		{"it has no parts that have a health", nil, true, false, true, true},
	} {
		if v := judgeReady(c.parts, c.serves, c.stopping, c.answers); v.Well != c.want {
			t.Errorf("%s: %+v", c.name, v)
		}
	}
	if judgeLive(map[string]probe.Health{"relay": {}}).Well || !judgeLive(away).Well {
		t.Error("a part that is not live, or one that is not ready")
	}
}
