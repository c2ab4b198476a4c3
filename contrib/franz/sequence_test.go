package franz

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/relay/publish"
)

// Lanes that publish to a partition at the same time wait for one request, not one after the other for theirs.
func TestSequence_CallsForAPartitionShareABatch(t *testing.T) {
	eachCluster(t, func(t *testing.T, cluster *kafkatest.Cluster) {
		for _, c := range []struct {
			name     string
			refused  bool
			requests int64
		}{{"all are good", false, 2}, {"one is refused", true, 2 + 6}} {
			t.Run(c.name, func(t *testing.T) {
				topic := cluster.Topic(t, 1, "max.message.bytes", "100000")
				k := publisherOn(t, clientOf(t, cluster.Brokers, kgo.ProducerBatchCompression(kgo.NoCompression())), PublisherConfig{})
				publishAll(t, k, []holdfast.Event{{Topic: topic, ID: "new", Type: "x"}})
				next, gate := k.ask, make(chan struct{})
				var requests atomic.Int64
				s := k.sequence(place{topic, 0})
				k.mu.Lock()
				for _, l := range k.lines {
					l.ask = func(ctx context.Context, broker int32, req *kmsg.ProduceRequest) (kmsg.Response, error) {
						if requests.Add(1) == 1 {
							<-gate
						}
						return next(ctx, broker, req)
					}
				}
				k.mu.Unlock()
				var calls sync.WaitGroup
				const lanes = 7 // the first of them alone
				answers := make([]error, lanes)
				for lane := range lanes {
					e := holdfast.Event{Topic: topic, ID: fmt.Sprint("lane ", lane), Type: "x", Key: fmt.Sprint("lane ", lane)}
					if c.refused && lane == 3 {
						e.Payload = bytes.Repeat([]byte("x"), 200_000)
					}
					calls.Go(func() { answers[lane] = k.Publish(t.Context(), []holdfast.Event{e})[0] })
					wait.Until(t, "the call waits", func() bool {
						s.mu.Lock()
						defer s.mu.Unlock()
						return requests.Load() == 1 && len(s.waiting) == lane
					})
				}
				close(gate)
				calls.Wait()
				for lane, err := range answers {
					want := publish.Fault("")
					if c.refused && lane == 3 {
						want = publish.FaultRecord
					}
					if got := FaultOf(err); got != want {
						t.Errorf("lane %d: the fault is %q, want %q: %v", lane, got, want, err)
					}
				}
				if n := requests.Load(); n != c.requests {
					t.Errorf("%d requests, want %d", n, c.requests)
				}
			})
		}
	})
}
