package main

import (
	"context"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestStatusNames_StatusNoticesTwoRelaysOfOneName(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	db := installed(t)
	pgtest.Exec(t, db.Pool, "update holdfast.lane set owner = 'twin', lease_until = now() + interval '1 hour'")
	wantStatus(t, 0, "nothing needs a person", "status", "--pause", "1h") // no relay runs
	pgtest.Exec(t, db.Pool, "insert into holdfast.relay (name, seen_until) values ('twin', now() + interval '1 hour')")
	wantStatus(t, 0, "nothing needs a person", "status")

	ctx, stop := context.WithCancel(t.Context())
	claimed := make(chan struct{})
	go func() { // Each takes the lanes from the other.
		defer close(claimed)
		for ctx.Err() == nil {
			_, _ = db.Exec(ctx, "update holdfast.lane set epoch = epoch + 1 where lane < 3")
		}
	}()
	var out string
	wait.Until(t, "status says it, once lanes were claimed between its looks", func() bool {
		var status int
		status, out, _ = call(t, "status")
		return status == 1 && strings.Contains(out, "relay twin has claimed")
	})
	if !strings.Contains(out, "two relays have that name") || !strings.Contains(out, "--name of its own") {
		t.Errorf("status says\n%s", out)
	}
	wantStatus(t, 0, "nothing needs a person", "status", "--pause", "0s")
	stop()
	<-claimed
}
