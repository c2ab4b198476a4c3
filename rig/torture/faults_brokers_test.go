//go:build linux

package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/kafkaclient"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// led is a partition with three replicas, and its leader.
func led(topic string, id, leader int) kafka.Partition {
	p := kafka.Partition{Topic: topic, ID: id, Replicas: []kafka.Broker{{ID: 1}, {ID: 2}, {ID: 3}}, Leader: kafka.Broker{ID: leader}}
	if leader > 0 {
		p.Leader.Host = "127.0.0.1"
	}
	return p
}

func TestFaultsBrokers_TheBrokerThatLeadsMostIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		leaders  []int
		id, most int
	}{
		"one leads most":         {[]int{3, 1, 3, 2}, 3, 2},
		"the lowest of equals":   {[]int{3, 2, 2, 3, 1}, 2, 2},
		"some have no leader":    {[]int{0, 0, 0, 2}, 2, 1},
		"none has a leader left": {[]int{0, 0}, 0, 0},
	} {
		var of []kafka.Partition
		for i, leader := range c.leaders {
			of = append(of, led("orders", i, leader))
		}
		if id, most := mostLeads(of); id != c.id || most != c.most {
			t.Errorf("%s: broker %d leads %d", name, id, most)
		}
	}
}

func TestFaultsBrokers_LeadersMoveToTheNextReplica(t *testing.T) {
	t.Parallel()
	of := []kafka.Partition{led("orders", 0, 1), led("orders", 1, 3), led("stock", 0, 0)}
	got := nextReplicas(of)
	for p, want := range map[partition][]int{{"orders", 0}: {2, 3, 1}, {"orders", 1}: {1, 2, 3}, {"stock", 0}: {1, 2, 3}} {
		if !slices.Equal(got[p], want) {
			t.Errorf("%v gets %v, want %v", p, got[p], want)
		}
	}
	after := []kafka.Partition{led("orders", 0, 2), led("orders", 1, 0), led("stock", 0, 0)}
	if n := changedLeaders(of, after); n != 1 {
		t.Errorf("%d leaders have changed", n)
	}
}

func TestFaultsBrokers_ARunLooksAtItsOwnPartitionsOnly(t *testing.T) {
	t.Parallel()
	g := &ground{topics: []string{"a-orders", "a-stock"}, late: "a-late"}
	mine := g.mine([]kafka.Partition{led("a-orders", 0, 1), led("b-orders", 0, 1), led("a-late", 0, 1), led(offsetsTopic, 0, 1)})
	var names []string
	for _, p := range mine {
		names = append(names, p.Topic)
	}
	if want := []string{"a-orders", "a-late", offsetsTopic}; !slices.Equal(names, want) {
		t.Errorf("it looks at %q", names)
	}
}

func TestFaultsBrokers_FaultsOfOneBrokerNeedThree(t *testing.T) {
	t.Parallel()
	one := &ground{kafka: &kafkaserver.Server{}} // it has no nodes
	for _, f := range brokerFaults() {
		if why := f.impossible(one); !strings.Contains(why, "-brokers 3") {
			t.Errorf("%s is possible with one broker: %q", f.name, why)
		}
	}
}

func TestFaultsBrokers_TheDocumentSaysWhatBrokerFaultsDoWithThree(t *testing.T) {
	t.Parallel()
	_, table, found := strings.Cut(document(t), "| fault | with three brokers |")
	table, _, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatal("docs/project/torture.md has no such table")
	}
	var patterns []string
	for line := range strings.Lines(table) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range regexp.MustCompile("`([a-z*-]+)`").FindAllStringSubmatch(cell, -1) {
			patterns = append(patterns, m[1])
		}
	}
	for _, f := range append(kafkaFaults(), brokerFaults()...) {
		if !slices.ContainsFunc(chosen(patterns), func(c fault) bool { return c.name == f.name }) {
			t.Errorf("the table has no row for %s", f.name)
		}
	}
}

func TestFaultsBrokers_APartReachesEachBrokerThroughItsProxyOnly(t *testing.T) {
	t.Parallel()
	consumers, err := startProxies("127.0.0.1:1", "127.0.0.1:2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(consumers.close)
	g := &ground{kafka: &kafkaserver.Server{Cluster: kafkaclient.New("127.0.0.1:1", "127.0.0.1:2")}, links: map[link]proxies{{roleConsumer, broker}: consumers}}
	p := part{Through: g.through(roleConsumer)}
	for i, address := range g.kafka.Brokers {
		if got, err := p.proxyOf(address); err != nil || got != consumers[i].Address() {
			t.Errorf("%s is reached at %s, %v", address, got, err)
		}
	}
	if _, err := p.proxyOf("127.0.0.1:3"); err == nil {
		t.Error("a broker is reached past the proxies")
	}
	if n := len(g.through(roleProducer)); n != 0 {
		t.Errorf("a producer has %d ways to Kafka", n)
	}
}
