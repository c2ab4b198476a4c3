package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/rig/kafkaproxy"
)

const (
	slowPartitions = 12
	slowPartition  = 5
)

// troubles are what one partition of twelve can do to the other eleven. One that lasts for a time ends then, and the load
// with it; the others last as long as the load.
var troubles = []struct {
	name, figure string
	lasts        time.Duration
	fault        func(topic string, partition int) kafkaproxy.Fault
}{
	{"acknowledges after 3 s", "slow partition, 3 s: p99 of the 11 others, against none", 0, func(topic string, partition int) kafkaproxy.Fault {
		return kafkaproxy.Late(topic, partition, 3*time.Second)
	}},
	{"has no leader for 8 s", "slow partition, leaderless for 8 s: p99 of the 11 others, against none", 8 * time.Second, kafkaproxy.Leaderless},
	{"hangs for 60 s", "slow partition, hanging for 60 s: p99 of the 11 others, against none", 60 * time.Second, kafkaproxy.Hang},
	{"refuses for ever", "slow partition, refusing for ever: p99 of the 11 others, against none", 0, kafkaproxy.Refuse},
}

var slowFigures = func() (names []string) {
	for _, t := range troubles {
		names = append(names, t.figure)
	}
	return names
}()

// measureSlow commits 500 events a second for twelve partitions, and compares the times from COMMIT to acknowledgement of
// eleven of them while the twelfth is in trouble with the times of the same load without trouble, moments before. All goes
// through the same proxy. Only the troubles that -only selects are made.
func measureSlow(ctx context.Context, e *env, r *report) error {
	proxy, err := kafkaproxy.Start(e.kafka.Brokers[0])
	if err != nil {
		return err
	}
	defer proxy.Close()
	defer func(before int) { e.partitions = before }(e.partitions)
	e.partitions = slowPartitions
	rounds := max(1, e.rounds-1)
	r.progress("slow partition: %d events/s, %d rounds", latencyRate, rounds)
	free, held := make([][]float64, len(troubles)), make([][]float64, len(troubles))
	for round := range rounds {
		for i, t := range troubles {
			if !selected(e.options.only, []string{t.figure}) {
				continue
			}
			without, err := e.latencyOfOthers(ctx, r, proxy, -1)
			if err != nil {
				return err
			}
			with, err := e.latencyOfOthers(ctx, r, proxy, i)
			if err != nil {
				return fmt.Errorf("one partition %s: %w", t.name, err)
			}
			free[i], held[i] = append(free[i], milliseconds(without)), append(held[i], milliseconds(with))
			r.progress("slow partition %d/%d: %s: p99 of the others %s ms, %s without", round+1, rounds, t.name, number(milliseconds(with)), number(milliseconds(without)))
		}
	}
	r.info("commit to acknowledgement, 12 partitions through the proxy, p99 of 11", median(slices.Concat(free...)), "ms")
	for i, t := range troubles {
		if len(held[i]) == 0 {
			continue
		}
		r.info(fmt.Sprintf("the same while the twelfth %s", t.name), median(held[i]), "ms")
		r.ratio(t.figure, held[i], free[i], "ms", atMost(2))
	}
	return nil
}

// latencyOfOthers is the p99 of the eleven partitions while the twelfth has trouble; -1 is none. Afterwards the trouble
// ends, and all events must arrive.
func (e *env) latencyOfOthers(ctx context.Context, r *report, proxy *kafkaproxy.Proxy, trouble int) (p99 time.Duration, err error) {
	database, topic, drop, err := e.scratch(ctx)
	if err != nil {
		return 0, err
	}
	defer drop()
	const warmUp = latencyRate
	load := e.slow
	if trouble >= 0 && troubles[trouble].lasts > 0 && !e.options.quick {
		load = troubles[trouble].lasts
	}
	n := warmUp + int(load.Seconds()*latencyRate)
	l := newLatencies(e, n)
	l.connection.Dial = kafkaproxy.Dial(proxy.Address())
	defer proxy.Set(kafkaproxy.Pass())
	l.due = func(number int) {
		switch {
		case trouble < 0:
		case number == warmUp:
			proxy.Set(troubles[trouble].fault(topic, slowPartition))
		case number == n-1:
			proxy.Set(kafkaproxy.Pass())
		}
	}
	if err := e.exactly(ctx, r, topic, n, "relay", func() error { return l.measure(ctx, e, database, topic) }); err != nil {
		return 0, err
	}
	var spans []time.Duration
	for number := warmUp; number < n; number++ {
		if kafkago.Murmur2(holdfast.Event{ID: strconv.Itoa(number), Key: l.keys[number]}, slowPartitions) != slowPartition {
			spans = append(spans, l.began.Add(time.Duration(l.acknowledged[number].Load())).Sub(l.sent[number]))
		}
	}
	slices.Sort(spans)
	return spans[len(spans)*99/100], nil
}
