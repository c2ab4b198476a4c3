// Package path sends events the whole way, outbox.Write to effect or dead letter, on a real Postgres and a real Kafka, from the outside
// only. It has no code but tests: TestPath_TheWholeWay… is the first to read. Those with faults are in rig/endtoend.
package path

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/relay"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, kafkatest.Stop))
}

func TestPath_TheWholeWayFromOutboxToTheEffectsOfTwoConsumers(t *testing.T) {
	t.Parallel()
	p := endtoend.Setup(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), 6)
	var duplicates, lost atomic.Int64
	var mu sync.Mutex
	seen := map[string]holdfast.Event{}
	billing := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		mu.Lock()
		seen[e.ID] = e
		mu.Unlock()
		return endtoend.PutEffect(ctx, tx, "billing", e)
	}
	observe := func(c *inbox.Config) {
		c.Observer.OnReceive = func(r inbox.Received) {
			if r.Outcome == inbox.Duplicate {
				duplicates.Add(1)
			}
		}
	}
	watch := func(c *relay.Config) { c.Observer.OnLost = func(int, bool, error) { lost.Add(1) } }
	relays := []func(){p.Relay(watch), p.Relay(watch)}
	consumers := []func(){p.Consume("billing", billing, observe), p.Consume("mail", endtoend.EffectOf("mail"), observe)}

	// 1. Many keys, some events without one, some tombstones, headers on all.
	keys, each := 40, 25
	if testing.Short() {
		keys, each = 20, 10
	}
	begun := time.Now()
	wrote := map[string]holdfast.Event{}
	pool := p.Pool(4)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for n := 1; n <= each; n++ {
				for k := w; k < keys; k += 4 {
					e := p.Event(fmt.Sprintf("key-%d ü", k), int64(n))
					e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": fmt.Sprint("t", k), "empty": ""}
					e.Time = time.Date(2024, 2, 29, 23, 59, 59, 123456000, time.UTC)
					switch {
					case k == 7:
						e.Key = ""
					case n%10 == 0:
						e.Payload = nil
					case n%10 == 1:
						e.Payload = []byte{}
					}
					err := pgx.BeginFunc(context.Background(), pool, func(tx pgx.Tx) error { return p.Write(tx, int64(n), e) })
					if err != nil {
						t.Errorf("write: %v", err)
						return
					}
					mu.Lock()
					wrote[e.ID] = e
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	v := p.Finish(relays, consumers, "billing", "mail")
	t.Logf("in %v, %d lanes lost: %s", time.Since(begun).Round(time.Millisecond), lost.Load(), v)
	v.MustHold(t)
	// A machine that stands still for half a lease is a fault. Without one there is nothing to repeat.
	if lost.Load() == 0 && (v.Figures.Duplicates > 0 || duplicates.Load() > 0) {
		t.Errorf("without any fault Kafka has %d duplicates, and consumers met %d", v.Figures.Duplicates, duplicates.Load())
	}

	// 2. The handler is given what was written.
	for id, want := range wrote {
		got := seen[id]
		if got.Key != want.Key || got.Type != want.Type || got.Topic != want.Topic || got.Source != want.Source || !got.Time.Equal(want.Time) ||
			string(got.Payload) != string(want.Payload) || (got.Payload == nil) != (want.Payload == nil) || !maps.Equal(got.Headers, want.Headers) {
			t.Fatalf("the handler was given %+v, written was %+v", got, want)
		}
	}

	// 3. Kafka's records are CloudEvents.
	for _, r := range p.Cluster.ReadAll(t, p.Topic()) {
		id, _ := r.Header("ce_id")
		want := wrote[id]
		for name, value := range map[string]string{"ce_specversion": "1.0", "ce_source": "shop", "ce_type": "changed", "ce_time": "2024-02-29T23:59:59.123456Z",
			"traceparent": want.Headers["traceparent"], "tenant": want.Headers["tenant"], "empty": ""} {
			if got, ok := r.Header(name); !ok || got != value {
				t.Fatalf("record %d/%d: header %s is %q, want %q", r.Partition, r.Offset, name, got, value)
			}
		}
		if string(r.Key) != want.Key || (r.Key == nil) != (want.Key == "") || string(r.Value) != string(want.Payload) || (r.Value == nil) != (want.Payload == nil) {
			t.Fatalf("record %d/%d is %q: %q, want %q: %q", r.Partition, r.Offset, r.Key, r.Value, want.Key, want.Payload)
		}
	}
}

// The oracle must see what it is there to see: this handler writes past its transaction, as a pool in a closure would.
func TestPath_TheOracleSeesEffectsThatAreWrittenOutsideTheTransaction(t *testing.T) {
	skip.InShort(t, "it takes 35 s beside the others")
	t.Parallel()
	p := endtoend.Setup(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), 2)
	pool := p.Pool(4)
	var mu sync.Mutex
	failed := map[string]bool{}
	stopRelay := p.Relay(nil)
	stopConsumer := p.Consume("billing", func(ctx context.Context, _ pgx.Tx, e holdfast.Event) error {
		if err := endtoend.PutEffect(ctx, pool, "billing", e); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if !failed[e.ID] {
			failed[e.ID] = true
			return errors.New("the first try fails")
		}
		return nil
	}, nil)
	for n := range int64(5) {
		if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return p.Write(tx, n+1, p.Event("k", n+1)) }); err != nil {
			t.Fatal(err)
		}
	}
	v := p.Finish([]func(){stopRelay}, []func(){stopConsumer}, "billing")
	t.Log(v)
	if n := v.Count(oracle.Doubles); n != 5 {
		t.Errorf("the oracle sees %d double effects, want 5", n)
	}
}
