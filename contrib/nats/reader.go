package natsjs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/inbox/source"
)

const (
	fetchWait   = 500 * time.Millisecond // at the end of a partition
	fetchSlack  = 5 * time.Second        // for an answer that should be there
	fetchMost   = 2000                   // messages of a page
	advanceWait = time.Second            // between two looks how far the stream has gone on beside a partition
	inactive    = 30 * time.Second       // after which the server deletes a consumer that nobody asks

	// lengthSlack is what a message may be longer when it is delivered again: the numbers in its reply subject may have more digits.
	lengthSlack = 256
)

// reader reads a partition through a consumer of its own, without acknowledgements.
type reader struct {
	js      jetstream.JetStream
	stream  string
	subject string
	created time.Time // of the stream whose offsets these are

	mu        sync.Mutex // one page at a time
	consumer  string     // "": there is none
	next      int64      // where the consumer goes on
	delivered uint64     // how many messages it has delivered; a higher number comes after one that was lost on the way
	looked    time.Time  // when advance was last asked
}

// state asks the stream's leader for its bounds.
func (r *reader) state(ctx context.Context) (jetstream.StreamState, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	s, err := r.js.Stream(ctx, r.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return jetstream.StreamState{}, errTopicMadeAgain
	}
	if err != nil {
		return jetstream.StreamState{}, fmt.Errorf("ask for stream %s: %w", r.stream, err)
	}
	info := s.CachedInfo()
	if !info.Created.Equal(r.created) {
		return jetstream.StreamState{}, errTopicMadeAgain
	}
	return info.State, nil
}

// bounds are the first offset of the stream and the one after its last.
func (r *reader) bounds(ctx context.Context) (first, end int64, err error) {
	state, err := r.state(ctx)
	if err != nil {
		return 0, 0, err
	}
	end = int64(state.LastSeq) + 1
	return max(1, min(int64(state.FirstSeq), end)), end, nil
}

// within says whether the stream still has what lies at offset.
func (r *reader) within(ctx context.Context, offset int64) (end int64, err error) {
	first, end, err := r.bounds(ctx)
	if err != nil {
		return 0, err
	}
	if offset < first || offset > end {
		return 0, fmt.Errorf("%w: stream %s has %d to %d", source.ErrOffsetOutOfRange, r.stream, first, end)
	}
	return end, nil
}

// fetch reads a page.
func (r *reader) fetch(ctx context.Context, offset, maxBytes int64) (source.Page, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.consumer == "" || r.next != offset {
		r.forget(ctx)
		if _, err := r.within(ctx, offset); err != nil {
			return source.Page{}, err
		}
		name, err := r.consume(ctx, offset, false)
		if err != nil {
			return source.Page{}, err
		}
		r.consumer, r.next, r.delivered = name, offset, 0
	}
	got, err := r.pull(ctx, r.consumer, fetchMost, maxBytes)
	if err != nil {
		r.forget(ctx)
		return source.Page{}, err
	}
	page, gaps, whole := r.page(got.messages, offset)
	if !whole { // A message was lost on the way: read on from what came before it.
		r.forget(ctx)
	}
	switch {
	case len(page.Records) > 0:
		r.next = page.Next
		if gaps { // They are messages of other partitions, unless retention was there first.
			_, err = r.within(ctx, offset)
		}
	case got.tooLarge:
		return r.leftOut(ctx, offset)
	case whole:
		page.Next, err = r.advance(ctx, offset)
		r.next = page.Next
	}
	if err != nil {
		r.forget(ctx)
		return source.Page{}, err
	}
	return page, nil
}

// page makes a page of messages. gaps says that their sequences have some; whole, that none was lost on the way.
func (r *reader) page(messages []*nats.Msg, offset int64) (page source.Page, gaps, whole bool) {
	page.Next = offset
	for _, m := range messages {
		about, err := m.Metadata()
		if err != nil || about.Sequence.Consumer != r.delivered+1 {
			return page, gaps, false
		}
		r.delivered++
		at := int64(about.Sequence.Stream)
		gaps = gaps || at != page.Next
		page.Records = append(page.Records, recordOf(m.Header, m.Data, at, about.Timestamp))
		page.Next = at + 1
	}
	return page, gaps, true
}

// consume makes a consumer that begins at offset.
func (r *reader) consume(ctx context.Context, offset int64, headersOnly bool) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	c, err := r.js.CreateConsumer(ctx, r.stream, jetstream.ConsumerConfig{
		FilterSubject:     r.subject,
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       uint64(offset),
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: inactive,
		MemoryStorage:     true,
		Replicas:          1,
		HeadersOnly:       headersOnly,
	})
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return "", errTopicMadeAgain
	case err != nil:
		return "", fmt.Errorf("read stream %s: %w", r.stream, err)
	}
	return c.CachedInfo().Name, nil
}

// forget lets go of the consumer. The caller holds mu.
func (r *reader) forget(ctx context.Context) {
	if r.consumer != "" {
		r.remove(ctx, r.consumer)
		r.consumer = ""
	}
}

// remove deletes a consumer, if the server is there. Otherwise it goes by itself.
func (r *reader) remove(ctx context.Context, name string) {
	if ctx.Err() != nil || !r.js.Conn().IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = r.js.DeleteConsumer(ctx, r.stream, name)
}

// pulled is what a request for messages brought.
type pulled struct {
	messages []*nats.Msg
	tooLarge bool // the next message alone has more bytes
}

