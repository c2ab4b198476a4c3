//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/outbox"
)

// keys is how many keys there are. The first is hot: it gets a fifth of all events.
const keys = 48

// producer is a service that changes rows and writes events.
type producer struct {
	part
	pool *pgxpool.Pool
	rec  *history.Recorder

	conduct *conduct
}

// source is that of all events.
const source = "torture"

// writers is how many transactions a producer has open at once.
const writers = 4

// produce writes transactions on one or two keys until ctx is done, under row locks taken in order, with savepoints,
// rolled-back savepoints, rollbacks and pauses everywhere. Their xids are often drawn long before their locks, so that
// they commit in another order than they were numbered in. Now and then one stays open for seconds.
func (p part) produce(ctx context.Context, pool *pgxpool.Pool, rec *history.Recorder, c *conduct) error {
	pr := &producer{part: p, pool: pool, rec: rec, conduct: c}
	waits := &waits{producer: pr, free: make(chan struct{}, mostWaits)}
	defer waits.all.Wait()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(p.Seed, uint64(w)))
			pace := time.NewTicker(time.Second * writers / time.Duration(p.Rate))
			defer pace.Stop()
			for ctx.Err() == nil {
				committed, err := pr.transaction(rng)
				if len(committed) > 0 && rng.IntN(4) == 0 {
					waits.begin(ctx, committed[rng.IntN(len(committed))])
				}
				if err != nil {
					rec.Add(history.Entry{Op: history.Log, Text: err.Error()})
					sleep(ctx, 50*time.Millisecond) // the database is away: do not spin
				}
				select {
				case <-pace.C:
				case <-ctx.Done():
				}
			}
		})
	}
	wg.Wait()
	return nil
}

// transactionTime bounds a transaction. The outcome of one that it cuts off is unknown.
const transactionTime = 20 * time.Second

// transaction is one change and its events. Its history is an Intend for each event, and a Commit. It returns the events of which it knows that they
// are committed.
func (p *producer) transaction(rng *rand.Rand) (committed []string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), transactionTime)
	defer cancel()
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback(ctx) }() // after a commit it does nothing
	if rng.IntN(2) == 0 {                   // an early xid
		if _, err := tx.Exec(ctx, "insert into other values ($1)", 1); err != nil {
			return nil, err
		}
		pause(rng, 6)
	}
	var ids []string
	for _, k := range pick(rng) {
		// Before the first change or not at all: else one that has the row and wants the key deadlocks with one that has the key.
		if rng.IntN(4) == 0 {
			if err := outbox.Lock(ctx, tx, keyOf(k)); err != nil {
				return nil, err
			}
		}
		for range 1 + rng.IntN(2) {
			id, err := p.change(ctx, tx, rng, k)
			if err != nil {
				return nil, err
			}
			ids = append(ids, id)
		}
	}
	if rng.IntN(12) == 0 {
		if err := p.aside(ctx, tx, rng, &ids); err != nil {
			return nil, err
		}
	}
	if p.conduct.is(misspells) && rng.IntN(3) == 0 {
		if err := p.misspell(ctx, tx, rng, &ids); err != nil {
			return nil, err
		}
	}
	switch n := rng.IntN(400); {
	case n == 0:
		time.Sleep(time.Duration(1+rng.IntN(4)) * time.Second)
	default:
		pause(rng, 5)
	}
	if rng.IntN(10) == 0 {
		err := p.withBug(bugDualWrite, func() error { return p.publishPast(ids) })
		how := history.Failed
		_ = p.withBug(bugFalseOK, func() error { how = history.OK; return nil })
		p.rec.Add(history.Entry{Op: history.Commit, IDs: ids, How: how, Text: "rolled back"})
		return nil, errors.Join(err, tx.Rollback(ctx))
	}
	err = tx.Commit(ctx)
	how, text := outcome(err)
	p.rec.Add(history.Entry{Op: history.Commit, IDs: ids, How: how, Text: text})
	if how != history.OK {
		return nil, err
	}
	return ids, nil
}

// outcome says what an error of COMMIT means: an answer of the server is final, and without one the outcome is unknown.
func outcome(err error) (history.Result, string) {
	var said *pgconn.PgError
	switch {
	case err == nil:
		return history.OK, ""
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return history.Failed, err.Error()
	case errors.As(err, &said) && !slices.Contains(unsure, said.Code):
		return history.Failed, said.Code + " " + said.Message
	}
	return history.Unknown, err.Error()
}

// unsure are the codes with which a server or a pooler ends a session, whether or not its COMMIT succeeds: admin_shutdown,
// crash_shutdown, connection_failure, protocol_violation (a pooler that lost its server).
var unsure = []string{"57P01", "57P02", "08006", "08P01"}

// pick draws one or two keys, in an order that all share. For each of them a transaction locks the key, if it does, before
// the row, and both before the next one's: so writers cannot deadlock.
func pick(rng *rand.Rand) []int {
	draw := func() int {
		if rng.IntN(5) == 0 {
			return 0
		}
		return rng.IntN(keys)
	}
	picks := []int{draw()}
	if other := draw(); other != picks[0] && rng.IntN(3) == 0 {
		picks = append(picks, other)
	}
	slices.Sort(picks)
	return picks
}

func keyOf(k int) string { return fmt.Sprint("k", k) }

// topicOf is where events of a key go.
func topicOf(k int, topics []string, late string) string {
	if k%16 == 7 {
		return late
	}
	return topics[k%len(topics)]
}

