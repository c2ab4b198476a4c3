package oracle

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/history"
)

// large is a run of n events with one consumer, in which a relay is killed at every 20th batch of 500 and its batch
// is sent again: what parts say of it is 2.5 entries an event.
func large(n int) Run {
	const lanes, partitions, batch = 8, 8, 500
	s := &script{now: begun}
	s.run.Lanes, s.run.Consumers = lanes, []string{"c"}
	s.run.Entries = make([]history.Entry, 0, 5*n/2+n/100)
	ids := make([]string, n)
	var queue [lanes][]int
	numbers := make([]int64, 10_000)
	for i := range n {
		k := i * 7919 % len(numbers)
		numbers[k]++
		ids[i] = fmt.Sprintf("01890a5d-ac96-774b-bcce-%012x", i)
		w := Written{ids[i], "orders", fmt.Sprintf("customer-%d", k), numbers[k], "", "", nil}
		s.run.Written = append(s.run.Written, w)
		l := lane.Of(w.Key, w.ID, lanes)
		queue[l] = append(queue[l], i)
	}
	for i := 0; i < n; i += 4 {
		s.did("producer/0", 1, history.Intend, "", ids[i:min(n, i+4)]...)
		s.did("producer/0", 1, history.Commit, history.OK, ids[i:min(n, i+4)]...)
	}
	var logs [partitions][]Record
	for l, places := range queue {
		epoch := int64(1)
		for at := 0; at < len(places); at += batch {
			var sent []string
			for _, i := range places[at:min(len(places), at+batch)] {
				sent = append(sent, ids[i])
			}
			tries := 1
			if at/batch%20 == 19 {
				tries = 2
				s.say("faults", 1, history.Entry{Op: history.Fault, Text: "kill"})
				s.say("faults", 1, history.Entry{Op: history.Heal, Text: "kill"})
			}
			for range tries {
				pid := 100*l + int(epoch)
				s.publish("relay/0", pid, sent...)
				for _, i := range places[at:min(len(places), at+batch)] {
					w := s.run.Written[i]
					p := lane.Of(w.Key, "", partitions)
					logs[p] = append(logs[p], Record{w.ID, w.Topic, w.Key, p, int64(len(logs[p])), ""})
				}
				epoch++
				s.say("relay/0", pid+1, history.Entry{Op: history.Claim, Lane: l, Epoch: epoch})
			}
			if tries == 2 {
				s.say("faults", 1, history.Entry{Op: history.Recovered, Text: "kill"})
			}
		}
	}
	for _, log := range logs {
		s.run.Records = append(s.run.Records, log...)
	}
	for i, w := range s.run.Written {
		s.did("c/0", 2, history.Effect, "", ids[i:i+1]...)
		s.did("c/0", 2, history.Receive, history.OK, ids[i:i+1]...)
		s.run.Effects = append(s.run.Effects, Effect{Consumer: "c", ID: w.ID, Key: w.Key})
	}
	return s.run
}

// BenchmarkAMillionEvents judges a run of 1,000,000 events: it must stay below 10 s, and grow with the events only.
func BenchmarkAMillionEvents(b *testing.B) {
	for _, n := range []int{250_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			r := large(n)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			for b.Loop() {
				if v := Judge(r); !v.Holds() || v.Figures.Duplicates == 0 {
					b.Fatal(v)
				}
			}
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N)/float64(n), "B/event")
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
