//go:build linux

package main

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay/publish"
)

type knowing struct{ publisherFunc }

func (knowing) Partition(holdfast.Event) (partition, partitions int) { return 3, 6 }

// Without that the relay has one queue a topic.
func TestPartRelay_TheRecordedPublisherSaysWhereEventsGo(t *testing.T) {
	t.Parallel()
	plain := publisherFunc(func(context.Context, []holdfast.Event) []error { return nil })
	p, ok := recording(knowing{plain}, nil).(publish.Partitioner)
	if !ok {
		t.Fatal("it does not say where events go")
	}
	if partition, partitions := p.Partition(holdfast.Event{}); partition != 3 || partitions != 6 {
		t.Errorf("it says %d of %d", partition, partitions)
	}
	if _, ok := recording(plain, nil).(publish.Partitioner); ok {
		t.Error("it says where events go that nobody knows of")
	}
}
