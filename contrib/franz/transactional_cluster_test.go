//go:build cluster && unix

package franz

import (
	"fmt"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
)

// Each broker goes away in turn, with the partitions that it leads and the transactions that it coordinates: others take them over.
func TestTransactionalCluster_LeadersAndCoordinatorsThatMoveRepeatNothing(t *testing.T) {
	cluster := kafkatest.OwnThree(t, "KAFKA_HEAP_OPTS", "-Xmx300m -Xms100m")
	var faults []fault
	for n := 1; n <= 3; n++ {
		broker := cluster.Server.Node(n)
		faults = append(faults, fault{name: fmt.Sprint("killed ", n), away: broker.Kill, back: broker.Start, among: true})
	}
	first := cluster.Server.Node(1)
	faults = append(faults, fault{name: "stopped in order", away: first.Stop, back: first.Start, among: true},
		fault{name: "frozen", away: first.Pause, back: first.Unpause, among: true})
	meetFaults(t, cluster, faults...)
}
