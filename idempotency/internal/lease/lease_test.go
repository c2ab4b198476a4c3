package lease

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const length = 30 * time.Second

// keeping is a lease whose renewals are answered by a function, with what it was told.
type keeping struct {
	*Lease
	began time.Time
	lost  atomic.Pointer[loss]

	mu    sync.Mutex
	asked []time.Duration // when each renewal began
}

type loss struct {
	after time.Duration
	err   error
}

func keep(ctx context.Context, renew func(ctx context.Context, n int) (bool, error)) *keeping {
	k := &keeping{began: time.Now()}
	k.Lease = Keep(ctx, Claim{
		Length: length,
		Renew: func(ctx context.Context) (bool, error) {
			k.mu.Lock()
			k.asked = append(k.asked, time.Since(k.began))
			n := len(k.asked)
			k.mu.Unlock()
			return renew(ctx, n)
		},
		Lost: func(err error) { k.lost.Store(&loss{time.Since(k.began), err}) },
	}, k.began)
	return k
}

// renewals are when each renewal began.
func (k *keeping) renewals() []time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.asked)
}

// silence is a renewal that is never answered.
func silence(ctx context.Context) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

func TestLease_AClaimIsRenewedEveryThirdOfItUntilItIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, gone := context.WithCancel(t.Context())
		k := keep(ctx, func(context.Context, int) (bool, error) { return true, nil })
		gone() // The client has left; the handler goes on.
		time.Sleep(4*length/3 + time.Second)
		k.Stop()
		k.Stop()
		time.Sleep(length)
		if len(k.renewals()) != 4 || k.renewals()[0] != length/3 || k.renewals()[3] != 4*length/3 {
			t.Errorf("it was renewed after %v", k.renewals())
		}
		if lost := k.lost.Load(); lost != nil {
			t.Errorf("it was lost: %+v", *lost)
		}
	})
}

// From the moment at which a claim runs out another request may have the key. A renewal that is not answered must not let the
// handler go on after it.
func TestLease_AClaimIsLostWhenItRunsOutHoweverLongARenewalTakes(t *testing.T) {
	for answers := range 3 {
		synctest.Test(t, func(t *testing.T) {
			k := keep(t.Context(), func(ctx context.Context, n int) (bool, error) {
				if n <= answers {
					return true, nil
				}
				return silence(ctx)
			})
			defer k.Stop()
			time.Sleep(5 * length)
			lost := k.lost.Load()
			if lost == nil {
				t.Fatal("it is not lost")
			}
			if want := time.Duration(answers)*length/3 + length; lost.after != want || !errors.Is(lost.err, context.DeadlineExceeded) {
				t.Errorf("with %d answers it was lost after %s (%v), want %s", answers, lost.after, lost.err, want)
			}
			if len(k.renewals()) < answers+2 {
				t.Errorf("%d renewals were asked for: one that failed was not tried again", len(k.renewals()))
			}
		})
	}
}

// An error says nothing about the claim, whatever comes with it.
func TestLease_AFailedRenewalExtendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		k := keep(t.Context(), func(context.Context, int) (bool, error) { return true, boom })
		defer k.Stop()
		time.Sleep(5 * length)
		lost := k.lost.Load()
		if lost == nil || !errors.Is(lost.err, boom) || lost.after < length || lost.after > length+length/30 {
			t.Errorf("lost %+v, want soon after %s", lost, length)
		}
	})
}

// Who stops knows that nothing is renewed any more. What a renewal says that was stopped is no loss.
func TestLease_AStopWaitsForARenewalAndIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep(t.Context(), func(ctx context.Context, _ int) (bool, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return false, nil
		})
		time.Sleep(length/3 + time.Second)
		begun := time.Now()
		k.Stop()
		if took := time.Since(begun); took != time.Second {
			t.Errorf("it waited for %s, and the renewal takes 1s to end", took)
		}
		if lost := k.lost.Load(); lost != nil {
			t.Errorf("it was lost: %+v", *lost)
		}
	})
}

// A renewal that a step cancels may have its answer already.
func TestLease_AnAnswerThatComesAsAStepBeginsCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep(t.Context(), func(ctx context.Context, _ int) (bool, error) {
			<-ctx.Done()
			return false, nil
		})
		defer k.Stop()
		time.Sleep(length/3 + time.Second)
		k.Lock()
		synctest.Wait()
		if lost := k.lost.Load(); lost == nil {
			t.Error("somebody else has the key, and the claim is not lost")
		}
	})
}

