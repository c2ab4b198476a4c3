package endtoend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// writeAll writes events one transaction each, numbered by their place in their key.
func (p *path) writeAll(events ...holdfast.Event) {
	p.Helper()
	pool := p.Pool(1)
	numbers := map[string]int64{}
	for _, e := range events {
		k := e.Topic + "/" + e.Key
		numbers[k]++
		if err := pgx.BeginFunc(p.Context(), pool, func(tx pgx.Tx) error { return p.Write(tx, numbers[k], e) }); err != nil {
			p.Fatal(err)
		}
	}
}

func (p *path) letters() *dlq.DLQ {
	p.Helper()
	d, err := dlq.New(p.Pool(2), dlq.Config{})
	if err != nil {
		p.Fatal(err)
	}
	return d
}

func (p *path) openLetters(d *dlq.DLQ) []dlq.Letter {
	p.Helper()
	letters, err := d.List(p.Context(), dlq.Filter{})
	if err != nil {
		p.Fatal(err)
	}
	return letters
}

func (p *path) replay(d *dlq.DLQ) {
	p.Helper()
	n, err := d.Replay(p.Context(), dlq.Filter{}, dlq.ReplayOptions{By: "the test", Reason: "the cause is fixed"})
	if err != nil || n != 1 {
		p.Fatalf("replayed %d letters, %v; want 1", n, err)
	}
}

func TestRefusal_AnEventOneByteTooLargeBecomesALetterAndHoldsBackNobody(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	const limit = "20000"
	p := setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), 2)
	p.Topics = []string{p.Cluster.Topic(t, 2, "max.message.bytes", limit)}
	plain := kafkago.PublisherConfig{Compression: -1} // so that bytes are bytes
	sized := func(n int) holdfast.Event {
		e := p.Event("big", 1)
		e.Payload = make([]byte, n)
		return e
	}

	// 1. The largest payload that the topic takes, to the byte.
	scratch := p.Cluster.Topic(t, 1, "max.message.bytes", limit)
	publisher, err := kafkago.NewPublisher(kafkago.Connection{Brokers: p.Cluster.Brokers}, plain)
	if err != nil {
		t.Fatal(err)
	}
	fits, refused := 0, 20_000
	for refused-fits > 1 {
		n := (fits + refused) / 2
		e := sized(n)
		e.Topic, e.Time = scratch, time.Now()
		if err := publisher.Publish(t.Context(), []holdfast.Event{e})[0]; err == nil {
			fits = n
		} else if publish.FaultOf(err) == publish.FaultRecord {
			refused = n
		} else {
			t.Logf("asked again: %v", err)
		}
	}

	// 2. One that fits exactly, and one that is a byte larger, among good ones of their key and of others.
	tooLarge := sized(refused)
	var events []holdfast.Event
	for n := range 10 {
		for k := range 8 {
			events = append(events, p.Event(fmt.Sprint("good ", k), int64(n+1)))
		}
		switch n {
		case 4:
			events = append(events, sized(fits))
		case 5:
			events = append(events, tooLarge)
		default:
			events = append(events, sized(10))
		}
	}
	p.writeAll(events...)
	c := relay.Config{Retry: retry.Policy{Attempts: 3, Base: 50 * time.Millisecond, Cap: 100 * time.Millisecond}, Logger: p.Tail.Logger("relay")}
	r, err := endtoend.NewRelay(p.Pool(4), p.Cluster.Brokers, plain, c)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	stopRelay := p.Run("relay", r.Run)
	stopConsumer := p.Consume("billing", endtoend.EffectOf("billing"), nil)
	p.Await("the letter", func() bool { return p.Count("select count(*) from holdfast.letter") == 1 })
	gaveUp := time.Since(begun)
	p.Arrive("billing")
	v := p.Judge("billing")
	t.Logf("%d bytes fit, %d do not; the letter came after %v; %s", fits, refused, gaveUp.Round(time.Millisecond), v)
	v.MustHold(t)
	d := p.letters()
	for _, l := range p.openLetters(d) {
		t.Logf("letter: %s, after %d attempts: %q", l.Reason, l.Attempts, l.Errors)
		if l.Event.ID != tooLarge.ID || l.Origin != dlq.OriginRelay || l.Attempts != 3 || len(l.Errors) != 3 || len(l.Event.Payload) != refused {
			t.Errorf("letter %d is of %s, from %s, with %d attempts, %d errors and %d bytes", l.ID, l.Event.ID, l.Origin, l.Attempts, len(l.Errors), len(l.Event.Payload))
		}
	}
	if v.Figures.Letters != 1 {
		t.Errorf("%d letters, want 1", v.Figures.Letters)
	}

	// 3. The topic takes larger ones now: the letter is replayed. It was given up, so it is late for its key's order.
	res, err := p.Cluster.Client.IncrementalAlterConfigs(t.Context(), &kafka.IncrementalAlterConfigsRequest{Resources: []kafka.IncrementalAlterConfigsRequestResource{{
		ResourceType: kafka.ResourceTypeTopic, ResourceName: p.Topic(),
		Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: "max.message.bytes", Value: "30000", ConfigOperation: kafka.ConfigOperationSet}},
	}}})
	if err != nil || res.Resources[0].Error != nil {
		t.Fatal(err, res)
	}
	p.Await("the replayed event has its effect", func() bool {
		for _, l := range p.openLetters(d) { // The broker may say that it has the new limit before it goes by it.
			if last := l.Errors[len(l.Errors)-1]; !strings.Contains(last, kafka.MessageSizeTooLarge.Title()) {
				t.Fatalf("the letter of %s is open again: %s", l.Event.ID, last)
			}
			p.replay(d)
		}
		return p.Count("select count(*) from effect where id = $1", tooLarge.ID) == 1 && p.Count("select count(*) from holdfast.letter where state = 'replayed'") == 1
	})
	v = p.Finish([]func(){stopRelay}, []func(){stopConsumer}, "billing")
	t.Logf("after the replay: %s", v)
	if v.Count(oracle.Overtaken) != 1 || v.Count(oracle.OutOfTurn) != 1 {
		t.Error("want the replayed event, and nothing else, after its place")
	}
	v.Except(oracle.Overtaken, oracle.OutOfTurn).MustHold(t)
}

