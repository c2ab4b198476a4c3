package kafkago

import (
	"context"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// A topic is deleted, a member sees that and joins again, the leader assigns nothing, and then the topic is there again, with as many
// partitions as before: whoever compares with what was before sees no difference, and nobody would ever read it.
func TestBalancer_ATopicThatIsMadeAgainWhileTheGroupFormsIsAssignedAnew(t *testing.T) {
	for _, c := range []struct {
		name         string
		joined, then int  // partitions
		listed       bool // kafka-go has listed them, of all topics
		ends         bool
	}{
		{"missing, and then there", 0, 1, false, true},
		{"there all the time", 1, 1, false, false},
		{"there all the time, as kafka-go lists them", 1, 1, true, false},
		{"with another partition", 1, 2, true, true},
		{"missing all the time", 0, 0, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			broker := &script{topics: map[string]int{"other": 3}}
			at := func(partitions int) {
				broker.mu.Lock()
				defer broker.mu.Unlock()
				delete(broker.topics, "orders")
				if partitions > 0 {
					broker.topics["orders"] = partitions
				}
			}
			s := &session{g: GroupConfig{Topics: []string{"orders"}, WatchInterval: 10 * time.Millisecond}, addr: kafka.TCP("script:9092"),
				client: &kafka.Client{Transport: broker}, counts: map[string]int{"orders": 1}}
			at(c.joined)
			var listed []kafka.Partition
			if c.listed {
				listed = []kafka.Partition{{Topic: "other", ID: 0}, {Topic: "orders", ID: 0}}
			}
			got := balancer{kafka.RangeGroupBalancer{}, s}.AssignGroups([]kafka.GroupMember{{ID: "m", Topics: []string{"orders"}}}, listed)
			if n := len(got["m"]["orders"]); n != c.joined {
				t.Fatalf("%d partitions are assigned, want %d", n, c.joined)
			}
			at(c.then)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				(&generation{s: s, missed: make(chan struct{})}).watch(ctx)
			}()
			for looks := 0; looks < 5; {
				select {
				case <-ended:
					if !c.ends {
						t.Error("the generation ended, though nothing has changed")
					}
					if ctx.Err() != nil {
						t.Error("it ended for its time")
					}
					return
				case <-time.After(time.Millisecond): // Polls: the broker is asked by the watch alone.
					broker.mu.Lock()
					looks = broker.asked - 1
					broker.mu.Unlock()
				}
			}
			if c.ends {
				t.Error("after five looks the generation goes on")
			}
		})
	}
}
