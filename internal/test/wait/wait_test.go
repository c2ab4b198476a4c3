package wait_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/ending"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestWait_UntilEndsTheTestWithWhatNeverCameTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, looks := time.Now(), 0
		v := ending.Of(t, func(t testing.TB) { wait.Until(t, "the letter is open", func() bool { looks++; return false }) })
		limit := wait.Limit()
		if want := fmt.Sprintf("not within %v: the letter is open", limit); !strings.HasPrefix(v.Failed, want+"\n") || !strings.Contains(v.Failed, "wait_test.TestWait_UntilEndsTheTest") || !strings.Contains(v.Failed, " [chan receive") {
			t.Errorf("the test says %q, want %q and the stacks of its goroutines", v.Failed, want)
		}
		if took := time.Since(began); took < limit || took > limit+time.Second {
			t.Errorf("it took %v, want about %v", took, limit)
		}
		if each := limit / time.Duration(looks); each < 20*time.Millisecond || each > 30*time.Millisecond {
			t.Errorf("it looked once in %v, want about 25ms", each)
		}
	})
}

func TestWait_ForReturnsWhetherItCameTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if !wait.For(time.Second, func() bool { return time.Since(began) >= 500*time.Millisecond }) {
			t.Error("what is true after half a second did not come true within a second")
		}
		if took := time.Since(began); took > 550*time.Millisecond {
			t.Errorf("what is true after half a second is seen after %v", took)
		}
		if wait.For(time.Second, func() bool { return false }) {
			t.Error("what is never true came true")
		}
		if !wait.For(0, func() bool { return true }) {
			t.Error("it has to look once")
		}
	})
}

func TestWait_TryReturnsWhyItEndedAndTheLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		away := errors.New("the broker is away")
		if err := wait.Try(ctx, func(context.Context) error { return away }); !errors.Is(err, away) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it returns %v", err)
		}
		tries := 0
		err := wait.Try(t.Context(), func(context.Context) error {
			if tries++; tries < 3 {
				return away
			}
			return nil
		})
		if err != nil || tries != 3 {
			t.Errorf("it returns %v after %d tries", err, tries)
		}
	})
}