func TestRefusal_EventsOfAMissingTopicWaitAndNobodyWaitsForThem(t *testing.T) {
	skip.InShort(t, "it takes 13 s beside the others")
	t.Parallel()
	p := setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), 2)
	later := p.Topic() + "-later"
	p.Topics = append(p.Topics, later)
	var events []holdfast.Event
	for n := range int64(10) {
		for k := range 6 {
			key := fmt.Sprint("k", k)
			missing := p.Event(key+" later", n+1)
			missing.Topic = later
			events = append(events, missing, p.Event(key, n+1))
		}
	}
	stopRelay := p.Relay(func(c *relay.Config) {
		c.Retry = retry.Policy{Attempts: 2, Base: 10 * time.Millisecond, Cap: 10 * time.Millisecond}
	})
	stopConsumer := p.Consume("billing", endtoend.EffectOf("billing"), nil)
	begun := time.Now()
	p.writeAll(events...)
	p.Await("the other topic's events have their effects", func() bool { return p.Count("select count(*) from effect") == 60 })
	flowed := time.Since(begun)
	p.Await("the relay knows that the topic is missing", func() bool { return p.Count("select count(*) from holdfast.parked where why = 'topic'") > 0 })
	waiting := p.Count("select count(*) from holdfast.parked where topic = $1", later)
	if n := p.Count("select count(*) from holdfast.letter") + p.Count("select coalesce(max(attempts), 0) from holdfast.parked"); n != 0 {
		t.Error("attempts were spent on a missing topic")
	}

	if err := p.Cluster.Server.CreateTopic(t.Context(), later, 2, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Cluster.Server.DeleteTopic(context.Background(), later) })
	begun = time.Now()
	v := p.Finish([]func(){stopRelay}, []func(){stopConsumer}, "billing")
	t.Logf("60 events of the other topic flowed in %v with %d parked; the missing topic's arrived %v after it was made; %s",
		flowed.Round(time.Millisecond), waiting, time.Since(begun).Round(time.Millisecond), v)
	v.MustHold(t)
	if n := p.Count("select count(*) from holdfast.letter"); n != 0 {
		t.Errorf("%d letters", n)
	}
}

