package main

import (
	"context"

	"github.com/holdfast-go/holdfast/waiting"
)

// statusPauses lists what people have paused.
const statusPauses = `-- status.pauses
select p.consumer, p.topic, p.key, p.by, p.reason, round(extract(epoch from now() - p.at))::bigint
  from holdfast.pause p order by p.consumer, p.topic, p.key limit 1000`

// pauses shows what is paused. Somebody has to resume it, however well all else is.
func (s *status) pauses(ctx context.Context) error {
	s.paused = map[waiting.Pausable]bool{}
	var of waiting.Pausable
	var by, reason string
	var since int64
	return s.each(ctx, section{sql: statusPauses, head: "PAUSED\tFOR\tBY\tREASON", name: "paused", fields: "consumer topic key by reason seconds",
		scans: []any{&of.Consumer, &of.Topic, &of.Key, &by, &reason, &since}}, func() string {
		s.paused[of] = true
		name := clean(of.String())
		s.say("%s is paused for %s, by %s: holdfast resume%s --reason WHY", name, span(since), clean(by), flags(of))
		return name + "\t" + span(since) + "\t" + clean(by) + "\t" + clean(reason)
	})
}
