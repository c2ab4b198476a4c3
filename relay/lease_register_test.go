package relay

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

	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The row of a lane is a register that claims, saves and releases of several relays share: whatever they do at once must
// look as if it had been done one after another, and then only who claimed last has written, and in the order of its saves.
// A save may be given up: its relay goes on with the next, and it is carried out whenever it is.

type leaseInput struct {
	op    string // claim, save, release, expire, read
	relay string
	epoch int64
	pos   int64
	save  int64 // its number
}

type leaseOutput struct {
	ok    bool
	owner string
	epoch int64
	pos   int64
}

type leaseState struct {
	owner string
	epoch int64
	free  bool // the lease has run out
	pos   int64
	save  int64 // the number of the last in this epoch
}

var leaseModel = porcupine.Model{
	Init: func() any { return leaseState{free: true} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(leaseState), input.(leaseInput), output.(leaseOutput)
		ours := s.owner == in.relay && s.epoch == in.epoch
		switch in.op {
		case "claim":
			if !out.ok {
				return true, s // another was just at the row: it is passed over
			}
			next := leaseState{owner: in.relay, epoch: s.epoch + 1, pos: s.pos}
			return (s.free || s.owner == in.relay) && out.epoch == next.epoch && out.pos == s.pos, next
		case "save":
			if ours = ours && s.save < in.save; ours {
				s.pos, s.save, s.free = in.pos, in.save, false
			}
			return out.ok == ours, s
		case "release":
			if ours {
				s.owner, s.free = "", true
			}
			return out.ok == ours, s
		case "expire":
			s.free = true
			return true, s
		default:
			return out.owner == s.owner && out.epoch == s.epoch && out.pos == s.pos, s
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

func TestLeaseRegister_TheLeaseOfALaneIsARegisterThatOnlyItsOwnerWrites(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	t.Parallel()
	db := migrated.Lanes(t, 1)
	// A window, so that pos may be anything.
	pgtest.Exec(t, db.Pool, "update holdfast.lane set upto = done")
	var token string
	if err := db.QueryRow(t.Context(), "select token from holdfast.current_incarnation").Scan(&token); err != nil {
		t.Fatal(err)
	}
	seed := seed.New(t)
	const relays, operations = 4, 60
	givenUp := 0
	began := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var all sync.WaitGroup
	for client := range relays {
		all.Go(func() {
			rng, name, epoch := rand.New(rand.NewPCG(seed, uint64(client))), fmt.Sprint("relay ", client), int64(0)
			for n := range operations {
				in := leaseInput{op: []string{"claim", "save", "save", "save", "save", "save", "release", "expire", "read", "read"}[rng.IntN(10)], relay: name, epoch: epoch, pos: rng.Int64N(1000), save: int64(n + 1)}
				call := time.Since(began)
				if in.op == "save" && rng.IntN(6) == 0 {
					wait := time.Duration(rng.IntN(5)) * time.Millisecond
					all.Go(func() {
						time.Sleep(wait) // sleep: it comes late, as one that was given up does; how late is drawn
						out, err := leaseOperation(t.Context(), db, in, token)
						back, then := time.Since(began), leaseInput{op: "read"}
						found, readErr := leaseOperation(t.Context(), db, then, token)
						if err = errors.Join(err, readErr); err != nil {
							t.Errorf("%+v: %v", in, err)
						}
						mu.Lock()
						givenUp++
						history = append(history, porcupine.Operation{ClientId: relays + givenUp, Input: in, Output: out, Call: int64(call), Return: int64(back)},
							porcupine.Operation{ClientId: relays + givenUp, Input: then, Output: found, Call: int64(back), Return: int64(time.Since(began))})
						mu.Unlock()
					})
					continue
				}
				out, err := leaseOperation(t.Context(), db, in, token)
				back := time.Since(began)
				if err != nil {
					t.Errorf("%+v: %v", in, err)
					return
				}
				if in.op == "claim" && out.ok {
					epoch = out.epoch // and keeps it when the lane is lost: a zombie
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: int64(call), Return: int64(back)})
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if got := porcupine.CheckOperationsTimeout(leaseModel, history, time.Minute); got != porcupine.Ok {
		t.Fatalf("%d operations are %s", len(history), got)
	}

	// The same history with one lie in it is refused.
	forged, lies := 0, 0
	for i, op := range history {
		out := op.Output.(leaseOutput)
		if op.Input.(leaseInput).op != "save" || out.ok || op.Input.(leaseInput).epoch == 0 || op.ClientId >= relays { // One that was given up may have been carried out, and passed over.
			continue
		}
		if lies++; lies > 3 {
			break
		}
		out.ok = true
		lie := append([]porcupine.Operation(nil), history...)
		lie[i].Output = out
		if porcupine.CheckOperationsTimeout(leaseModel, lie, time.Minute) == porcupine.Illegal {
			forged++
		}
	}
	if lies == 0 || forged == 0 {
		t.Errorf("of %d forged histories %d were refused", min(lies, 3), forged)
	}
	t.Logf("%d operations, %d of them saves that were given up, %d of %d forged histories refused", len(history), givenUp, forged, min(lies, 3))
}

func TestLeaseRegister_AHistoryInWhichAZombieSavesIsNoRegister(t *testing.T) {
	history := []porcupine.Operation{
		{ClientId: 0, Input: leaseInput{op: "claim", relay: "a"}, Output: leaseOutput{ok: true, epoch: 1}, Call: 0, Return: 1},
		{ClientId: 1, Input: leaseInput{op: "expire", relay: "b"}, Output: leaseOutput{ok: true}, Call: 2, Return: 3},
		{ClientId: 1, Input: leaseInput{op: "claim", relay: "b"}, Output: leaseOutput{ok: true, epoch: 2}, Call: 4, Return: 5},
		{ClientId: 0, Input: leaseInput{op: "save", relay: "a", epoch: 1, pos: 7, save: 1}, Output: leaseOutput{ok: true}, Call: 6, Return: 7},
	}
	if porcupine.CheckOperations(leaseModel, history) {
		t.Error("a save by an epoch that another claim has ended was accepted")
	}
	history[3].Call, history[3].Return = 2, 6 // while the other claimed: it may have come before, and then the other finds it
	history[2].Output = leaseOutput{ok: true, epoch: 2, pos: 7}
	if !porcupine.CheckOperations(leaseModel, history) {
		t.Error("a save that was under way when another claimed was refused")
	}
}

func TestLeaseRegister_AHistoryInWhichASaveArrivesAfterTheNextIsNoRegister(t *testing.T) {
	read := func(pos int64) porcupine.Operation {
		return porcupine.Operation{ClientId: 2, Input: leaseInput{op: "read"}, Output: leaseOutput{ok: true, owner: "a", epoch: 1, pos: pos}, Call: 7, Return: 8}
	}
	for pos, ok := range map[int64]bool{7: false, 9: true} {
		carriedOut := pos == 7
		history := []porcupine.Operation{
			{ClientId: 0, Input: leaseInput{op: "claim", relay: "a"}, Output: leaseOutput{ok: true, epoch: 1}, Call: 0, Return: 1},
			{ClientId: 1, Input: leaseInput{op: "save", relay: "a", epoch: 1, pos: 7, save: 1}, Output: leaseOutput{ok: carriedOut}, Call: 2, Return: 6},
			{ClientId: 0, Input: leaseInput{op: "save", relay: "a", epoch: 1, pos: 9, save: 2}, Output: leaseOutput{ok: true}, Call: 4, Return: 5},
			read(pos),
		}
		if porcupine.CheckOperations(leaseModel, history) != ok {
			t.Errorf("a lane whose saves were of 7, given up, and of 9, and that stands at %d, is a register: %v, want %v", pos, !ok, ok)
		}
	}
}

func leaseOperation(ctx context.Context, db *pgtest.DB, in leaseInput, token string) (out leaseOutput, err error) {
	sql := simStatements
	switch in.op {
	case "claim":
		var number, published int
		var done, upto string
		err = db.QueryRow(ctx, sql.In(claimLane), in.relay, time.Hour, token, []int16{}).Scan(&number, &out.epoch, &done, &upto, &out.pos, &published)
		if out.ok = err == nil; err == pgx.ErrNoRows {
			err = nil
		}
	case "save":
		for locked := true; locked && err == nil; { // It passes over a row that somebody has locked, as the saver does until the next save.
			var lane int
			err = db.QueryRow(ctx, sql.In(saveLanes), in.relay, time.Hour, []int16{0}, []int64{in.epoch}, []*string{nil}, []*string{nil}, []int64{in.pos}, token, in.save, []int64{0}).Scan(&lane, &out.ok)
			locked = err == nil && !out.ok
		}
		if err == pgx.ErrNoRows {
			err = nil
		}
	case "release":
		tag, execErr := db.Exec(ctx, sql.In(releaseLane), 0, in.relay, in.epoch)
		out.ok, err = tag.RowsAffected() == 1, execErr
	case "expire":
		_, err = db.Exec(ctx, "update holdfast.lane set lease_until = '-infinity'")
		out.ok = true
	default:
		err = db.QueryRow(ctx, "select coalesce(owner, ''), epoch, pos from holdfast.lane").Scan(&out.owner, &out.epoch, &out.pos)
		out.ok = true
	}
	return out, err
}
