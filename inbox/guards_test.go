package inbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// What fails on a node that has lost its partition meanwhile is the new owner's to decide.
func TestGuards_AZombieNeitherParksNorGivesUpAnEvent(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	in := b.inbox()
	in.registry.start()
	d := b.followers(in, 0)[0]
	b.followers(b.inbox(), 0) // Another node is given the partition.
	for name, s := range map[string]task{
		"store": func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
			return in.receiver.queues.store(ctx, tx, d, past{attempts: 1, errors: []string{"boom"}}, new(time.Duration), Retrying)
		},
		"dead letter": func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
			return in.receiver.ledger.deadLetter(ctx, tx, d, letter{reason: "it failed", attempts: 1}, Dead)
		},
	} {
		out, err := in.receiver.runner.within(s)(t.Context())
		var f *failure.Error
		if !errors.As(err, &f) || f.Fault != failure.FaultFenced {
			t.Errorf("%s: %q, %v; want it to be fenced", name, out, err)
		}
	}
	if n := b.count("select (select count(*) from holdfast.inbox) + (select count(*) from holdfast.stored) + (select count(*) from holdfast.letter)"); n != 0 {
		t.Errorf("the zombie left %d rows", n)
	}
}

// While two partitions replay serially, a crash must have one suspect: the node's handlers take turns.
func TestGuards_PartitionsOfANodeReplayOneEventAtATime(t *testing.T) {
	t.Parallel()
	in := newInbox(nil, Config{Consumer: "billing"}.withDefaults())
	parts := make([]*partition, 2)
	for i := range parts {
		parts[i] = in.consumer.newPartition(nil, nil, source.TopicPartition{Topic: "orders", Partition: i}, source.Start{})
		parts[i].reading = t.Context()
	}
	ran := false
	err := parts[0].exclusively("order.placed", func() error {
		ran = true
		if parts[1].serial.Try() {
			parts[1].serial.Leave()
			t.Error("the other partition may begin an event, too")
		}
		return nil
	})
	if err != nil || !ran {
		t.Errorf("it ran: %v, %v", ran, err)
	}
	if !parts[1].serial.Try() {
		t.Error("the other partition may not begin an event afterwards")
	}
}

// The group waits for it: another partition's handler may take long, and is tried again.
func TestGuards_APartitionThatIsTakenAwayWaitsForNoOthersSuspect(t *testing.T) {
	t.Parallel()
	in := newInbox(nil, Config{Consumer: "billing"}.withDefaults())
	first, second := in.consumer.newPartition(nil, nil, source.TopicPartition{Topic: "orders", Partition: 0}, source.Start{}), in.consumer.newPartition(nil, nil, source.TopicPartition{Topic: "orders", Partition: 1}, source.Start{})
	taken, take := context.WithCancel(t.Context())
	first.reading, second.reading = t.Context(), taken
	ended := make(chan error, 1)
	err := first.exclusively("order.placed", func() error {
		go func() { ended <- second.exclusively("order.placed", func() error { t.Error("it ran"); return nil }) }()
		take()
		select {
		case err := <-ended:
			return err
		case <-time.After(wait.Limit()):
			return errors.New("it still waits")
		}
	})
	if !errors.Is(err, errStopping) {
		t.Error(err)
	}
}

// joining is a session that tells when it is asked to join.
type joining struct{ asked chan struct{} }

func (j joining) Next(ctx context.Context) (source.Generation, error) {
	close(j.asked)
	<-ctx.Done()
	return nil, ctx.Err()
}

func (joining) Close() {}

// Else the first events of a type that this node brings could be skipped by others.
func TestGuards_TypesAreDeclaredBeforeTheGroupIsJoined(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	in.Handle("order.placed", effectOf)
	tx, err := b.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "lock table holdfast.consumer_type in exclusive mode"); err != nil {
		t.Fatal(err)
	}
	j := joining{make(chan struct{})}
	b.run(func(ctx context.Context) error { in.registry.start(); return in.consume(ctx, j) })
	for b.count("select count(*) from pg_locks where not granted and relation = 'holdfast.consumer_type'::regclass") == 0 {
		select {
		case <-j.asked:
			t.Fatal("it joined the group before it tried to declare its types")
		case <-time.After(5 * time.Millisecond):
		}
	}
	select {
	case <-j.asked:
		t.Error("it joined the group before its types were declared")
	default:
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-j.asked:
	case <-time.After(wait.Limit()):
		t.Error("it did not join the group afterwards")
	}
}
