package natsjs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// generation is what of a group a member has for a while.
type generation struct {
	s        *session
	owner    string // what its leases say
	assigned map[source.TopicPartition]source.Start
	created  map[string]time.Time // of the streams, by topic
	leases   map[source.TopicPartition]*lease

	over  chan struct{}
	ended sync.Once
	left  sync.Once

	mu      sync.Mutex
	readers map[source.TopicPartition]*reader
}

var (
	_ source.Grouped    = (*generation)(nil)
	_ source.Incomplete = (*generation)(nil)
)

// GroupID names the group.
func (g *generation) GroupID() string { return g.s.config.GroupID }

// MissingTopics are the topics of the group without a stream when it was last looked.
func (g *generation) MissingTopics() (missing []string) {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	for _, topic := range g.s.config.Topics {
		if _, there := g.s.topics[topic]; !there {
			missing = append(missing, topic)
		}
	}
	return missing
}

func (g *generation) Assigned() map[source.TopicPartition]source.Start { return g.assigned }

func (g *generation) Over() <-chan struct{} { return g.over }

func (g *generation) finish() { g.ended.Do(func() { close(g.over) }) }

// Leave gives the partitions back. Next waits until that is done.
func (g *generation) Leave() { g.left.Do(func() { g.s.giveBack(g) }) }

// errTopicMadeAgain is what a generation says that has met a stream that is missing, or another one under its name.
var errTopicMadeAgain = errors.New("the topic's stream is missing, or was recreated: the node joins the group again")

// Commit writes the offsets, all at the same time.
func (g *generation) Commit(ctx context.Context, offsets map[source.TopicPartition]int64) error {
	during, stop := whileConnected(ctx, g.s.js.Conn())
	defer stop()
	errs := make(chan error, len(offsets))
	for tp, offset := range offsets {
		l := g.leases[tp]
		if l == nil {
			errs <- fmt.Errorf("commit offset of %s/%d: it is not assigned to this node", tp.Topic, tp.Partition)
			continue
		}
		go func() {
			err := l.commit(during, offset)
			if errors.Is(err, errTaken) {
				g.finish()
			}
			if err != nil {
				err = fmt.Errorf("commit offset of %s/%d: %w", tp.Topic, tp.Partition, err)
			}
			errs <- err
		}()
	}
	var all error
	for range offsets {
		all = errors.Join(all, <-errs)
	}
	return all
}

// reader returns that of a partition.
func (g *generation) reader(tp source.TopicPartition) (*reader, error) {
	if _, mine := g.assigned[tp]; !mine {
		return nil, fmt.Errorf("%s/%d is not assigned to this node", tp.Topic, tp.Partition)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	r := g.readers[tp]
	if r == nil {
		r = &reader{
			js:      g.s.js,
			stream:  StreamName(tp.Topic),
			subject: Subject(tp.Topic, tp.Partition),
			created: g.created[tp.Topic],
		}
		g.readers[tp] = r
	}
	return r, nil
}

// Bounds are those of the stream, which the partitions of the topic share.
func (g *generation) Bounds(ctx context.Context, tp source.TopicPartition) (first, end int64, err error) {
	r, err := g.reader(tp)
	if err != nil {
		return 0, 0, err
	}
	err = g.ask(ctx, func(ctx context.Context) (err error) {
		first, end, err = r.bounds(ctx)
		return err
	})
	return first, end, err
}

func (g *generation) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	r, err := g.reader(tp)
	if err != nil {
		return source.Page{}, err
	}
	var page source.Page
	err = g.ask(ctx, func(ctx context.Context) (err error) {
		page, err = r.fetch(ctx, offset, maxBytes)
		return err
	})
	return page, err
}

// ask puts a question to the server, as long as there is a connection.
func (g *generation) ask(ctx context.Context, question func(ctx context.Context) error) error {
	nc := g.s.js.Conn()
	if !nc.IsConnected() {
		return fmt.Errorf("no connection to a server: it is %s", nc.Status())
	}
	during, stop := whileConnected(ctx, nc)
	defer stop()
	err := question(during)
	if err != nil && lostConnection(during) && ctx.Err() == nil {
		return errConnectionLost
	}
	return g.meets(ctx, err)
}

// missedPause is how long a generation that missed a topic waits before it ends: the stream may be about to be recreated.
const missedPause = 500 * time.Millisecond

// meets ends a generation that has missed a topic: its offsets mean nothing in another stream of the name.
func (g *generation) meets(ctx context.Context, err error) error {
	if !errors.Is(err, errTopicMadeAgain) {
		return err
	}
	select {
	case <-time.After(missedPause):
	case <-ctx.Done():
	}
	g.finish()
	return err
}

// closeReaders deletes the consumers, so that the server need not keep them until they are inactive.
func (g *generation) closeReaders(ctx context.Context) {
	g.mu.Lock()
	readers := g.readers
	g.readers = map[source.TopicPartition]*reader{}
	g.mu.Unlock()
	for _, r := range readers {
		r.mu.Lock()
		r.forget(ctx)
		r.mu.Unlock()
	}
}
