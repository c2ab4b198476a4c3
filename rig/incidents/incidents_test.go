package incidents

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// dialer is what kafkago.Connection has as Dial.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)

// errPlanned is why handlers fail.
var errPlanned = errors.New("planned")

// making are the incidents by their titles in the page. Each builds what is healthy, calls healthy, makes the incident, and returns
// what to do about it: what the page says.
var making = map[string]func(*scene) (over func()){
	"No relay runs":                 noRelay,
	"Relay lag grows":               lockedLanes,
	"The broker is away":            brokerAway,
	"A topic is missing":            topicMissing,
	"A partition takes nothing":     partitionHeld,
	"Events wait in relays":         parkedLong,
	"Relays lose lanes":             laneTaken,
	"The log grows":                 logFull,
	"The broker refuses events":     recordRefused,
	"Dead letters rise":             lettersRise,
	"A key waits":                   keysHeld,
	"Handlers fail":                 handlersFail,
	"A handler hangs":               handlerHangs,
	"A type is skipped":             typeSkipped,
	"No node handles a stored type": noHandler,
	"Too many events wait":          storedFull,
	"A dependency is away":          dependencyAway,
	"No node runs a backfill":       backfillStopped,
	"A backfill waits":              backfillWaits,
	"An event id is used twice":     idTwice,
	"Consumer lag grows":            consumerIdle,
	"Offsets are out of range":      offsetsGone,
	"A topic is recreated":          topicAgain,
	"A pool is too small":           poolSmall,
	"Postgres is away":              postgresAway,
	"Postgres fails over":           postgresCrashes,
	"A restored copy":               restoredCopy,
	"Old events are written":        oldEvents,
	"Nodes lose partitions":         partitionsTaken,
	"Records come again":            topicAgainLonger,
	"The gauges are missing":        gaugesMissing,
	"Requests need a person":        answerUnusable,
	"Requests are refused":          requestsRefused,
	"Webhooks are refused":          webhooksRefused,
}

func TestIncidents_EachIncidentShowsAsThePageSays(t *testing.T) {
	skip.InShort(t, "it makes each incident on real servers, for minutes")
	var titles []string
	for _, i := range incidentsOf(t, read(t, operations+"/runbooks.md")) {
		titles = append(titles, i.title)
		t.Run(i.anchor, func(t *testing.T) {
			t.Parallel()
			begin, known := making[i.title]
			if !known {
				t.Fatalf("nobody makes %q", i.title)
			}
			s := setup(t, i)
			over := begin(s)
			s.shows()
			over()
			s.isOver()
		})
	}
	for title := range making {
		if !slices.Contains(titles, title) {
			t.Errorf("the page does not have %q", title)
		}
	}
}