func TestLease_AKeyThatSomebodyElseHasIsLostAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep(t.Context(), func(context.Context, int) (bool, error) { return false, nil })
		defer k.Stop()
		time.Sleep(5 * length)
		if lost := k.lost.Load(); lost == nil || lost.after != length/3 || lost.err != nil || len(k.renewals()) != 1 {
			t.Errorf("lost %+v after %d renewals", lost, len(k.renewals()))
		}
	})
}

// The step may have the connection for which the renewal waits, and the row: it cancels the renewal. It waits until that has ended.
func TestLease_AStepEndsARenewalOnItsWay(t *testing.T) {
	for _, ends := range []time.Duration{0, time.Second} {
		synctest.Test(t, func(t *testing.T) {
			k := keep(t.Context(), func(ctx context.Context, _ int) (bool, error) {
				<-ctx.Done()
				time.Sleep(ends)
				return false, ctx.Err()
			})
			defer k.Stop()
			time.Sleep(length/3 + time.Second) // The first renewal is on its way.
			begun := time.Now()
			k.Lock()
			if took := time.Since(begun); took != ends {
				t.Errorf("the step waited for %s, and the renewal takes %s to end", took, ends)
			}
			time.Sleep(5 * length)
			if lost := k.lost.Load(); len(k.renewals()) != 1 || lost != nil {
				t.Errorf("while the step has the row, %d renewals were asked for, and the claim was lost: %+v", len(k.renewals()), lost)
			}
		})
	}
}

// What renews a claim was done at its beginning, as far as one can tell, however long the answer took.
func TestLease_ARenewalCountsFromItsBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 5 * time.Second
		k := keep(t.Context(), func(ctx context.Context, n int) (bool, error) {
			if n > 1 {
				return silence(ctx)
			}
			time.Sleep(takes)
			return true, nil
		})
		defer k.Stop()
		time.Sleep(5 * length)
		if lost := k.lost.Load(); lost == nil || lost.after != length/3+length {
			t.Errorf("lost %+v, want %s after the renewal that began at %s", lost, length, length/3)
		}
	})
}

// A step that has committed has renewed the claim, from its commit's beginning, also one that took longer than the claim.
func TestLease_AStepRenewsTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := keep(t.Context(), func(ctx context.Context, _ int) (bool, error) { return silence(ctx) })
		defer k.Stop()
		k.Lock()
		time.Sleep(2 * length)
		committing := time.Now()
		time.Sleep(time.Second)
		k.Extended(committing)
		k.Unlock()
		time.Sleep(5 * length)
		if lost := k.lost.Load(); lost == nil || lost.after != 3*length {
			t.Errorf("lost %+v, want %s after the commit that began at %s", lost, length, 2*length)
		}
	})
}

// After a step longer than the claim that did not commit, the claim has run out. A renewal gets the time to say whose it is.
func TestLease_AClaimThatRanOutDuringAStepIsAskedFor(t *testing.T) {
	for name, mine := range map[string]bool{"nobody has claimed the key": true, "somebody has": false} {
		synctest.Test(t, func(t *testing.T) {
			k := keep(t.Context(), func(ctx context.Context, n int) (bool, error) {
				time.Sleep(time.Second)
				return mine, ctx.Err()
			})
			defer k.Stop()
			k.Lock()
			time.Sleep(2 * length)
			k.Unlock()
			time.Sleep(length/30 + 2*time.Second)
			if lost := k.lost.Load(); len(k.renewals()) != 1 || (lost == nil) != mine {
				t.Errorf("%s: renewed after %v, lost %+v", name, k.renewals(), lost)
			}
		})
	}
}

func TestLease_WhatARenewalThatEndedSays(t *testing.T) {
	for _, c := range []struct {
		mine   bool
		err    error
		ranOut bool
		want   bool
	}{
		{true, nil, false, false}, {true, nil, true, false}, {false, nil, false, true}, {false, nil, true, true},
		{false, context.DeadlineExceeded, false, false}, {false, context.DeadlineExceeded, true, true},
	} {
		if got := isLost(c.mine, c.err, c.ranOut); got != c.want {
			t.Errorf("%+v: got %v", c, got)
		}
	}
}
