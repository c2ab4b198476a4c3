package stories

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errPlanned = errors.New("planned")

func TestStories_AStoryEndsWithItsFirstFailureAndStopsInReverse(t *testing.T) {
	for name, failing := range map[string]error{"it fails": errPlanned, "it is told to its end": nil} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			var done []string
			s := &Story{Out: &out}
			does := func(what string, err error) func(context.Context) error {
				return func(context.Context) error {
					done = append(done, what)
					s.AtEnd(func() { done = append(done, what+" stops") })
					return err
				}
			}
			if err := s.Tell(t.Context(), does("one", nil), does("two", failing), does("three", nil)); !errors.Is(err, failing) {
				t.Errorf("it ends with %v, want %v", err, failing)
			}
			want := []string{"one", "two", "three", "three stops", "two stops", "one stops"}
			if failing != nil {
				want = []string{"one", "two", "two stops", "one stops"}
			}
			if !slices.Equal(done, want) {
				t.Errorf("what is done is %q, want %q", done, want)
			}
			if told := strings.Contains(out.String(), "Every promise held."); told != (failing == nil) {
				t.Errorf("the story says that every promise held: %v", told)
			}
		})
	}
}

func TestStories_RunUntilWaitsForWhatRunsAndReturnsItsError(t *testing.T) {
	ended := 0
	run := func(ctx context.Context) error { <-ctx.Done(); ended++; return errPlanned }
	looks := 0
	so := func(context.Context) (bool, error) { looks++; return looks == 3, nil }
	if err := RunUntil(t.Context(), so, run); !errors.Is(err, errPlanned) || ended != 1 || looks != 3 {
		t.Errorf("it ends with %v, after %d looks, and %d ends of what runs", err, looks, ended)
	}
}

func TestStories_WhatIsNeverSoIsAwaitedForAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		err := Await(t.Context(), func(ctx context.Context) (bool, error) { return false, ctx.Err() })
		if took := time.Since(begun); !errors.Is(err, context.DeadlineExceeded) || took.Round(time.Second) != time.Minute {
			t.Errorf("it ends with %v after %v", err, took)
		}
	})
}
