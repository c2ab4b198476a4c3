package inbox

import (
	"errors"
	"fmt"
	"regexp"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// settledAndCleaned is a partition whose first n events were handled, and whose rows retention has removed.
func settledAndCleaned(t *testing.T, n int) (*kafkaBundle, func() (stop func())) {
	b := setupKafka(t, 1)
	b.produce(0, b.events(0, n)...)
	start := func() func() {
		in := b.inbox()
		in.Handle("order.placed", effectOf)
		return b.consume(in)
	}
	stop := start()
	b.awaitHandled(n)
	stop()
	pgtest.Exec(t, b.db, "delete from holdfast.inbox")
	return b, start
}

// later are n events behind the first ones.
func (b *kafkaBundle) later(first, n int) []holdfast.Event {
	return b.events(0, first+n)[first:]
}

func (b *kafkaBundle) stale() int64 {
	b.Helper()
	return b.count("select count(*) from holdfast.letter where reason like 'stale%'")
}

func (b *kafkaBundle) begins(start, reread int64) {
	b.Helper()
	b.observed.mu.Lock()
	defer b.observed.mu.Unlock()
	if got, again := b.observed.assigned[b.topic+"/0"], b.observed.reread[b.topic+"/0"]; got != start || again != reread {
		b.Errorf("reading began at %d, %d offsets below the position; want %d and %d", got, again, start, reread)
	}
}

// Kafka forgets the offsets of a group that has no members for a week. The position shows what was settled.
func TestCheckpoint_AGroupThatLostItsOffsetsGoesOnAtThePosition(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	const n = 50
	b, start := settledAndCleaned(t, n)
	b.group.GroupID += " anew"
	stop := start()
	wait.Until(b, "the group has an offset again, though nothing new has come", func() bool { return b.committed(0) == n })
	b.begins(n, 0)
	b.produce(0, b.later(n, 10)...)
	b.awaitHandled(n + 10)
	stop()
	b.inOrder()
	if stale, rows := b.stale(), b.count("select count(*) from holdfast.inbox"); stale != 0 || rows != 10 {
		t.Errorf("%d stale letters and %d rows, want none and 10: what was settled was read again", stale, rows)
	}
	if n := b.count("select count(*) from holdfast.consumer_position where checkpoint_offset = position - 1 and checkpoint_identity is not null"); n != 1 {
		t.Error("the position has no checkpoint, or an old one")
	}
}

func TestCheckpoint_ARecreatedTopicIsKnownFromOneWhoseOffsetsExpired(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	const n = 50
	b, start := settledAndCleaned(t, n)
	if err := b.cluster.Server.DeleteTopic(t.Context(), b.topic); err != nil {
		t.Fatal(err)
	}
	wait.Until(b, "the topic can be recreated", func() bool { return b.cluster.Server.CreateTopic(t.Context(), b.topic, 1, nil) == nil })
	b.group.GroupID += " anew"
	b.produce(0, b.later(n, n+10)...)
	stop := start()
	wait.Until(b, "what lies below the position is kept", func() bool { return b.stale() == n })
	b.awaitHandled(n + 10)
	b.begins(0, n)
	stop()
	// By now the checkpoint is one of the new log.
	b.group.GroupID += " and anew"
	stop = start()
	b.produce(0, b.later(n+n+10, 1)...)
	b.awaitHandled(n + 11)
	stop()
	b.begins(n+10, n) // what was reread is reported once
}

func TestCheckpoint_ANewLogDoesNotVouchForAPositionThatItHasNotReached(t *testing.T) {
	b := setup(t)
	in := b.inbox()
	pgtest.Exec(t, b.db, "insert into holdfast.consumer_position (consumer, topic, partition, epoch, position, checkpoint_offset, checkpoint_identity) values ('billing', 'orders', 0, 1, 20, 19, 7)")
	token := b.incarnation()
	for _, row := range []struct {
		position, checkpoint int64
		want                 int64
	}{{10, 9, 19}, {20, source.NoOffset, 19}, {20, 18, 18}, {30, 28, 28}, {31, source.NoOffset, 28}} {
		for name, change := range map[string]func() error{
			"save": func() error {
				_, err := b.db.Exec(t.Context(), in.consumer.positions.SQL.Save, "billing", []string{"orders"}, []int32{0}, []int64{1}, []int64{row.position}, []int64{row.checkpoint}, []int64{1}, []string{token})
				return err
			},
			"release": func() error {
				_, err := b.db.Exec(t.Context(), in.consumer.positions.SQL.Release, "billing", "orders", int32(0), int64(1), row.position, true, row.checkpoint, int64(1), token)
				return err
			},
		} {
			if err := change(); err != nil {
				t.Fatal(err)
			}
			if got := b.count("select checkpoint_offset from holdfast.consumer_position"); got != row.want {
				t.Errorf("%s %d: the checkpoint is at %d, want %d", name, row.position, got, row.want)
			}
		}
	}
}

func TestCheckpoint_OffsetsThatAreSetBackAreReadAgainAndSaid(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	const n = 50
	b, start := settledAndCleaned(t, n)
	b.resetOffsets(0, n-20)
	stop := start()
	wait.Until(b, "what lies below the position is kept", func() bool { return b.stale() == 20 })
	stop()
	b.begins(n-20, 20)
	if got := b.count("select count(*) from effect"); got != n {
		t.Errorf("%d effects of %d events", got, n)
	}
}

// An unclean leader election cuts what was settled off the log. The row must stay then: what is left of the log was handled
// longer ago than the inbox knows.
func TestCheckpoint_ALogCutShortIsReadOnAfterTheStatementInTheError(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	const n, cut = 50, 47
	b, _ := settledAndCleaned(t, n)
	if err := b.cluster.Server.DeleteTopic(t.Context(), b.topic); err != nil {
		t.Fatal(err)
	}
	wait.Until(b, "the topic can be recreated", func() bool { return b.cluster.Server.CreateTopic(t.Context(), b.topic, 1, nil) == nil })
	b.produce(0, b.events(0, cut)...)
	b.resetOffsets(0, n)
	consumer := "o'neil" // It is quoted in the statement.
	pgtest.Exec(t, b.db, "update holdfast.consumer_position set consumer = $1", consumer)
	node := func() *Inbox {
		in := b.inbox(func(c *Config) { c.Consumer = consumer })
		in.Handle("order.placed", effectOf)
		return in
	}
	stop := b.consume(node())
	err := b.awaitHeld()
	stop()
	remedy := regexp.MustCompile(`update .* where consumer = .* and partition = 0`).FindString(fmt.Sprint(err))
	if !errors.Is(err, source.ErrOffsetOutOfRange) || remedy == "" {
		t.Fatalf("it is held because of %v", err)
	}
	pgtest.Exec(t, b.db, remedy)
	b.resetOffsets(0, cut)
	b.produce(0, b.later(n, 3)...)
	b.consume(node())
	b.awaitHandled(n + 3)
	b.begins(cut, 0)
	if all := b.count("select count(*) from effect"); all != n+3 {
		t.Errorf("%d effects of %d events", all, n+3)
	}
}
