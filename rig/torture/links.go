//go:build linux

package main

import (
	"fmt"

	"github.com/holdfast-go/holdfast/rig/internal/faultproxy"
	"github.com/holdfast-go/holdfast/rig/kafkaproxy"
)

// A link is what a kind of part connects to instead of a server.
type link struct{ role, server string }

const (
	postgres = "postgres"
	broker   = "kafka"
)

var links = []link{{roleProducer, postgres}, {roleRelay, postgres}, {roleConsumer, postgres}, {rolePerson, postgres}, {roleRelay, broker}, {roleConsumer, broker}}

// pooled is the link between PgBouncer and Postgres, if there is one.
var pooled = link{"pgbouncer", postgres}

func (l link) String() string { return l.role + "-" + l.server }

// proxies are those of one link: one in front of each broker, or the one in front of Postgres. A fault of the link is made
// at all of them.
type proxies []*faultproxy.Proxy

// startProxies starts one in front of each target.
func startProxies(targets ...string) (all proxies, err error) {
	for _, target := range targets {
		p, err := faultproxy.Start(target)
		if err != nil {
			all.close()
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (all proxies) close() {
	for _, p := range all {
		_ = p.Close()
	}
}

func (all proxies) set(f faultproxy.Fault) error {
	for _, p := range all {
		if err := p.Set(f); err != nil {
			return err
		}
	}
	return nil
}

// passAnew resets all connections, and passes.
func (all proxies) passAnew() error {
	for _, p := range all {
		if _, err := p.PassAnew(); err != nil {
			return err
		}
	}
	return nil
}

// count is the sum of one counter.
func (all proxies) count(one func(faultproxy.Counts) int64) (sum int64) {
	for _, p := range all {
		sum += one(p.Counts())
	}
	return sum
}

// addresses are where to connect instead of the targets.
func (all proxies) addresses() (addresses []string) {
	for _, p := range all {
		addresses = append(addresses, p.Address())
	}
	return addresses
}

// partitionProxies are in front of the relays' link to Kafka, one for each broker: one partition misbehaves there, whichever
// broker leads it.
type partitionProxies []*kafkaproxy.Proxy

func startPartitionProxies(targets []string) (all partitionProxies, err error) {
	for _, target := range targets {
		p, err := kafkaproxy.Start(target)
		if err != nil {
			all.close()
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (all partitionProxies) close() {
	for _, p := range all {
		p.Close()
	}
}

func (all partitionProxies) set(f kafkaproxy.Fault) {
	for _, p := range all {
		p.Set(f)
	}
}

func (all partitionProxies) hits() (sum int64) {
	for _, p := range all {
		sum += p.Hits()
	}
	return sum
}

func (all partitionProxies) addresses() (addresses []string) {
	for _, p := range all {
		addresses = append(addresses, p.Address())
	}
	return addresses
}

// through says which proxy a part of a role has to connect to instead of each broker.
func (g *ground) through(role string) map[string]string {
	var addresses []string
	switch role {
	case roleRelay:
		addresses = g.kafkaproxies.addresses()
	case roleConsumer:
		addresses = g.links[link{role, broker}].addresses()
	}
	through := map[string]string{}
	for i, address := range addresses {
		through[g.kafka.Brokers[i]] = address
	}
	return through
}

// proxyOf is the address to connect to instead of a broker's. The error is for a broker that no proxy is in front of: a part
// that reached it would be beyond all faults.
func (p part) proxyOf(address string) (string, error) {
	proxy, ok := p.Through[address]
	if !ok {
		return "", fmt.Errorf("connect to broker %s: no proxy is in front of it", address)
	}
	return proxy, nil
}
