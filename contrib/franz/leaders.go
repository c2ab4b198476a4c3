package franz

import (
	"context"
	"strconv"
	"time"
)

const (
	// askTimeout bounds the question whether another leader answers.
	askTimeout = 2 * time.Second

	// askedMost is how many others are asked: one that answers is enough, and some may be away too.
	askedMost = 5
)

// leaderAway says, of a leader that gave no answer to a request that began at some time, whether it alone is away, or all of the cluster:
// whether another one answers. Something may just have been acknowledged. But where all lanes wait for one hanging leader nobody
// sends anything else, and leaders of other partitions are asked: a broker that leads nothing may answer while no leader does.
func (pu *Publisher) leaderAway(silent int32, began time.Time) bool {
	if pu.start.Add(time.Duration(pu.ackedAt.Load())).After(began) {
		return true
	}
	others := pu.topics.others(silent, askedMost)
	if len(others) == 0 {
		return false
	}
	// Once for all who want to know at the same time.
	answer, _, _ := pu.asking.Do(strconv.Itoa(int(silent)), func() (any, error) {
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		defer cancel()
		answers := make(chan error, len(others))
		for broker, at := range others {
			go func() { answers <- pu.endOf(ctx, broker, at) }()
		}
		for range others {
			if <-answers == nil {
				return true, nil
			}
		}
		return false, nil
	})
	return answer.(bool)
}

// endOf asks a leader for the end of a partition, and returns nil whatever it answers. It needs no right that who writes to the topic does
// not have.
func (pu *Publisher) endOf(ctx context.Context, broker int32, at place) error {
	_, err := askOffsets(ctx, pu.client, broker, []place{at}, latest, allRecords)
	return err
}
