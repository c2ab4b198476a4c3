package sourcetest

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// inMemory are the options for a Memory.
func inMemory() Options {
	m := &Memory{}
	var made atomic.Int64
	return Options{
		Source: func(_ testing.TB, group string, topics ...string) inbox.Source { return m.Source(group, topics...) },
		Topic: func(_ testing.TB, partitions int) string {
			topic := fmt.Sprint("topic-", made.Add(1))
			m.CreateTopic(topic, partitions)
			return topic
		},
		Produce: func(_ testing.TB, topic string, partition int, records ...source.Record) {
			m.Produce(topic, partition, records...)
		},
		Delete: func(_ testing.TB, topic string, partition int, before int64) { m.Delete(topic, partition, before) },
	}
}

func TestSourceTest_MemoryKeepsThePromises(t *testing.T) { Run(t, inMemory()) }

func TestSourceTest_WhatTheOptionsLackIsLeftOut(t *testing.T) {
	o := inMemory()
	o.Delete = nil
	Run(t, o)
}