// pays says whether events of a key may be of typePaid. Those of other keys do not wait for the provider.
func pays(key string) bool {
	var k int
	_, err := fmt.Sscanf(key, "k%d", &k)
	return err == nil && k%8 == 5
}

// misspelled is how many keys have events for the misspelt topic only. Nothing else is written of them, because a redirect does not
// keep the order with what was written to the other topic.
const misspelled = 6

// misspell writes an event to the misspelt topic, whose rows are locked after all others. The truth names the topic where it has to
// arrive.
func (p *producer) misspell(ctx context.Context, tx pgx.Tx, rng *rand.Rand, ids *[]string) error {
	key := fmt.Sprint("m", rng.IntN(misspelled))
	var number int64
	if err := tx.QueryRow(ctx, "update aggregate set n = n + 1 where key = $1 returning n", key).Scan(&number); err != nil {
		return err
	}
	e := p.event(rng, p.Topics[0], key)
	*ids = append(*ids, e.ID)
	return p.writeTo(ctx, tx, e, number, p.Misspelt)
}

// change updates a key and writes its event, sometimes after a try that a savepoint undoes.
func (p *producer) change(ctx context.Context, tx pgx.Tx, rng *rand.Rand, k int) (id string, err error) {
	key := keyOf(k)
	var number int64
	if err := tx.QueryRow(ctx, "update aggregate set n = n + 1 where key = $1 returning n", key).Scan(&number); err != nil {
		return "", err
	}
	pause(rng, 3)
	topic := topicOf(k, p.Topics, p.Late)
	e := p.event(rng, topic, key)
	if rng.IntN(4) > 0 {
		return e.ID, p.write(ctx, tx, e, number)
	}
	undone, err := tx.Begin(ctx)
	if err == nil {
		err = p.write(ctx, undone, p.event(rng, topic, key), number)
	}
	if err == nil {
		err = undone.Rollback(ctx)
	}
	if err == nil {
		err = pgx.BeginFunc(ctx, tx, func(kept pgx.Tx) error { return p.write(ctx, kept, e, number) })
	}
	return e.ID, err
}

// aside writes an event that has no order: without a key, and sometimes for later.
func (p *producer) aside(ctx context.Context, tx pgx.Tx, rng *rand.Rand, ids *[]string) error {
	e := p.event(rng, p.Topics[0], "")
	if rng.IntN(2) == 0 {
		e.NotBefore = time.Now().Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
	}
	*ids = append(*ids, e.ID)
	return p.write(ctx, tx, e, 0)
}

// Types of events.
const (
	typeChanged = "changed"
	typeMoved   = "moved"  // handled in batches
	typePoison  = "poison" // no handler can bear it: it becomes a letter
	typePaid    = "paid"   // needs the provider
	typeShaky   = "shaky"  // fails at its first tries in every process: where nodes are killed it may be tried too often
)

func (p *producer) event(rng *rand.Rand, topic, key string) holdfast.Event {
	e := holdfast.Event{
		ID:      newID(rng),
		Source:  source,
		Type:    typeChanged,
		Topic:   topic,
		Key:     key,
		Headers: map[string]string{"by": p.Actor},
	}
	switch n := rng.IntN(500); {
	case n == 0:
		e.Type = typePoison
	case n < 10:
		e.Type = typeShaky
	case n%4 == 0:
		e.Type = typeMoved
	case pays(key) && n%2 == 1:
		e.Type = typePaid
	}
	size := 50 + rng.IntN(500)
	if rng.IntN(50) == 0 {
		size = large + rng.IntN(large) // what a fault may make too large
	}
	if rng.IntN(400) == 0 {
		size = 100_000 + rng.IntN(800_000) // a broker takes 1 MiB by default
	}
	switch rng.IntN(40) {
	case 0, 1: // a tombstone
	case 2:
		e.Payload = []byte{} // which is none
	default:
		e.Payload = payload(rng, e.ID, size)
	}
	return e
}

// large is the size in bytes above which a payload is refused while a topic takes small records only.
const large = 8 << 10

// write writes one event and the truth about it, in the caller's transaction.
func (p *producer) write(ctx context.Context, tx pgx.Tx, e holdfast.Event, number int64) error {
	return p.writeTo(ctx, tx, e, number, e.Topic)
}

// writeTo is write for an event that goes to another topic than the one where it has to arrive.
func (p *producer) writeTo(ctx context.Context, tx pgx.Tx, e holdfast.Event, number int64, topic string) error {
	p.rec.Add(history.Entry{
		Op:   history.Intend,
		IDs:  []string{e.ID},
		Key:  e.Key,
		Num:  number,
		Text: e.Topic,
	})
	var due *time.Time
	if !e.NotBefore.IsZero() {
		due = &e.NotBefore
	}
	if _, err := tx.Exec(ctx, "insert into written (id, topic, key, number, type, content, due) values ($1, $2, $3, $4, $5, $6, $7)",
		e.ID, e.Topic, e.Key, number, e.Type, content(e), due); err != nil {
		return err
	}
	e.Topic = topic
	_ = p.withBug(bugHurry, func() error { e.NotBefore = time.Time{}; return nil })
	return outbox.Write(ctx, tx, e)
}

// newID is unique: 128 random bits.
func newID(rng *rand.Rand) string { return fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64()) }

// pause is a moment in which others overtake.
func pause(rng *rand.Rand, ms int) {
	if rng.IntN(3) == 0 {
		time.Sleep(time.Duration(rng.IntN(ms*1000)) * time.Microsecond)
	}
}

// sleep waits, and returns false if ctx ended meanwhile.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
