package main

import (
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// Twice, because the second run finds the schema, the group and its offsets.
func TestOwn_ItGreetsEachTimeItRuns(t *testing.T) {
	db, cluster := pgtest.New(t), kafkatest.InProcess(t)
	if _, err := cluster.Client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: "greetings", NumPartitions: 1, ReplicationFactor: 1}}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		out, err := exampletest.Command([]string{"DATABASE_URL=" + db.DSN, "KAFKA_BROKERS=" + strings.Join(cluster.Brokers, ",")}).CombinedOutput()
		if err != nil || strings.Count(string(out), "hello, world\n") != 1 {
			t.Errorf("%v: %s", err, out)
		}
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.inbox where result = 'handled'"); n != 2 {
		t.Errorf("%d events were handled, want 2", n)
	}
}
