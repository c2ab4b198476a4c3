package inbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The row of a partition is a register that nodes share: whatever they do at once must look as if it had been done one after
// another, and then only who was given the partition last takes events in, and the position never goes back. A save may be
// given up: its node goes on, and it is carried out whenever it is.

type positionInput struct {
	op       string // assign, take, save, release, read
	epoch    int64
	position int64
}

type positionOutput struct {
	ok       bool
	epoch    int64
	position int64
}

type positionState struct{ epoch, position int64 }

var positionModel = porcupine.Model{
	Init: func() any { return positionState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(positionState), input.(positionInput), output.(positionOutput)
		mine := in.epoch == s.epoch
		switch in.op {
		case "assign":
			return out.epoch > s.epoch && out.position == s.position, positionState{out.epoch, s.position}
		case "take":
			return out.ok == mine, s
		case "save", "release":
			if mine {
				s.position = max(s.position, in.position)
			}
			return out.ok == mine, s
		default:
			return out.epoch == s.epoch && out.position == s.position, s
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

func TestRegister_ThePositionOfAPartitionIsARegisterThatOnlyItsOwnerWrites(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	b := setup(t)
	in := b.inboxOn(b.db.PoolOf(t, 20))
	in.registry.start()
	if err := in.consumer.renew(b.Context()); err != nil {
		t.Fatal(err)
	}
	first, err := positionOperation(b.Context(), in, positionInput{op: "assign"}, "")
	if err != nil {
		t.Fatal(err)
	}
	seed := seed.New(t)
	const nodes, operations = 4, 50
	began := time.Now()
	var mu sync.Mutex
	history := []porcupine.Operation{{ClientId: nodes, Input: positionInput{op: "assign"}, Output: first, Call: -2, Return: -1}}
	var all sync.WaitGroup
	givenUp, refused := 0, 0
	for node := range nodes {
		all.Go(func() {
			rng, epoch, given := rand.New(rand.NewPCG(seed, uint64(node))), int64(0), false
			for n := range operations {
				op := []string{"assign", "take", "take", "take", "save", "save", "release", "read"}[rng.IntN(8)]
				certain := node == 0 && epoch != 0 && !given // else there may be none that is given up
				if certain {
					op, given = "save", true
				}
				input := positionInput{op: op, epoch: epoch, position: rng.Int64N(1000)}
				id := fmt.Sprint(node, "/", n)
				call := time.Since(began)
				if op == "save" && (certain || rng.IntN(5) == 0) {
					wait := time.Duration(rng.IntN(5)) * time.Millisecond
					all.Go(func() {
						time.Sleep(wait) // sleep: it comes late, as one that was given up does; how late is drawn
						out, err := positionOperation(b.Context(), in, input, id)
						if err != nil {
							t.Errorf("%+v: %v", input, err)
						}
						mu.Lock()
						givenUp++
						history = append(history, porcupine.Operation{ClientId: nodes + givenUp, Input: input, Output: out, Call: int64(call), Return: int64(time.Since(began))})
						mu.Unlock()
					})
					continue
				}
				out, err := positionOperation(b.Context(), in, input, id)
				back := time.Since(began)
				if err != nil {
					t.Errorf("%+v: %v", input, err)
					return
				}
				if op == "assign" {
					epoch = out.epoch // and keeps it when the partition is another's: a zombie
				}
				mu.Lock()
				if op == "take" && !out.ok {
					refused++
				}
				history = append(history, porcupine.Operation{ClientId: node, Input: input, Output: out, Call: int64(call), Return: int64(back)})
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if got := porcupine.CheckOperationsTimeout(positionModel, history, time.Minute); got != porcupine.Ok {
		t.Fatalf("%d operations are %s", len(history), got)
	}
	if givenUp == 0 || refused == 0 {
		t.Errorf("%d saves were given up and %d events refused: the test tests little", givenUp, refused)
	}
	// The same history, but that an event which was refused was taken in.
	for i, op := range history {
		if out := op.Output.(positionOutput); op.Input.(positionInput).op == "take" && !out.ok {
			out.ok = true
			lie := append([]porcupine.Operation(nil), history...)
			lie[i].Output = out
			if porcupine.CheckOperationsTimeout(positionModel, lie, time.Minute) == porcupine.Illegal {
				t.Logf("%d operations, %d of them saves that were given up, %d events refused", len(history), givenUp, refused)
				return
			}
		}
	}
	t.Error("no history in which an owner of before takes an event in was found wrong")
}

// positionOperation makes one of the calls, with the statements of the inbox.
func positionOperation(ctx context.Context, in *Inbox, input positionInput, id string) (out positionOutput, err error) {
	const topic, partition = "orders", 0
	switch input.op {
	case "assign":
		a, assignErr := in.consumer.positions.Assign(ctx, topic, partition, "", func(at int64) (position.Reading, error) {
			return position.Reading{Position: max(at, 0)}, nil
		})
		if assignErr != nil {
			return out, assignErr
		}
		out.ok, out.epoch, out.position = true, a.Fence.Epoch, a.Reading.Position
	case "take":
		err = pgx.BeginFunc(ctx, in.pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, in.consumer.positions.SQL.FenceShared, position.FenceClass, lane.Number(in.c.Schema, in.c.Consumer, topic, fmt.Sprint(partition))); err != nil {
				return err
			}
			var result string
			insertErr := tx.QueryRow(ctx, in.sql.record, in.c.Consumer, topic, int32(partition), "", id, "k", int64(0), []byte{1}, int32(1), nil, input.epoch, topic, int32(partition)).Scan(&result)
			out.ok = insertErr == nil
			if errors.Is(insertErr, pgx.ErrNoRows) {
				return nil
			}
			return insertErr
		})
	case "save", "release":
		table := in.consumer.positions
		token, tokenErr := table.Incarnation(ctx)
		if tokenErr != nil {
			return out, tokenErr
		}
		claim := position.Claim{Topic: topic, Partition: partition, Epoch: input.epoch}
		settled := position.Progress{Fence: &position.Fence{Claim: claim, Token: token}, Settled: input.position, Last: readahead.Checkpoint{Offset: source.NoOffset}}
		if input.op == "save" {
			var saved map[source.TopicPartition]bool
			saved, err = table.Save(ctx, []position.Progress{settled})
			out.ok = len(saved) == 1
		} else if out.ok, err = table.Release(ctx, settled, true); errors.Is(err, failure.ErrFenced) {
			err = nil
		}
	default:
		err = in.pool.QueryRow(ctx, "select epoch, position from holdfast.consumer_position where consumer = $1", in.c.Consumer).Scan(&out.epoch, &out.position)
		out.ok = true
	}
	return out, err
}
