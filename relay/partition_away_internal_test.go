package relay

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast"
)

// slowRefusal is a publisher that refuses everything for its partition, and takes its time.
type slowRefusal time.Duration

func (d slowRefusal) Publish(_ context.Context, events []holdfast.Event) []error {
	time.Sleep(time.Duration(d)) // sleep: by the clock of a bubble
	errs := make([]error, len(events))
	for i, e := range events {
		errs[i] = &PublishError{Topic: e.Topic, Partition: 3, Fault: FaultPartition, Err: errors.New("no answer")}
	}
	return errs
}

// An outage is over when a partition has not been refused for a while. A try that takes longer than that is no such while.
func TestAPartitionParksHoweverLongItsTriesTake(t *testing.T) {
	for _, row := range []struct {
		name        string
		takes, rest time.Duration
		want        [3]bool
	}{
		{"tries of a minute", time.Minute, 10 * time.Second, [3]bool{false, true, true}},
		{"quick tries", time.Second, 5 * time.Second, [3]bool{false, false, true}},
		{"quick tries with a while between them", time.Second, outageEnds + time.Second, [3]bool{false, false, false}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &Relay{c: Config{ParkAfter: 10 * time.Second, Lease: time.Hour}, publisher: slowRefusal(row.takes)}
				r.env = envOf(r)
				l := &lane{r: r, leaseUntil: time.Now().Add(time.Hour)}
				for i, want := range row.want {
					answers, err := l.publish(t.Context(), []holdfast.Event{{Topic: "orders", Key: "k"}})
					if err != nil {
						t.Fatal(err)
					}
					if answers[0].park != want {
						t.Errorf("try %d: it is parked: %v", i, answers[0].park)
					}
					time.Sleep(row.rest)
				}
			})
		})
	}
}