func TestRefusal_APoisonMessageIsReplayedAndThenHandledOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		holdKey bool
		poison  func() error
	}{
		{"its key waits for it", true, func() error { return errors.New("this cannot be") }},
		{"its key goes on, and it panics", false, func() error { panic("this cannot be") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Container(t), 2)
			var events []holdfast.Event
			for n := range int64(10) {
				for k := range 4 {
					events = append(events, p.Event(fmt.Sprint("k", k), n+1))
				}
			}
			poisoned := events[4*3+1] // number 4 of k1
			var fixed atomic.Bool
			var runs atomic.Int64
			handler := func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
				if err := endtoend.PutEffect(ctx, tx, "billing", e); err != nil {
					return err
				}
				if e.ID == poisoned.ID {
					runs.Add(1)
					if !fixed.Load() {
						return c.poison()
					}
				}
				return nil
			}
			stopRelay := p.Relay(nil)
			stopConsumer := p.Consume("billing", handler, func(config *inbox.Config) {
				config.HoldKey = c.holdKey
				config.Retry = retry.Policy{Attempts: 5, Base: 20 * time.Millisecond, Cap: 50 * time.Millisecond}
			})
			p.writeAll(events...)

			// 1. The letter, with every attempt; the other keys are through.
			p.Await("the letter, and the effects of the others", func() bool {
				want := int64(39)
				if c.holdKey {
					want = 33
				}
				return p.Count("select count(*) from holdfast.letter") == 1 && p.Count("select count(*) from effect") == want &&
					p.Count("select count(*) from holdfast.stored") == 39-want
			})
			d := p.letters()
			for _, l := range p.openLetters(d) {
				t.Logf("letter: %s, after %d attempts, errors %q", l.Reason, l.Attempts, l.Errors)
				if l.Event.ID != poisoned.ID || l.Origin != dlq.OriginInbox || l.Consumer != "billing" || l.Attempts != 5 || len(l.Errors) != 5 ||
					l.Holds != c.holdKey || string(l.Event.Payload) != string(poisoned.Payload) {
					t.Errorf("the letter is %+v", l)
				}
			}
			// A run in a group that is rolled back is no attempt, and there is one such run at most: the next ones are alone.
			failures := runs.Load()
			if failures != 5 && failures != 6 {
				t.Errorf("the handler ran %d times, want 5, and at most once in a group before that", failures)
			}

			// 2. The fix, and the replay.
			fixed.Store(true)
			begun := time.Now()
			p.replay(d)
			p.Await("the replayed event has its effect", func() bool {
				return p.Count("select count(*) from effect where id = $1", poisoned.ID) == 1 && p.Count("select count(*) from holdfast.letter where state = 'replayed'") == 1
			})
			replayed := time.Since(begun)
			v := p.Finish([]func(){stopRelay}, []func(){stopConsumer}, "billing")
			t.Logf("handled %v after the replay began; %s", replayed.Round(time.Millisecond), v)
			if !c.holdKey { // It was given up, so it is late for its key's order.
				if n := v.Count(oracle.OutOfTurn); n != 1 {
					t.Errorf("%d effects are out of order, want the replayed one's", n)
				}
				v = v.Except(oracle.OutOfTurn)
			}
			v.MustHold(t)
			if n := runs.Load() - failures; n != 1 {
				t.Errorf("the handler ran %d times after the replay, want a success", n)
			}
		})
	}
}
