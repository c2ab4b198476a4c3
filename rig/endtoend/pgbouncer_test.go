package endtoend

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

func TestPgBouncer_TheWholeWayWorksThroughATransactionPooler(t *testing.T) {
	skip.InShort(t, "it takes 17 s beside the others")
	t.Parallel()
	for _, c := range []struct {
		name string
		mode pgx.QueryExecMode
	}{
		{"exec", pgx.QueryExecModeExec},
		{"simple protocol", pgx.QueryExecModeSimpleProtocol},
		{"cache describe", pgx.QueryExecModeCacheDescribe},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), 3)
			p.Dsn, p.Mode = pgtest.Bouncer(t, p.Db), c.mode
			// The schema must be makeable through it as well.
			if err := holdfast.Migrate(t.Context(), p.Pool(2), holdfast.SchemaConfig{}); err != nil {
				t.Fatal(err)
			}
			if err := holdfast.Check(t.Context(), p.Pool(2), holdfast.SchemaConfig{}); err != nil {
				t.Fatal(err)
			}
			var fixed atomic.Bool
			var poisoned []holdfast.Event
			for n := range int64(5) {
				poisoned = append(poisoned, p.Event("poisoned", n+1))
			}
			handler := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if err := endtoend.PutEffect(ctx, tx, "billing", e); err != nil {
					return err
				}
				if e.ID == poisoned[1].ID && !fixed.Load() {
					return errors.New("this cannot be")
				}
				return nil
			}
			relays := []func(){p.Relay(nil), p.Relay(nil)}
			consumers := []func(){p.Consume("billing", handler, func(c *inbox.Config) {
				c.HoldKey = true
				c.Retry = retry.Policy{Attempts: 4, Base: 10 * time.Millisecond, Cap: 20 * time.Millisecond}
			}), p.Consume("mail", endtoend.EffectOf("mail"), nil)}
			lasting := 4 * time.Second
			if testing.Short() {
				lasting = 2 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), lasting)
			defer cancel()
			begun := time.Now()
			w := load{writers: 3, keys: 8, perSecond: 40}.write(ctx, p)
			p.writeAll(poisoned...)

			// PgBouncer keeps to its few connections meanwhile, however many its clients are.
			var most int64
			var watch sync.WaitGroup
			watch.Go(func() {
				for ctx.Err() == nil {
					most = max(most, p.Count("select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"))
					after(ctx, 100*time.Millisecond)
				}
			})
			w.wg.Wait()
			watch.Wait()
			p.Await("the letter", func() bool {
				return p.Count("select count(*) from holdfast.letter where state = 'open'") == 1
			})
			d := p.letters()
			for _, l := range p.openLetters(d) {
				if l.Event.ID != poisoned[1].ID || l.Attempts != 4 {
					t.Errorf("the letter is %+v", l)
				}
			}
			fixed.Store(true)
			p.replay(d)
			p.Await("the replayed event is handled", func() bool {
				return p.Count("select count(*) from holdfast.letter where state = 'replayed'") == 1
			})
			v := p.Finish(relays, consumers, "billing", "mail")
			t.Logf("in %v, with at most %d connections to the server: %s; %s", time.Since(begun).Round(time.Millisecond), most, w, v)
			v.MustHold(t)
			w.kept(p)
			// Whoever leaves a lock or a setting with a pooled session leaves it to a stranger.
			if n := p.Count("select count(*) from pg_locks where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"); n > 0 {
				t.Errorf("%d advisory locks were left behind", n)
			}
			if most > 2*pgtest.BouncerPool { // some are the test's own; the clients may want 34
				t.Errorf("%d connections to the server: that was not through PgBouncer", most)
			}
		})
	}
}
