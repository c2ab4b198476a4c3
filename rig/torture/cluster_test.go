//go:build linux && cluster

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// The runs come one after another: each kills brokers that they share.
func TestCluster_OraclesJudgeARunOnThreeBrokers(t *testing.T) {
	t.Parallel()
	atOnce <- struct{}{}
	defer func() { <-atOnce }()
	cluster, err := startBrokers(t.Context(), 3, "")
	if err != nil {
		skip.Without(t, "real Kafka", "start Docker", err)
	}
	t.Cleanup(cluster.Stop)
	for _, c := range []struct {
		bug    string
		faults []string
		limit  time.Duration // not to wait long for what a bug prevents
	}{
		{"", []string{"kill-broker", "move-leaders"}, 0},
		{bugLose, []string{"move-leaders"}, 15 * time.Second},
	} {
		t.Run("bug "+c.bug, func(t *testing.T) {
			r, err := smallOn(t, t.Context(), cluster, Options{Seed: 5, Brokers: 3, bug: c.bug, Faults: c.faults, limit: c.limit})
			if err != nil {
				t.Fatal(err)
			}
			if lost := says(r.Verdict, oracle.NoLoss, oracle.Lost, ""); lost != (c.bug != "") {
				t.Errorf("events are lost is %t", lost)
			}
			if r.Holds() != (c.bug == "") {
				t.Errorf("the run holds is %t", r.Holds())
			}
			for _, name := range c.faults {
				if r.count(name) == 0 || !strings.Contains(r.Command(), "-brokers 3") {
					t.Errorf("%s was not made, or not on three brokers: %s", name, r.Command())
				}
			}
		})
	}
}
