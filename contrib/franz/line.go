package franz

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A broker answers the requests of a connection one after the other, and a request when the last of its partitions is known. So each
// leader has two lines: on one, partitions share requests, and have little time there; on the other, of another client with a
// connection of its own, wait those whose replicas are late.
const (
	replicate     = 300 * time.Millisecond // what partitions that share a request have for it
	replicateSlow = time.Second            // what slow ones have
	promptly      = 250 * time.Millisecond

	underWay     = 2       // requests of a line at a time: one with the broker, and the next
	requestMost  = 128     // partitions
	requestBytes = 8 << 20 // of a request, unless one batch is larger
)

// asker sends a request to a broker and waits for the answer.
type asker func(ctx context.Context, broker int32, req *kmsg.ProduceRequest) (kmsg.Response, error)

// by asks by way of a client's connections.
func by(client *kgo.Client) asker {
	return func(ctx context.Context, broker int32, req *kmsg.ProduceRequest) (kmsg.Response, error) {
		return client.Broker(int(broker)).Request(ctx, req)
	}
}

// line sends requests to one broker. Safe for use by many goroutines.
type line struct {
	ask     asker
	broker  int32
	timeout time.Duration // that the broker has to replicate

	mu      sync.Mutex
	waiting []*load // each of another partition
	busy    int     // requests under way
}

// load is a batch to send.
type load struct {
	place
	id       [16]byte // of the topic
	bytes    []byte
	deadline time.Time
	answered chan answer // of one, filled once
}

// answer is what became of a load.
type answer struct {
	err     error
	records map[int]error // that the broker named, by their place in the batch
}

// exchange sends a load and waits for its answer, until its deadline. If it was not sent by then, the error says so (neverSent).
func (l *line) exchange(b *load) answer {
	b.answered = make(chan answer, 1)
	l.mu.Lock()
	l.waiting = append(l.waiting, b)
	if l.busy < underWay {
		l.busy++
		go l.run()
	}
	l.mu.Unlock()
	timer := time.NewTimer(time.Until(b.deadline))
	defer timer.Stop()
	select {
	case a := <-b.answered:
		return a
	case <-timer.C:
	}
	l.mu.Lock()
	at := slices.Index(l.waiting, b)
	if at >= 0 {
		l.waiting = slices.Delete(l.waiting, at, at+1)
	}
	l.mu.Unlock()
	if at >= 0 {
		return answer{err: fmt.Errorf("%w: %w", errWaited, context.DeadlineExceeded)}
	}
	return answer{err: context.DeadlineExceeded} // Others of the request have more time.
}

// run sends requests until nothing waits.
func (l *line) run() {
	for {
		l.mu.Lock()
		n, size := 0, 0
		for n < len(l.waiting) && n < requestMost && (n == 0 || size+len(l.waiting[n].bytes) <= requestBytes) {
			size += len(l.waiting[n].bytes)
			n++
		}
		loads := slices.Clone(l.waiting[:n])
		l.waiting = slices.Delete(l.waiting, 0, n)
		if n == 0 {
			l.busy--
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.send(loads)
	}
}

// send makes one request of some loads and answers each.
func (l *line) send(loads []*load) {
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, int32(l.timeout.Milliseconds())
	type topic struct {
		name string
		id   [16]byte
	}
	left := make(map[place]*load, len(loads))
	topics, names := map[topic]int{}, map[[16]byte]string{}
	deadline := loads[0].deadline
	for _, b := range loads {
		t := topic{b.topic, b.id}
		n, ok := topics[t]
		if !ok {
			n = len(req.Topics)
			topics[t], names[b.id] = n, b.topic
			r := kmsg.NewProduceRequestTopic()
			r.Topic, r.TopicID = b.topic, b.id
			req.Topics = append(req.Topics, r)
		}
		p := kmsg.NewProduceRequestTopicPartition()
		p.Partition, p.Records = int32(b.partition), b.bytes
		req.Topics[n].Partitions = append(req.Topics[n].Partitions, p)
		if b.deadline.After(deadline) {
			deadline = b.deadline
		}
		left[b.place] = b
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	resp, err := l.ask(ctx, l.broker, req)
	if produced, ok := resp.(*kmsg.ProduceResponse); err == nil {
		if err = errUnnamed; !ok {
			produced = kmsg.NewPtrProduceResponse()
		}
		for _, t := range produced.Topics {
			if produced.Version >= 13 { // topics have ids only
				t.Topic = names[t.TopicID]
			}
			for i := range t.Partitions {
				p := &t.Partitions[i]
				at := place{t.Topic, int(p.Partition)}
				if b := left[at]; b != nil {
					delete(left, at)
					b.answered <- answerOf(p)
				}
			}
		}
	}
	for _, b := range left {
		b.answered <- answer{err: err}
	}
}

// errUnnamed is the answer of a broker that says nothing of a partition.
var errUnnamed = fmt.Errorf("the broker said nothing of the partition: %w", kerr.UnknownServerError)

// answerOf is what a broker says of one partition.
func answerOf(p *kmsg.ProduceResponseTopicPartition) answer {
	text := ""
	if p.ErrorMessage != nil {
		text = *p.ErrorMessage
	}
	a := answer{err: answerError(p.ErrorCode, text)}
	for _, r := range p.ErrorRecords {
		if a.records == nil {
			a.records = map[int]error{}
		}
		why := ""
		if r.ErrorMessage != nil {
			why = *r.ErrorMessage
		}
		a.records[int(r.RelativeOffset)] = answerError(p.ErrorCode, why)
	}
	return a
}
