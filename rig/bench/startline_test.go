package main

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/inbox/source"
)

// topicOfOne is a generation whose every fetch finds a record.
type topicOfOne struct {
	source.Generation
	over chan struct{}
}

func (t topicOfOne) Over() <-chan struct{} { return t.over }

func (t topicOfOne) Fetch(context.Context, source.TopicPartition, int64, int64) (source.Page, error) {
	return source.Page{Records: make([]source.Record, 1)}, nil
}

func TestStartline_NobodyStartsBeforeAllHaveTheirShare(t *testing.T) {
	line := newStartLine(2, 4)
	over := make(chan struct{})
	close(over) // Fetch need not wait for the line
	held := heldGeneration{topicOfOne{over: over}, line}
	fetched := func() int {
		page, err := held.Fetch(t.Context(), source.TopicPartition{}, 7, 1)
		if err != nil || len(page.Records) == 0 && page.Next != 7 {
			t.Fatalf("fetched %+v, %v", page, err)
		}
		return len(page.Records)
	}
	for _, step := range []struct {
		member, partitions int
		opens              bool
	}{
		{0, 8, false}, // it is alone
		{0, 4, false},
		{0, 0, false}, // it joins again
		{1, 4, false},
		{0, 4, true},
		{0, 0, true}, // a rebalance stops nobody
	} {
		line.assigned(step.member, step.partitions)
		select {
		case <-line.open:
			if !step.opens {
				t.Fatalf("it opened at %+v", step)
			}
		default:
			if step.opens {
				t.Fatalf("it is closed at %+v", step)
			}
			if n := fetched(); n != 0 {
				t.Fatalf("a member got %d records at %+v", n, step)
			}
		}
	}
	held.Generation = topicOfOne{over: make(chan struct{})}
	if n := fetched(); n != 1 {
		t.Errorf("a member got %d records after all have started", n)
	}
}
