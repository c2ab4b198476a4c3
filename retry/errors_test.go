package retry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5/pgconn"
)

func TestErrors_MarksKeepTheCauseAndItsText(t *testing.T) {
	t.Parallel()
	pg := &pgconn.PgError{Code: "23505", Message: "duplicate key"}
	cause := fmt.Errorf("insert order: %w", errors.Join(pg, io.EOF))
	for name, marked := range map[string]error{
		"permanent":              Permanent(cause),
		"after":                  After(cause, time.Second),
		"permanent inside after": After(Permanent(cause), time.Second),
		"after inside permanent": Permanent(After(cause, time.Second)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var found *pgconn.PgError
			if !errors.Is(marked, cause) || !errors.Is(marked, io.EOF) || !errors.As(marked, &found) || found != pg {
				t.Errorf("the cause is lost in %#v", marked)
			}
			if marked.Error() != cause.Error() {
				t.Errorf("text is %q, want %q", marked, cause)
			}
		})
	}
}

func TestErrors_NoErrorStaysNoErrorWhenMarked(t *testing.T) {
	t.Parallel()
	if err := Permanent(nil); err != nil {
		t.Errorf("Permanent(nil) = %v", err)
	}
	if err := After(nil, time.Second); err != nil {
		t.Errorf("After(nil, 1s) = %v", err)
	}
	if IsPermanent(nil) || Retryable(nil) {
		t.Error("nil is permanent or retryable")
	}
	if d, ok := AfterOf(nil); d != 0 || ok {
		t.Errorf("AfterOf(nil) = %s, %t", d, ok)
	}
}

func TestErrors_AMarkIsFoundThroughWrapping(t *testing.T) {
	t.Parallel()
	if err := fmt.Errorf("handle: %w", Permanent(io.EOF)); !IsPermanent(err) {
		t.Error("the wrapped mark of Permanent isn't found")
	}
	if err := errors.Join(io.EOF, fmt.Errorf("handle: %w", Permanent(io.EOF))); !IsPermanent(err) {
		t.Error("the joined mark of Permanent isn't found")
	}
	if !IsPermanent(fmt.Errorf("handle: %w", backoff.Permanent(io.EOF))) {
		t.Error("the mark of backoff.Permanent isn't found")
	}
	if IsPermanent(io.EOF) {
		t.Error("an error without the mark is permanent")
	}
	if d, ok := AfterOf(fmt.Errorf("handle: %w", After(io.EOF, time.Minute))); d != time.Minute || !ok {
		t.Errorf("the wrapped wait is %s, %t", d, ok)
	}
	if d, ok := AfterOf(After(After(io.EOF, time.Minute), time.Hour)); d != time.Hour || !ok {
		t.Errorf("of two waits the inner one wins: %s, %t", d, ok)
	}
	if d, ok := AfterOf(io.EOF); d != 0 || ok {
		t.Errorf("an error without a wait has %s, %t", d, ok)
	}
}

func TestErrors_ANegativeWaitCountsAsNone(t *testing.T) {
	t.Parallel()
	if d, ok := AfterOf(After(io.EOF, math.MinInt64)); d != 0 || !ok {
		t.Errorf("AfterOf = %s, %t, want 0s, true", d, ok)
	}
}

func TestErrors_TheMoreExplicitWordDecidesWhatIsRetryable(t *testing.T) {
	t.Parallel()
	broken := fmt.Errorf("dial: %w", io.EOF)
	clash := &pgconn.PgError{Code: "23505"}
	for _, row := range []struct {
		name string
		err  error
		want bool
	}{
		{"a passing trouble is", broken, true},
		{"an unknown error is", errors.New("odd"), true},
		{"a deadline of the attempt is", context.DeadlineExceeded, true},
		{"a clash isn't", clash, false},
		{"a passing trouble marked permanent isn't", Permanent(broken), false},
		{"a permanent error with a wait isn't", After(Permanent(broken), time.Second), false},
		{"a wait marked permanent isn't", Permanent(After(broken, time.Second)), false},
		{"a permanent error of a retryable class isn't", fmt.Errorf("x: %w", Permanent(classified{RateLimit})), false},
		{"a clash with a wait is, since someone asked for it", After(clash, time.Second), true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := Retryable(row.err); got != row.want {
				t.Errorf("Retryable(%v) = %t", row.err, got)
			}
		})
	}
}
