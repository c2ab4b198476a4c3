package inbox

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// Two groups under one Consumer take each partition from each other, again and again. Each says which the other is.
func TestGrouped_TwoGroupsThatShareAConsumerAreNamed(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	const saying = "another group has read this partition"
	events := eventsOf("", 20)
	consume := func(group string) (log *lines, stop func()) {
		log = &lines{}
		in := b.inbox(func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(log, nil)) })
		in.Handle("order.placed", effectOf)
		g := newFakeGeneration(logOf(events...))
		g.group = group
		stop = b.consumeFake(in, g)
		// A stop after the assignment's commit, and before its answer, would keep the node from saying anything.
		wait.Until(t, "the partition is assigned", func() bool { return strings.Contains(log.String(), "partition assigned") })
		b.awaitSettled(20)
		return log, stop
	}
	first, stopFirst := consume("billing")
	second, stopSecond := consume("reports") // The first has not released the partition.
	wait.Until(t, "it names the first group", func() bool {
		return strings.Contains(second.String(), "consumer=billing topic=orders partition=0 group=reports other_group=billing")
	})
	stopFirst()
	stopSecond()
	for _, c := range []struct {
		group string
		clean bool
		says  int
	}{
		{"reports", true, 0},
		{"renamed", true, 0}, // after a stop in order
		{"", true, 0},        // a source that does not tell
		{"billing", true, 0}, // whose group came before is not known
		{"billing", false, 0},
		{"renamed", false, 1},
	} {
		t.Run(fmt.Sprintf("%s, clean %t", c.group, c.clean), func(t *testing.T) {
			b.count("with unclean as (update holdfast.consumer_position set clean = $1 returning 1) select count(*) from unclean", c.clean)
			log, stop := consume(c.group)
			stop()
			if n := strings.Count(log.String(), saying); n != c.says {
				t.Errorf("%d lines name another group, want %d", n, c.says)
			}
		})
	}
	if n := strings.Count(first.String(), saying); n != 0 {
		t.Errorf("the first group names another %d times", n)
	}
	if n := b.count("select count(*) from effect"); n != 20 {
		t.Errorf("%d effects, want 20", n)
	}
}
