package inbox

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/position"
)

// However often events find no room, a partition that waits is one line a minute.
func TestReport_APartitionWithoutRoomIsSaidOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	told := 0
	e := &env{}
	e.c.Logger = slog.New(slog.NewTextHandler(&log, nil))
	e.c.Observer.OnFull = func(holdfast.Event, error) { told++ }
	for n := range 20 {
		e.notifyFull(&delivery{e: holdfast.Event{ID: "e", Topic: "orders"}, from: &origin{fence: &position.Fence{Claim: position.Claim{Partition: n % 2}}}}, ErrFull)
	}
	if lines := strings.Count(log.String(), "partition is held: too many events wait"); lines != 2 || told != 20 {
		t.Errorf("20 events of two partitions are %d lines, and the observer was told of %d:\n%s", lines, told, log.String())
	}
}
