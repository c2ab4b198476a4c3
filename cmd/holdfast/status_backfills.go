package main

import (
	"context"
	"fmt"
	"math"

	"github.com/holdfast-go/holdfast/internal/backfill"
	"github.com/holdfast-go/holdfast/waiting"
)

func (s *status) backfills(ctx context.Context) error {
	var b backfill.Row
	var state string
	var rate, left int64
	return s.each(ctx, section{sql: backfill.Rows, head: "CONSUMER\tBACKFILLED\tOF\tPARTITIONS\tPER SECOND\tTIME LEFT\tTOLD\tSTATE", name: "backfills",
		fields: "consumer done left partitions partitions_left - - - seconds told_seconds_ago ended recent waits error per_second time_left_seconds state",
		scans: []any{&b.Consumer, &b.Done, &b.Remaining, &b.Partitions, &b.PartitionsLeft, &b.Rate, &b.BeganAt, &b.ToldAt, &b.Took, &b.Told, &b.Ended, &b.Recent, &b.Waits,
			&b.Error}, computed: []any{&rate, &left, &state}}, func() string {
		rate, left, state = whole(b.Rate), whole(b.SecondsLeft()), b.State()
		timeLeft, perSecond := "-", "-"
		if b.Runs() {
			perSecond = fmt.Sprint(rate)
			if left >= 0 {
				timeLeft = span(left)
			}
		}
		if b.Waiting() && !s.paused[waiting.Pausable{Consumer: b.Consumer}] {
			s.say("the backfill of consumer %s waits: %s", clean(b.Consumer), clean(b.Waits))
		}
		return fmt.Sprintf("%s\t%d\t%d\t%d of %d\t%s\t%s\t%s ago\t%s", clean(b.Consumer), b.Done, b.All(), b.PartitionsDone(), b.Partitions, perSecond, timeLeft, span(b.Told), clean(state))
	})
}

// whole rounds as Postgres does.
func whole(n float64) int64 { return int64(math.RoundToEven(n)) }
