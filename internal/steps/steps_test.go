package steps

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A key must not change with a version of holdfast: another system may have seen it. This one was computed by sha256sum.
func TestSteps_AKeyIsThatOfAFixedText(t *testing.T) {
	t.Parallel()
	// ["holdfast/inbox/step","billing","shop","1","0102","charge"]
	if got, want := Key("billing", "shop", "1", []byte{1, 2}, "charge"), "5af3126d7da72e371f3f3395c0731cfe61c35bb323771fa3be4223455ecf07bc"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	seen := map[string]bool{}
	for _, k := range []string{
		Key("a", "b", "c", []byte{1}, "d"), Key("ab", "", "c", []byte{1}, "d"), Key("a", "bc", "", []byte{1}, "d"), Key("a", "b", "c", []byte{2}, "d"),
		Key("a", "b", "c", nil, "01d"), Key("a", "b", "c\",\"", []byte{1}, "d"), Key("a", "b", "c", []byte{1}, "e"),
	} {
		if seen[k] || len(k) != 64 {
			t.Errorf("the key %q came twice, or is not of 64 digits", k)
		}
		seen[k] = true
	}
}

func TestSteps_ANameIsUsedOnceInARun(t *testing.T) {
	t.Parallel()
	var turns Turns
	fails := true
	one := func(ctx context.Context, name string) error {
		_, err := Do[int](ctx, &turns, name, func(context.Context) ([]byte, error) {
			if fails {
				return nil, errors.New("boom")
			}
			return []byte("1"), nil
		})
		return err
	}
	if err := one(t.Context(), "a"); err == nil || err.Error() != `step "a": boom` {
		t.Errorf("a step that fails: %v", err)
	}
	fails = false
	if err := one(t.Context(), "a"); err != nil {
		t.Errorf("after a failure it may be tried again: %v", err)
	}
	if err := one(t.Context(), "a"); !errors.Is(err, ErrTwice) {
		t.Errorf("the second one of a name: %v", err)
	}
	if err := one(t.Context(), "b"); err != nil {
		t.Error(err)
	}
	turns.Begins()
	if err := one(t.Context(), "a"); !errors.Is(err, ErrTwice) {
		t.Errorf("when a middleware has done it before its handler: %v", err)
	}
	if err := one(t.Context(), "c"); err != nil {
		t.Error(err)
	}
	turns.Begins()
	if err := one(t.Context(), "c"); err != nil {
		t.Errorf("when the handler runs again: %v", err)
	}
	if err := one(t.Context(), "a"); !errors.Is(err, ErrTwice) {
		t.Errorf("the middleware's, when the handler runs again: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("n", MaxName+1), "\xff", "a\x00"} {
		if err := one(t.Context(), name); !errors.Is(err, ErrName) {
			t.Errorf("the name %q: %v", name, err)
		}
	}
	if err := one(t.Context(), strings.Repeat("n", MaxName)); err != nil {
		t.Error(err)
	}
}

// A handler may call what has steps of its own: a request, or another consumer's event.
func TestSteps_AStepMayCallWhatHasStepsOfItsOwn(t *testing.T) {
	t.Parallel()
	var outer, inner Turns
	_, err := Do[int](t.Context(), &outer, "a", func(ctx context.Context) ([]byte, error) {
		_, err := Do[int](ctx, &inner, "a", func(context.Context) ([]byte, error) { return []byte("1"), nil })
		return []byte("1"), err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSteps_StepsRunOneAtATimeAndNotInEachOther(t *testing.T) {
	t.Parallel()
	var turns Turns
	var running, most atomic.Int64
	var wg sync.WaitGroup
	for n := range 20 {
		wg.Go(func() {
			v, err := Do[int](t.Context(), &turns, string(rune('a'+n)), func(ctx context.Context) ([]byte, error) {
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				if _, err := Do[int](ctx, &turns, "inner", func(context.Context) ([]byte, error) { return []byte("1"), nil }); !errors.Is(err, ErrNested) {
					t.Errorf("inside a step: %v", err)
				}
				return []byte("7"), nil
			})
			if v != 7 || err != nil {
				t.Errorf("got %d, %v", v, err)
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 || turns.Busy() {
		t.Errorf("%d ran at once; busy %t", most.Load(), turns.Busy())
	}
}

// A step that panics, or whose turn is waited for in vain, leaves the turn to the others.
func TestSteps_ATurnIsGivenBack(t *testing.T) {
	t.Parallel()
	var turns Turns
	func() {
		defer func() { _ = recover() }()
		_, _ = Do[int](t.Context(), &turns, "a", func(context.Context) ([]byte, error) { panic("boom") })
	}()
	_, err := Do[int](t.Context(), &turns, "a", func(ctx context.Context) ([]byte, error) {
		over, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		if _, err := Do[int](over, &turns, "b", func(context.Context) ([]byte, error) { return []byte("1"), nil }); err == nil || err.Error() != `step "b": enough` {
			t.Errorf("a step whose context ends while another runs: %v", err)
		}
		return []byte("1"), nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestSteps_AResultThatCannotBeReadLaterIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := Text(func() {}, 100); err == nil || Recordable[func()]() == nil || Recordable[struct{ C chan int }]() == nil {
		t.Error("a function is no result")
	}
	if _, err := Text(oneWay{}, 100); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("what cannot be read: %v", err)
	}
	if _, err := Text(json.RawMessage("\"\xff\""), 100); err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Errorf("what is not UTF-8: %v", err)
	}
	if text, err := Text(strings.Repeat("x", 98), 100); err != nil || len(text) != 100 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if _, err := Text(strings.Repeat("x", 99), 100); err == nil || !strings.Contains(err.Error(), "101 bytes long: it must be at most 100") {
		t.Errorf("one byte too many: %v", err)
	}
	if err := errors.Join(Recordable[any](), Recordable[*int](), Recordable[struct{ A []string }](), Recordable[error]()); err != nil {
		t.Error(err)
	}
	_, err := Do[int32](t.Context(), &Turns{}, "a", func(context.Context) ([]byte, error) { return []byte("4242424242424242"), nil })
	if err == nil || err.Error() != `step "a": its recorded result cannot be read as int32` {
		t.Errorf("what an earlier version has recorded: %v", err)
	}
}

func TestSteps_TwoVersionsOfAWebhookHaveOneHash(t *testing.T) {
	t.Parallel()
	content := sha256.Sum256([]byte("content"))
	if !bytes.Equal(Hash(content[:]), content[:]) || len(Hash(append(content[:], "2024"...))) != 0 || Hash(append(content[:], "2024"...)) == nil {
		t.Error("the hash is not what steps go by, or that of a version is")
	}
}

// oneWay is written as JSON, and cannot be read.
type oneWay struct{}

func (oneWay) MarshalJSON() ([]byte, error) { return []byte("1"), nil }
func (*oneWay) UnmarshalJSON([]byte) error  { return errors.New("the secret cannot be read") }
