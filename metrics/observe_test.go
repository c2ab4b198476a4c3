package metrics_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/metrics"
)

// nowhere says of no partition where it ends.
func nowhere(context.Context, []source.TopicPartition) (map[source.TopicPartition]int64, error) {
	return nil, nil
}

const ofDatabase, ofLag = "holdfast.backlog.lanes", "holdfast.consumer.lag" // the first gauges of each

func TestObserve_AWrongConfigurationIsOneErrorThatNamesAll(t *testing.T) {
	t.Parallel()
	g := newGauges()
	_, err := metrics.ObserveDatabase(g, nil, metrics.DatabaseConfig{Schema: "a b", Interval: time.Millisecond, Timeout: -1, EndsFunc: nowhere})
	if err == nil || len(g.sets) > 0 {
		t.Fatalf("it was taken: %v, with %d sets of gauges", err, len(g.sets))
	}
	for _, want := range []string{"pool is nil", "a b", "interval is 1ms", "timeout is -1ns"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
}

func TestObserve_TheLagIsObservedOnlyWithTheEndsOfPartitions(t *testing.T) {
	t.Parallel()
	for name, try := range map[string]struct {
		c    metrics.DatabaseConfig
		want []string
	}{
		"without ends": {metrics.DatabaseConfig{}, []string{ofDatabase}},
		"with ends":    {metrics.DatabaseConfig{EndsFunc: nowhere}, []string{ofDatabase, ofLag}},
	} {
		g := newGauges()
		stop, err := metrics.ObserveDatabase(g, new(pgxpool.Pool), try.c)
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Sorted(maps.Keys(g.sets)); !slices.Equal(got, try.want) {
			t.Errorf("%s: it observes %q, want %q", name, got, try.want)
		}
		if err := stop(); err != nil || len(g.sets) > 0 {
			t.Errorf("%s: after stop it observes %d sets of gauges: %v", name, len(g.sets), err)
		}
	}
}

func TestObserve_AGaugeThatCannotBeMadeLeavesNothingObserved(t *testing.T) {
	t.Parallel()
	for _, refused := range []string{ofDatabase, ofLag} {
		g := newGauges()
		g.refuse = refused
		if _, err := metrics.ObserveDatabase(g, new(pgxpool.Pool), metrics.DatabaseConfig{EndsFunc: nowhere}); !errors.Is(err, errRefused) || len(g.sets) > 0 {
			t.Errorf("%s: got %v, and it observes %d sets of gauges", refused, err, len(g.sets))
		}
	}
}