// pullRequest asks for what is there, or waits for the next message until it expires.
type pullRequest struct {
	Expires  time.Duration `json:"expires"`
	Batch    int           `json:"batch"`
	MaxBytes int64         `json:"max_bytes,omitempty"`
	NoWait   bool          `json:"no_wait"`
}

// pull asks a consumer for messages. The client's own calls wait until a page is full, or take no bytes.
func (r *reader) pull(ctx context.Context, consumer string, most int, maxBytes int64) (got pulled, err error) {
	nc := r.js.Conn()
	body, err := json.Marshal(pullRequest{
		Expires:  fetchWait,
		Batch:    most,
		MaxBytes: maxBytes,
		NoWait:   true,
	})
	if err != nil {
		return got, err
	}
	box := nc.NewInbox()
	sub, err := nc.SubscribeSync(box)
	if err != nil {
		return got, fmt.Errorf("ask for messages: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	_ = sub.SetPendingLimits(-1, -1) // The page has its bytes.
	if err := nc.PublishRequest(r.api("CONSUMER.MSG.NEXT."+r.stream+"."+consumer), box, body); err != nil {
		return got, fmt.Errorf("ask for messages: %w", err)
	}
	bounded, cancel := context.WithTimeout(ctx, fetchWait+fetchSlack)
	defer cancel()
	for bytes := int64(0); len(got.messages) < most && bytes < maxBytes; {
		m, err := sub.NextMsgWithContext(bounded)
		if err != nil {
			if ctx.Err() != nil {
				return got, ctx.Err()
			}
			return got, fmt.Errorf("ask for messages: %w", err)
		}
		status := m.Header.Get("Status")
		if status == "" || len(m.Data) > 0 || m.Reply != "" {
			got.messages, bytes = append(got.messages, m), bytes+int64(m.Size())
			continue
		}
		switch description := m.Header.Get("Description"); {
		case status == "100":
		case status == "404", status == "408": // no more
			return got, nil
		case status == "409" && strings.Contains(description, "Exceeds MaxBytes"):
			got.tooLarge = true
			return got, nil
		case status == "409" && len(got.messages) > 0: // the consumer was deleted, or the leader changed
			return got, nil
		case status == "503":
			return got, fmt.Errorf("ask for messages: %w", nats.ErrNoResponders)
		default:
			return got, fmt.Errorf("ask for messages: the server says %s %s", status, description)
		}
	}
	return got, nil
}

// api is a subject of the JetStream API.
func (r *reader) api(operation string) string {
	o := r.js.Options()
	switch {
	case o.APIPrefix != "":
		return strings.TrimSuffix(o.APIPrefix, ".") + "." + operation
	case o.Domain != "":
		return "$JS." + o.Domain + ".API." + operation
	}
	return "$JS.API." + operation
}

// leftOut is the page of a message that is larger than a page: it comes without its value.
func (r *reader) leftOut(ctx context.Context, offset int64) (source.Page, error) {
	name, err := r.consume(ctx, offset, true)
	if err != nil {
		return source.Page{}, err
	}
	defer r.remove(ctx, name)
	got, err := r.pull(ctx, name, 1, 1<<20)
	if err != nil || len(got.messages) == 0 {
		return source.Page{Next: offset}, err
	}
	m := got.messages[0]
	about, err := m.Metadata()
	if err != nil {
		return source.Page{}, err
	}
	size, err := strconv.ParseInt(m.Header.Get("Nats-Msg-Size"), 10, 64)
	if err != nil {
		return source.Page{}, fmt.Errorf("read the size of message %d of stream %s: %w", about.Sequence.Stream, r.stream, err)
	}
	record := recordOf(m.Header, nil, int64(about.Sequence.Stream), about.Timestamp)
	record.Value, record.LeftOut = nil, size+int64(m.Size())+lengthSlack
	return source.Page{Records: []source.Record{record}, Next: record.Offset + 1}, nil
}

// advance is the next offset of a partition that has nothing at or after offset: the end of the stream. Otherwise retention would seem
// to overtake a partition that waits while the others go on.
func (r *reader) advance(ctx context.Context, offset int64) (int64, error) {
	if time.Since(r.looked) < advanceWait {
		return offset, nil
	}
	// 1. How far the stream is. 2. What the partition's last message is, by the stream's leader as well: a replica could be late, and
	// what the leader said first is then not all that the partition has.
	end, err := r.within(ctx, offset)
	if err != nil || end == offset {
		return offset, err
	}
	last, err := r.last(ctx)
	if err != nil {
		return 0, err
	}
	r.looked = time.Now()
	if last >= offset {
		return offset, nil
	}
	return end, nil
}

// last is the sequence of the partition's last message; 0 if it has none.
func (r *reader) last(ctx context.Context) (int64, error) {
	body, err := json.Marshal(map[string]string{"last_by_subj": r.subject})
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	answer, err := r.js.Conn().RequestWithContext(ctx, r.api("STREAM.MSG.GET."+r.stream), body)
	if err != nil {
		return 0, fmt.Errorf("ask for the last message of %s: %w", r.subject, err)
	}
	var found struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Sequence int64 `json:"seq"`
		} `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &found); err != nil {
		return 0, fmt.Errorf("ask for the last message of %s: %w", r.subject, err)
	}
	if found.Error != nil {
		if slices.Contains([]jetstream.ErrorCode{jetstream.JSErrCodeMessageNotFound}, found.Error.ErrorCode) {
			return 0, nil
		}
		return 0, fmt.Errorf("ask for the last message of %s: %w", r.subject, found.Error)
	}
	return found.Message.Sequence, nil
}
