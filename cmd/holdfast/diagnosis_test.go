package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/state"
)

func TestDoctorDecidesByWhatItHasSeen(t *testing.T) {
	t.Parallel()
	good := topicSeen{name: "orders", replicas: 3, minInsync: 2, maxMessage: 1 << 20, largest: 1<<20 - 16<<10}
	topic := func(change func(*topicSeen)) []finding { s := good; change(&s); return judgeTopic(s) }
	for _, c := range []struct {
		name        string
		found       []finding
		state, says string
	}{
		{"a pool that is just large enough", []finding{judgePool(8, 18, true)}, stateOK, "18 connections is enough for 8 workers"},
		{"a pool that is too small", []finding{judgePool(8, 17, true)}, stateWarn, "pool_max_conns=18"},
		{"nobody said how many workers", []finding{judgePool(0, 4, false)}, stateSkip, "doctor sees no service's pool, pass --workers"},
		{"nobody said how large the pool is", []finding{judgePool(8, 4, false)}, stateWarn, "as doctor's own, has 4 connections (--pool-size says another size) is too small"},
		{"connections left", []finding{judgeConnections(89, 100)}, stateOK, "89 of"},
		{"hardly any connections left", []finding{judgeConnections(90, 100)}, stateWarn, "max_connections = 200"},
		{"clocks that agree", []finding{judgeClock(-time.Second, 0)}, stateOK, "within 1s"},
		{"a slow answer hides a second", []finding{judgeClock(2*time.Second, 2*time.Second)}, stateOK, "within 3s"},
		{"a clock that is behind", []finding{judgeClock(-1001*time.Millisecond, 0)}, stateWarn, "-1.001s away"},
		{"a pooler in statement mode", []finding{judgePooler(poolerSeen{statement: true})}, stateFail, "pool_mode = transaction"},
		{"a pooler in session mode", []finding{judgePooler(poolerSeen{between: true, standalone: true})}, stateOK, "keeps sessions apart"},
		{"no pooler", []finding{judgePooler(poolerSeen{standalone: true})}, stateOK, "no pooler"},
		{"a young transaction", judgeXmin([]xminHolder{{kind: "session", pid: 7, seconds: 299, age: 999_999}}, 300, 1_000_000), stateOK, "for 5m0s"},
		{"an old transaction", judgeXmin([]xminHolder{{kind: "session", pid: 7, name: "psql", seconds: 300, age: 1}}, 300, 1_000_000), stateWarn, "process 7 (psql) has held xmin for 5m0s and 1 transactions"},
		{"a slot that nobody reads", judgeXmin([]xminHolder{{kind: "slot", name: "it's", seconds: -1, age: 1_000_000}}, 300, 1_000_000), stateWarn, "pg_drop_replication_slot('it''s')"},
		{"a standby with a long query", judgeXmin([]xminHolder{{kind: "standby", name: "b", seconds: -1, age: 1_000_000}}, 300, 1_000_000), stateWarn, "hot_standby_feedback"},
		{"a lane that another relay got", []finding{judgeNames(state.Owners{3: {Name: "a", Epoch: 1}}, state.Owners{3: {Name: "b", Epoch: 2}})}, stateOK, "no relay"},
		{"a lane that its owner claimed again", []finding{judgeNames(state.Owners{3: {Name: "a", Epoch: 1}, 5: {Name: "a", Epoch: 1}}, state.Owners{3: {Name: "a", Epoch: 2}, 5: {Name: "a", Epoch: 3}})}, stateFail, "relay a has claimed lanes 3, 5 again"},
		{"a topic as it should be", judgeTopic(good), stateOK, "3 replicas, min.insync.replicas 2"},
		{"messages that are just large enough", topic(func(s *topicSeen) { s.maxMessage = s.largest + 16<<10 }), stateOK, ""},
		{"messages that are too small", topic(func(s *topicSeen) { s.maxMessage = s.largest + 16<<10 - 1 }), stateFail, "max.message.bytes=1048576"},
		{"one replica", topic(func(s *topicSeen) { s.replicas, s.minInsync = 1, 1 }), stateWarn, "one replica"},
		{"one replica in sync is enough", topic(func(s *topicSeen) { s.minInsync = 1 }), stateWarn, "min.insync.replicas=2"},
		{"all replicas must be in sync", topic(func(s *topicSeen) { s.minInsync = 3 }), stateWarn, "min.insync.replicas is 3 of 3 replicas"},
		{"a topic that is missing", topic(func(s *topicSeen) { s.err = kafka.UnknownTopicOrPartition }), stateFail, "kafka-topics.sh --create --topic orders"},
		{"a topic that is forbidden", topic(func(s *topicSeen) { s.err = kafka.TopicAuthorizationFailed }), stateFail, "kafka-acls.sh"},
		{"a topic in another kind of trouble", topic(func(s *topicSeen) { s.err = errors.New("odd") }), stateFail, "odd"},
		{"a configuration that is hidden", topic(func(s *topicSeen) { s.configsForbidden, s.maxMessage, s.minInsync = true, 0, 0 }), stateWarn, "DescribeConfigs"},
	} {
		if len(c.found) != 1 || c.found[0].State != c.state || !strings.Contains(c.found[0].Says+c.found[0].Command, c.says) {
			t.Errorf("%s: %+v", c.name, c.found)
		}
		if c.found[0].State != stateOK && c.found[0].Command == "" {
			t.Errorf("%s: no command helps: %+v", c.name, c.found)
		}
	}
}
