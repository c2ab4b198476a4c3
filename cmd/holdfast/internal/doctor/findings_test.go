package doctor

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/state"
)

func TestFindings_DoctorDecidesByWhatItHasSeen(t *testing.T) {
	t.Parallel()
	good := topicSeen{name: "orders", replicas: 3, minInsync: 2, maxMessage: 1 << 20, largest: 1<<20 - 16<<10}
	topic := func(change func(*topicSeen)) []Finding { s := good; change(&s); return judgeTopic(s) }
	for _, c := range []struct {
		name        string
		found       []Finding
		state, says string
	}{
		{"a pool that is just large enough", []Finding{judgePool(8, 18, true)}, OK, "18 connections, enough for 8 workers"},
		{"a pool that is too small", []Finding{judgePool(8, 17, true)}, Warn, "pool_max_conns=18"},
		{"nobody said how many workers", []Finding{judgePool(0, 4, false)}, NotMade, "doctor sees no service's pool, pass --workers"},
		{"nobody said how large the pool is", []Finding{judgePool(8, 4, false)}, Warn, "without --pool-size, has 4 connections, too few"},
		{"connections left", []Finding{judgeConnections(89, 100)}, OK, "89 of"},
		{"hardly any connections left", []Finding{judgeConnections(90, 100)}, Warn, "max_connections = 200"},
		{"clocks that agree", []Finding{judgeClock(-time.Second, 0)}, OK, "within 1s"},
		{"a slow answer hides a second", []Finding{judgeClock(2*time.Second, 2*time.Second)}, OK, "within 3s"},
		{"a clock that is behind", []Finding{judgeClock(-1001*time.Millisecond, 0)}, Warn, "-1.001s away"},
		{"a pooler in statement mode", []Finding{judgePooler(poolerSeen{statement: true})}, Fail, "pool_mode = transaction"},
		{"a pooler in session mode", []Finding{judgePooler(poolerSeen{between: true, standalone: true})}, OK, "keeps sessions apart"},
		{"no pooler", []Finding{judgePooler(poolerSeen{standalone: true})}, OK, "no pooler"},
		{"a young transaction", judgeXmin([]xminHolder{{kind: "session", pid: 7, seconds: 299, age: 999_999}}, 300, 1_000_000), OK, "for 5m0s"},
		{"an old transaction", judgeXmin([]xminHolder{{kind: "session", pid: 7, name: "psql", seconds: 300, age: 1}}, 300, 1_000_000), Warn, "process 7 (psql) has held xmin for 5m0s and 1 transactions"},
		{"a slot that nobody reads", judgeXmin([]xminHolder{{kind: "slot", name: "it's", seconds: -1, age: 1_000_000}}, 300, 1_000_000), Warn, "pg_drop_replication_slot('it''s')"},
		{"a standby with a long query", judgeXmin([]xminHolder{{kind: "standby", name: "b", seconds: -1, age: 1_000_000}}, 300, 1_000_000), Warn, "hot_standby_feedback"},
		{"a lane that another relay got", []Finding{judgeNames(state.Owners{3: {Name: "a", Epoch: 1}}, state.Owners{3: {Name: "b", Epoch: 2}})}, OK, "no relay"},
		{"a lane that its owner claimed again", []Finding{judgeNames(state.Owners{3: {Name: "a", Epoch: 1}, 5: {Name: "a", Epoch: 1}}, state.Owners{3: {Name: "a", Epoch: 2}, 5: {Name: "a", Epoch: 3}})}, Fail, "relay a has claimed lanes 3, 5 again"},
		{"a topic as it should be", judgeTopic(good), OK, "3 replicas, min.insync.replicas 2"},
		{"messages that are just large enough", topic(func(s *topicSeen) { s.maxMessage = s.largest + 16<<10 }), OK, ""},
		{"messages that are too small", topic(func(s *topicSeen) { s.maxMessage = s.largest + 16<<10 - 1 }), Fail, "max.message.bytes=1048576"},
		{"one replica", topic(func(s *topicSeen) { s.replicas, s.minInsync = 1, 1 }), Warn, "one replica"},
		{"one replica in sync is enough", topic(func(s *topicSeen) { s.minInsync = 1 }), Warn, "min.insync.replicas=2"},
		{"all replicas must be in sync", topic(func(s *topicSeen) { s.minInsync = 3 }), Warn, "min.insync.replicas is 3 of 3 replicas"},
		{"a topic that is missing", topic(func(s *topicSeen) { s.err = kafka.UnknownTopicOrPartition }), Fail, "kafka-topics.sh --create --topic orders"},
		{"a topic that is forbidden", topic(func(s *topicSeen) { s.err = kafka.TopicAuthorizationFailed }), Fail, "kafka-acls.sh"},
		{"a topic in another kind of trouble", topic(func(s *topicSeen) { s.err = errors.New("odd") }), Fail, "odd"},
		{"a configuration that is hidden", topic(func(s *topicSeen) { s.configsForbidden, s.maxMessage, s.minInsync = true, 0, 0 }), Warn, "DescribeConfigs"},
	} {
		if len(c.found) != 1 || c.found[0].State != c.state || !strings.Contains(c.found[0].Says+c.found[0].Command, c.says) {
			t.Errorf("%s: %+v", c.name, c.found)
		}
		if c.found[0].State != OK && c.found[0].Command == "" {
			t.Errorf("%s: no command helps: %+v", c.name, c.found)
		}
	}
}
