package kafkago

import (
	"context"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	// askTimeout bounds the question whether another leader answers.
	askTimeout = 2 * time.Second

	// maxAsked is how many others are asked: one that answers is enough, and some may be away too.
	maxAsked = 5
)

// leaderAway says, of a partition whose leader gave no answer to a request that began at some time, whether it is the leader
// that is away, or all of the cluster: whether another one answers. Something may just have been acknowledged. But where all
// lanes wait for one hanging leader nobody sends anything else, and a leader of other partitions is asked.
//
// To ask just any broker would not do. The address that the client was given may be the one that hangs, and where it is none
// that leads, as a service that spreads connections, it may answer while no leader can be reached.
func (pu *Publisher) leaderAway(ctx context.Context, topic string, partition int, began time.Time) bool {
	if pu.start.Add(time.Duration(pu.ackedAt.Load())).After(began) {
		return true
	}
	silent, others := pu.topics.leaders(ctx, topic, partition)
	if len(others) == 0 {
		return false
	}
	// Once for all who want to know at the same time. A caller that has to stop does not wait, and takes nothing from the others.
	answer := pu.asking.DoChan(strconv.Itoa(silent), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		defer cancel()
		return pu.answers(ctx, others), nil
	})
	select {
	case a := <-answer:
		return a.Val.(bool)
	case <-ctx.Done():
		return false
	}
}

// leadership is a partition that a broker leads.
type leadership struct {
	topic     string
	partition int
}

// answers asks for the ends of some partitions, each by itself, and says whether anybody answers. It needs no right that
// who writes to their topic does not have.
func (pu *Publisher) answers(ctx context.Context, places []leadership) bool {
	errs := make(chan error, len(places))
	for _, at := range places {
		go func() {
			_, err := pu.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{at.topic: {kafka.LastOffsetOf(at.partition)}}})
			errs <- err
		}()
	}
	for range places {
		if <-errs == nil {
			return true
		}
	}
	return false
}

// leaders finds who leads a partition, -1 where that is not known, and for each of some others a partition that it leads. kafka-go
// answers that from the layout of the cluster that it knows.
func (c *topicCache) leaders(ctx context.Context, topic string, partition int) (silent int, others []leadership) {
	c.mu.RLock()
	names := make([]string, 0, len(c.topics))
	for name := range c.topics {
		names = append(names, name)
	}
	c.mu.RUnlock()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: names})
	if err != nil {
		return -1, nil
	}
	silent = -1
	leads := map[int]leadership{}
	for _, t := range res.Topics {
		for _, p := range t.Partitions {
			switch {
			case p.Leader.Host == "": // none
			case t.Name == topic && p.ID == partition:
				silent = p.Leader.ID
			default:
				leads[p.Leader.ID] = leadership{t.Name, p.ID}
			}
		}
	}
	delete(leads, silent)
	for _, at := range leads {
		if len(others) < maxAsked {
			others = append(others, at)
		}
	}
	return silent, others
}
