package webhook

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/retry"
)

// A provider sends until it is told 2xx, and often once more; handlers fail, connections die, two nodes share the work in
// both modes. What was acknowledged has one effect in the end, and what was not was never left half done.
// W13, W14, W17, W18, W21.
func TestStorm_InAStormOfFaultsEveryDeliveryHasOneEffect(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	b := setup(t)
	seed := seed.New(t)
	random := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	roll := func(of int) int { mu.Lock(); defer mu.Unlock(); return random.IntN(of) }

	subjects := b.db.PoolWith(t, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["application_name"] = "subject" })
	var urls []string
	for _, mode := range []Mode{Inline, StoreFirst} {
		c := b.in.Config()
		c.ImmediateRetries, c.Observer = 1, inbox.Observer{}
		c.Retry = retry.Policy{Attempts: 1000, Base: time.Millisecond, Cap: 5 * time.Millisecond}
		in, err := inbox.New(subjects, c)
		if err != nil {
			t.Fatal(err)
		}
		in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
			if _, err := tx.Exec(ctx, "insert into effect (id) values ($1)", e.ID); err != nil {
				return err
			}
			if roll(5) == 0 {
				return errors.New("unlucky")
			}
			return nil
		})
		urls = append(urls, b.receiverOf(in, "shop", must(Standard(macSecret)), func(c *Config) {
			c.Mode = mode
			c.KeyFunc = func(d Delivery, _ []byte) string { return d.ID[:1] }
		}).URL)
		b.in = in
		b.run()
	}

	const n = 300
	killing, stop := context.WithCancel(t.Context())
	killed := make(chan int, 1)
	go func() {
		count := 0
		for killing.Err() == nil {
			var one bool
			if err := b.db.QueryRow(killing, `select pg_terminate_backend(pid) from pg_stat_activity
				where datname = current_database() and application_name = 'subject' order by random() limit 1`).Scan(&one); err == nil && one {
				count++
			}
			select {
			case <-killing.Done():
			case <-time.After(40 * time.Millisecond):
			}
		}
		killed <- count
	}()
	var acknowledged, refused atomic.Int64
	var wg sync.WaitGroup
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	for range 16 {
		wg.Go(func() {
			for i := range next {
				h, body := order(fmt.Sprintf("%d-%d", i%7, i))
				var copies sync.WaitGroup
				for range 1 + roll(3) {
					copies.Go(func() { // until it is acknowledged
						for {
							r, err := send(t.Context(), urls[roll(2)], http.MethodPost, h, strings.NewReader(body))
							switch {
							case err != nil:
								t.Error(err)
								return
							case r.status == 200 || r.status == 202:
								acknowledged.Add(1)
								return
							case r.status != 503:
								t.Errorf("the answer is %d", r.status)
								return
							}
							refused.Add(1)
							time.Sleep(time.Duration(roll(10)) * time.Millisecond) // sleep: a sender comes again after a while; how long is drawn
						}
					})
				}
				copies.Wait()
			}
		})
	}
	wg.Wait()
	stop()
	dead := <-killed
	wait.Until(t, "no event is stored", func() bool { return b.count("select count(*) from holdfast.stored") == 0 })
	t.Logf("%d acknowledged, %d told to come again, %d connections killed", acknowledged.Load(), refused.Load(), dead)
	if got, twice := b.count("select count(distinct id) from effect"), b.effects(); got != n || twice != n {
		t.Errorf("%d effects of %d deliveries, want one of each of %d", twice, got, n)
	}
	if b.count("select count(*) from holdfast.letter") != 0 || b.count("select count(*) from holdfast.inbox where result = 'handled'") != n {
		t.Error("not every delivery is handled")
	}
	if dead == 0 || refused.Load() == 0 {
		t.Error("nothing was killed, or nothing had to come again: the test shows nothing")
	}
}
