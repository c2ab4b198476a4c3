package inbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/internal/test/cable"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// A node vanishes in the middle of a pipeline: Postgres has carried out a part of it, read half of the next message, and waits for
// the rest. It holds the fence, and does not count as idle.
func TestCutoff_ANodeCutOffInsideAPipelineFreesItsFence(t *testing.T) {
	skip.InShort(t, "it takes 21 s beside the others")
	b := setup(t)
	in := b.inbox(func(c *Config) { c.Timeout, c.Grace = time.Second, time.Second })
	rn := in.receiver.runner
	f := &position.Fence{Claim: position.Claim{Topic: "orders"}, Number: 4711}
	release, held, ended := make(chan struct{}), make(chan pgx.Tx), make(chan struct{})
	go func() {
		defer close(ended)
		_ = rn.transactHandler(context.Background(), &in.c, func(tx pgx.Tx) error {
			if _, err := tx.Exec(context.Background(), in.consumer.positions.SQL.FenceShared, position.FenceClass, f.Number); err != nil {
				t.Error(err)
			}
			held <- tx
			<-release
			return context.Canceled
		})
	}()
	defer func() { close(release); <-ended }()
	cable.PullInsideAPipeline(t, <-held, b.db)
	running, bound := b.running(), idleTimeout(in.c)
	var last time.Duration // A look that comes late, on a busy machine, does not count.
	free := func() bool {
		at := running()
		if b.count("select count(*) from pg_locks where locktype = 'advisory' and classid = $1 and objid = $2 and database = (select oid from pg_database where datname = current_database())", int64(position.FenceClass), int64(f.Number)) == 0 {
			return true
		}
		last = at
		return false
	}
	wait.Until(t, "the fence to be free", free)
	if last > bound+time.Second {
		t.Errorf("the fence was held after %s, want at most %s", last, bound)
	} else {
		t.Logf("last held after %s; the bound is %s", last, bound)
	}
}
