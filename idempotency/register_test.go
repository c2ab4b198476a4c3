package idempotency

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-go/holdfast/internal/test/seed"
)

// A key is a register that is written once: by the first request that is carried out, with its request and its answer.
// Whatever clients send at once must look as if it had been sent one after another.

type keyInput struct{ key, body string }

type keyOutput struct {
	status   int
	code     string // of the problem, when it is one
	answer   string
	replayed bool
}

type keyState struct{ body, answer string }

var keyModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		var keys []string
		for _, op := range history {
			key := op.Input.(keyInput).key
			if byKey[key] == nil {
				keys = append(keys, key)
			}
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, key := range keys {
			parts = append(parts, byKey[key])
		}
		return parts
	},
	Init: func() any { return keyState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(keyState), input.(keyInput), output.(keyOutput)
		switch {
		case out.status == http.StatusCreated && !out.replayed:
			return s == (keyState{}), keyState{in.body, out.answer}
		case out.status == http.StatusCreated:
			return s == (keyState{in.body, out.answer}), s
		case out.status == http.StatusInternalServerError: // the handler failed: the key is free again
			return s == (keyState{}), s
		case out.code == codePayloadMismatch:
			return s != (keyState{}) && s.body != in.body, s
		case out.code == codeInProgress: // another with the key runs
			return s == (keyState{}), s
		}
		return false, s
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

func TestRegister_AKeyIsARegisterThatIsWrittenOnce(t *testing.T) {
	b := setup(t)
	seed := seed.New(t)
	var mu sync.Mutex
	chance := rand.New(rand.NewPCG(seed, 99))
	service := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		id, err := insertCharge(r.Context(), string(body))
		mu.Lock()
		fails := chance.IntN(2) == 0
		mu.Unlock()
		if err != nil || fails {
			http.Error(w, "failed", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "charge %d", id)
	})
	began := time.Now()
	var history []porcupine.Operation
	var all sync.WaitGroup
	for client := range 6 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(client)))
			for range 40 {
				in := keyInput{fmt.Sprint("key-", rng.IntN(12)), fmt.Sprintf(`{"amount": %d}`, rng.IntN(2))}
				call := time.Since(began)
				w := b.send(service, sent{key: in.key, body: in.body})
				back := time.Since(began)
				out := keyOutput{status: w.Code, answer: w.Body.String(), replayed: w.Header().Get(headerReplayed) != ""}
				for _, code := range []string{codePayloadMismatch, codeInProgress} {
					if strings.Contains(out.answer, `"`+code+`"`) {
						out.code = code
					}
				}
				mu.Lock()
				history = append(history, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: int64(call), Return: int64(back)})
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if got := porcupine.CheckOperationsTimeout(keyModel, history, time.Minute); got != porcupine.Ok {
		for _, op := range history {
			b.Log(op.ClientId, op.Call, op.Return, keyModel.DescribeOperation(op.Input, op.Output))
		}
		b.Fatalf("%d requests are %s", len(history), got)
	}
	forged, replays := 0, 0
	for i, op := range history {
		if out := op.Output.(keyOutput); out.replayed && replays < 5 {
			replays++
			out.answer = "charge of another"
			lie := append([]porcupine.Operation(nil), history...)
			lie[i].Output = out
			if porcupine.CheckOperationsTimeout(keyModel, lie, time.Minute) == porcupine.Illegal {
				forged++
			}
		}
	}
	if replays == 0 || forged != replays {
		b.Errorf("of %d forged histories %d were refused", replays, forged)
	}
	b.Logf("%d requests, %d of %d forged histories refused", len(history), forged, replays)
}

func TestRegister_AKeyThatIsWrittenTwiceIsNoRegister(t *testing.T) {
	in := keyInput{"k", "a"}
	history := []porcupine.Operation{
		{ClientId: 0, Input: in, Output: keyOutput{status: http.StatusCreated, answer: "1"}, Call: 0, Return: 5},
		{ClientId: 1, Input: in, Output: keyOutput{status: http.StatusCreated, answer: "2"}, Call: 1, Return: 6},
	}
	if porcupine.CheckOperations(keyModel, history) {
		t.Error("two requests with one key were both carried out, and that was accepted")
	}
	history[1].Output = keyOutput{status: http.StatusCreated, answer: "1", replayed: true}
	if !porcupine.CheckOperations(keyModel, history) {
		t.Error("a replay was refused")
	}
}
