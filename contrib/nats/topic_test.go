package natsjs

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

func TestTopic_ATopicIsASubject(t *testing.T) {
	for _, topic := range []string{"orders", "orders.v1", "a-b_c.D9"} {
		if err := CheckTopic(topic); err != nil {
			t.Errorf("%s: %v", topic, err)
		}
	}
	for _, topic := range []string{"", ".", "a.", ".a", "a..b", "a b", "a*", "a.>", "ä", "a/b", "$JS.API", strings.Repeat("a", 201)} {
		if err := CheckTopic(topic); err == nil || !strings.Contains(err.Error(), "topic is ") {
			t.Errorf("%q: %v", topic, err)
		}
		if _, err := StreamConfig(topic, 1); err == nil {
			t.Errorf("%q has a stream", topic)
		}
	}
	if _, err := StreamConfig("a.", 0); err == nil || !strings.Contains(err.Error(), "topic is") || !strings.Contains(err.Error(), "partitions is 0") {
		t.Errorf("got %v, want both problems", err)
	}
}

func TestTopic_AStreamOfStreamConfigCanBeUsed(t *testing.T) {
	for topic, partitions := range map[string]int{"orders": 1, "orders.v1": 12, "a": maxPartitions} {
		c, err := StreamConfig(topic, partitions)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := partitionsOf(topic, c, true); n != partitions || err != nil {
			t.Errorf("%s has %d partitions, %v, want %d", topic, n, err, partitions)
		}
		if _, err := partitionsOf("other", c, true); err == nil || !strings.Contains(err.Error(), `must be "other"`) {
			t.Errorf("the stream of %s as that of another topic: %v", topic, err)
		}
	}
}

func TestTopic_SubjectsAreMatchedAsTheServerDoes(t *testing.T) {
	for _, row := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.p0", "a.p0", true}, {"a.*", "a.p0", true}, {"*.p0", "a.p0", true}, {"a.>", "a.p0", true}, {">", "a.p0", true}, {"a.>", "a.b.p0", true},
		{"a.p1", "a.p0", false}, {"a", "a.p0", false}, {"a.*", "a.b.p0", false}, {"a.p0.>", "a.p0", false}, {"a.p0.*", "a.p0", false}, {"b.>", "a.p0", false},
	} {
		if got := covers([]string{"x.y", row.pattern}, row.subject); got != row.want {
			t.Errorf("%s takes %s: %t", row.pattern, row.subject, got)
		}
	}
}

func TestTopic_WhatIsWrongWithAGroupIsSaidAtOnce(t *testing.T) {
	_, err := NewGroup(nil, GroupConfig{GroupID: "a.b", Topics: []string{"a.b", "a_b", "c", "c", "d."}, Bucket: "x y", SessionTimeout: 1, WatchInterval: 1})
	for _, want := range []string{"group id is", "both would be the stream a_b", `topics has "c" twice`, `topic is "d."`, "bucket is", "session timeout is", "heartbeat interval is", "watch interval is", "jetstream is nil"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	_, err = NewPublisher(nil, PublisherConfig{PublishTimeout: 1, MaxInFlight: -1, StreamTTL: 1})
	for _, want := range []string{"publish timeout is", "max in flight is", "stream ttl is", "jetstream is nil"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}

func TestTopic_PartitionsAreSharedFairlyAndByAllAlike(t *testing.T) {
	for members := 1; members <= 5; members++ {
		for partitions := 1; partitions <= 9; partitions++ {
			all := map[string][]string{}
			for m := range members {
				all[string(rune('a'+m))] = []string{"one", "two"}
			}
			owners := share(all, map[string]int{"one": partitions, "two": 1})
			if len(owners) != partitions+1 {
				t.Fatalf("%d members have %d of %d partitions", members, len(owners), partitions+1)
			}
			least, most := len(owners), 0
			for id := range all {
				n := len(sharesOf(owners, id))
				least, most = min(least, n), max(most, n)
			}
			if most-least > 1 {
				t.Errorf("of %d partitions one of %d members has %d, and one %d", partitions+1, members, most, least)
			}
		}
	}
	owners := share(map[string][]string{"a": {"one"}, "b": {"two"}, "c": nil}, map[string]int{"one": 2, "two": 1, "nobody's": 1})
	if len(owners) != 3 || owners[source.TopicPartition{Topic: "two"}] != "b" || owners[source.TopicPartition{Topic: "one", Partition: 1}] != "a" {
		t.Errorf("members that consume different topics get %v", owners)
	}
}

func TestTopic_ACodeOfJetStreamMeansTheSameEverywhere(t *testing.T) {
	for code, want := range codes {
		err := error(&jetstream.APIError{ErrorCode: code, Description: "d"})
		if got := meaningOf(err); got != want {
			t.Errorf("%d: %v, want %v", code, got, want)
		}
		answer := &publish.Error{Fault: want.fault, Class: want.class, Err: err}
		if (publish.FaultOf(answer) == publish.FaultRecord) != (retry.Classify(answer) == retry.Validation) {
			t.Errorf("%d: the fault is %q, and the class %q", code, publish.FaultOf(answer), retry.Classify(answer))
		}
	}
	if got := meaningOf(&jetstream.APIError{ErrorCode: 1}); got != ofPartition {
		t.Errorf("an unknown code: %v", got)
	}
}
