//go:build linux

package main

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/retry"
)

// consumerName is the one consumer of a run; its nodes share it.
const consumerName = "billing"

// session is how long Kafka waits for a consumer that gives no sign of life. A broker allows shorter ones only if it is
// configured so. A broker that has just started on a busy machine takes seconds for a heartbeat: shorter sessions end meanwhile, and
// the group begins anew again and again. A longer one would hardly help: kafka-go gives up a heartbeat after 5 s.
const session = 6 * time.Second

// kafkaAnswer is how long kafka-go's group waits for an answer. A consumer whose heartbeat gets none joins anew without a
// warning; if joining gets none, it warns.
const kafkaAnswer = 5 * time.Second

// attempts is how often an event is tried before it becomes a dead letter.
const attempts = 4

// node is one process of the consumer.
type node struct {
	part
	pool    *pgxpool.Pool
	rec     *history.Recorder
	conduct *conduct

	mu    sync.Mutex
	rng   *rand.Rand
	tries map[string]int
}

// consume runs a node: from Kafka, and what is stored.
func (p part) consume(ctx context.Context, pool *pgxpool.Pool, rec *history.Recorder, logger *slog.Logger, c *conduct) error {
	n := &node{
		part:    p,
		pool:    pool,
		rec:     rec,
		conduct: c,
		rng:     rand.New(rand.NewPCG(p.Seed, 1)),
		tries:   map[string]int{},
	}
	policy := retry.Policy{
		Attempts: attempts,
		Base:     50 * time.Millisecond,
		Cap:      500 * time.Millisecond,
	}
	_ = p.withBug(bugHasty, func() error { policy.Attempts = 1; return nil })
	in, err := inbox.New(pool, inbox.Config{
		Consumer: consumerName,
		Retry:    policy,
		Timeout:  handlerTimeout, Grace: handlerGrace, StopTimeout: time.Second,
		Workers: 6,
		Group:   []int{1, 64}[p.Seed%2], // half of the nodes have handlers that share transactions
		PollMax: 200 * time.Millisecond,
		Logger:  logger,
		Observer: inbox.Observer{
			OnReceive: func(r inbox.Received) {
				rec.Add(history.Entry{
					Op:   history.Receive,
					IDs:  []string{r.Event.ID},
					Text: string(r.Outcome),
				})
			},
			OnStep: func(s inbox.Stepped) {
				if e, said := stepped(s); said {
					rec.Add(e)
				}
			},
			OnDead: func(d inbox.DeadLettered) {
				rec.Add(history.Entry{
					Op:   history.Letter,
					IDs:  []string{d.Event.ID},
					Text: d.Reason,
				})
			},
		},
	})
	if err != nil {
		return err
	}
	for _, eventType := range []string{typeChanged, typeShaky, typePoison} {
		in.Handle(eventType, n.handle)
	}
	in.Handle(typePaid, n.handle, inbox.Needs(providerName))
	in.HandleBatch(typeMoved, n.handleAll)
	dialer := net.Dialer{Timeout: 3 * time.Second}
	group, err := kafkago.NewGroup(kafkago.Connection{
		Brokers:     p.Brokers,
		DialTimeout: 3 * time.Second,
		Dial:        p.dial(dialer.DialContext),
	},
		kafkago.GroupConfig{
			GroupID:           groupID(p.Topics[0]),
			Topics:            append([]string{p.Late}, p.Topics...),
			SessionTimeout:    session,
			HeartbeatInterval: session / 20,
			WatchInterval:     time.Second,
		})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var ran error
	wg.Go(func() {
		defer cancel() // the one does not go on without the other
		ran = in.Run(ctx)
	})
	consumed := in.Consume(ctx, group)
	cancel()
	wg.Wait()
	return errors.Join(consumed, ran)
}

var errShaky = errors.New("a dependency is away")

// handle does what an event asks for: a row of effect, under the lock of its key's row of state, which makes the numbers
// of a key's effects tell the order of their commits.
func (n *node) handle(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
	n.rec.Add(history.Entry{Op: history.Effect, IDs: []string{e.ID}, Key: e.Key})
	if err := n.buggyHandler(ctx, e); err != nil {
		return err
	}
	if stepping(e.Type, e.ID) {
		for _, name := range stepNames {
			if err := n.step(ctx, e, name); err != nil {
				return err
			}
		}
	}
	switch {
	case e.Type == typePaid && !stepping(e.Type, e.ID):
		if err := n.pay(ctx, e, asked{}); err != nil {
			return err
		}
	case e.Type == typePoison:
		return errors.New("no handler can bear this")
	case e.Type == typeShaky && n.failedBefore(e.ID) < 1+int(hash(e.ID)/2%2):
		return errShaky
	}
	if n.draw(200) == 0 {
		sleep(ctx, time.Duration(n.draw(300))*time.Millisecond)
	}
	return n.effect(ctx, tx, []holdfast.Event{e})
}

// handleAll does the same for some events at once.
func (n *node) handleAll(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
	for _, e := range events {
		n.rec.Add(history.Entry{Op: history.Effect, IDs: []string{e.ID}, Key: e.Key})
		if err := n.buggyHandler(ctx, e); err != nil {
			return err
		}
	}
	return n.effect(ctx, tx, events)
}

// effect writes the effects of events, well or not.
func (n *node) effect(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
	kind := ""
	for _, e := range events {
		if kind == "" {
			kind = n.conduct.of(e.ID)
		}
	}
	b := &pgx.Batch{}
	for _, e := range events {
		if e.Key != "" {
			b.Queue("insert into state (consumer, key, id) values ($1, $2, $3) on conflict (consumer, key) do update set id = excluded.id", consumerName, e.Key, e.ID)
		}
		b.Queue("insert into effect (consumer, id, key, content) values ($1, $2, $3, $4)", consumerName, e.ID, e.Key, content(e))
	}
	if err := tx.SendBatch(ctx, b).Close(); err != nil || kind == "" {
		return err
	}
	return n.misbehave(ctx, tx, kind, events)
}

// failedBefore counts this node's tries of an event.
func (n *node) failedBefore(id string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tries[id]++
	return n.tries[id] - 1
}

func (n *node) draw(below int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rng.IntN(below)
}

func hash(text string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(text))
	return h.Sum32()
}
