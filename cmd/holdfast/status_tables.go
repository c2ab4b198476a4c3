package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/waiting"
)

// The bounds of what status counts: a count that has reached its bound is printed with a plus.
const (
	manyEvents = 10_000 // stored events of a consumer, dead letters
	manyRows   = 1_000  // parked and scheduled events of a lane, events of a key
	manyKeys   = 200    // keys of a consumer
	manyHeads  = 20     // stored events of a type that are due, of which one may be taken by no node
	manySpots  = 100    // topics and partitions of a lane that take nothing
	manyOldest = 2_000  // stored events of a consumer whose keys are looked at, the oldest first
)

// atMost prints a count whose bound is most.
func atMost(n, most int64) string {
	if n >= most {
		return fmt.Sprint(most, "+")
	}
	return fmt.Sprint(n)
}

func (s *status) letters(ctx context.Context) error {
	s.lettersOf, s.lettersIn = map[string]int64{}, map[int64]int64{}
	var lane, letters, seen int64
	var consumer string
	err := s.each(ctx, section{sql: statusLetters, args: []any{manyEvents}, name: "open_letters", fields: "lane consumer letters", scans: []any{&lane, &consumer, &letters, &seen}}, func() string {
		s.lettersOf[consumer] += letters
		if consumer == "" {
			s.lettersIn[lane] += letters
		}
		s.lettersSeen = seen >= manyEvents
		return ""
	})
	if s.lettersSeen {
		s.say("%d or more dead letters are open or being re-delivered; only the first %d are counted here: holdfast dlq groups", manyEvents, manyEvents)
	}
	return err
}

func (s *status) held(ctx context.Context) error {
	s.holds = map[int64][]string{}
	waitingFor := map[string]int64{}
	var topics []string
	var lane, partition, events int64
	var topic string
	err := s.each(ctx, section{sql: statusHeld, args: []any{manyRows, manySpots}, name: "held", fields: "lane topic partition events", scans: []any{&lane, &topic, &partition, &events}}, func() string {
		if partition >= 0 {
			s.holds[lane] = append(s.holds[lane], fmt.Sprintf("partition %d of %s", partition, clean(topic)))
			return ""
		}
		if s.paused[waiting.Pausable{Topic: topic}] {
			s.holds[lane] = append(s.holds[lane], "topic "+clean(topic)+", which is paused")
			return ""
		}
		s.holds[lane] = append(s.holds[lane], "topic "+clean(topic))
		if waitingFor[topic] == 0 {
			topics = append(topics, topic)
		}
		waitingFor[topic] += events
		return ""
	})
	for _, topic := range topics {
		s.say("topic %s is missing, or the relay may not write to it: create it or grant the rights; %s %s for it. If it will not come back: holdfast waiting give-up --help",
			clean(topic), count(int(waitingFor[topic]), "event"), verb(int(waitingFor[topic]), "waits", "wait"))
	}
	return err
}

func (s *status) lanes(ctx context.Context) error {
	var l laneState
	var lease, epoch, saved, scheduled, letters int64
	var heldBy string
	s.allLanes = nil
	s.looks, s.lookAt = map[int]laneLook{}, time.Now()
	return s.each(ctx, section{sql: statusLanes, args: []any{manyRows}, head: "LANE\tOWNER\tLEASE\tEPOCH\tSAVED\tUNREAD\tOLDEST\tPARKED\tOLDEST PARKED\tSCHEDULED\tLETTERS\tHELD BY",
		name: "lanes", fields: "lane owner lease_seconds epoch saved_seconds_ago unread oldest_seconds parked oldest_parked_seconds scheduled trouble letters held_by",
		scans: []any{&l.lane, &l.owner, &lease, &epoch, &saved, &l.unread, &l.oldest, &l.parked, &l.oldestParked, &scheduled, &l.trouble}, computed: []any{&letters, &heldBy}}, func() string {
		if lease == 0 {
			l.owner = ""
		}
		s.looks[int(l.lane)] = laneLook{l.owner, epoch}
		letters, l.scheduled = s.lettersIn[l.lane], scheduled
		l.oldest, l.oldestParked = max(l.oldest, 0), max(l.oldestParked, 0)
		heldBy = heldByText(l.trouble, s.holds[l.lane])
		s.allLanes = append(s.allLanes, l)
		return fmt.Sprintf("%d\t%s\t%s\t%d\t%s ago\t%s\t%s\t%s\t%s\t%s\t%s\t%s", l.lane, dash(l.owner), span(lease), epoch, span(saved), yes(l.unread), span(l.oldest),
			atMost(l.parked, manyRows), span(l.oldestParked), atMost(scheduled, manyRows), atMost(letters, manyEvents), dash(heldBy))
	})
}

// relays reads the relays, and says which lanes need a person: for these it counts whether a relay runs.
func (s *status) relays(ctx context.Context) error {
	var name, trouble string
	var up int64
	running := false
	err := s.each(ctx, section{sql: statusRelays, head: "RELAY\tUP\tTROUBLE", name: "relays", fields: "relay up_seconds trouble", scans: []any{&name, &up, &trouble}}, func() string {
		running, s.runs = true, true
		return fmt.Sprintf("%s\t%s\t%s", clean(name), span(up), dash(trouble))
	})
	if err == nil {
		err = s.unowned(ctx, running)
	}
	s.trouble = append(s.trouble, s.ages.unpublished(s.allLanes)...)
	return err
}

func (s *status) parked(ctx context.Context) error {
	var lane, events int64
	if limit, set := seconds(s.ages.Parked); set {
		if err := s.each(ctx, section{sql: statusLongParked, args: []any{limit, manyRows}, name: "long_parked", fields: "lane events", scans: []any{&lane, &events}}, func() string {
			s.say("lane %d has %s parked for more than %s: %s says why, and holdfast dlq list --origin relay shows what holds their keys",
				lane, count(int(events), "event"), spoken(s.ages.Parked), sqlschema.In(s.schema, fmt.Sprintf("select topic, key, why, errors from holdfast.parked where lane = %d", lane)))
			return ""
		}); err != nil {
			return err
		}
	}
	if letters := s.lettersOf[""]; letters > 0 {
		s.say("the relay has %s: holdfast dlq list --origin relay", count(int(letters), "open dead letter"))
	}
	return nil
}

func (s *status) segments(ctx context.Context) error {
	var segment, full int
	var current bool
	var bytes int64
	err := s.each(ctx, section{sql: statusSegments, head: "SEGMENT\tCURRENT\tMiB", name: "segments", fields: "segment current bytes", scans: []any{&segment, &current, &bytes}}, func() string {
		if bytes > 0 {
			full++
		}
		return fmt.Sprintf("%d\t%s\t%s", segment, yes(current), mebibytes(bytes))
	})
	if err != nil || full < 4 {
		return err
	}
	return s.full(ctx)
}

func (s *status) consumers(ctx context.Context) error {
	var consumer string
	var waiting, keys, oldest, overdue, letters, alive int64
	var heard int64
	living, also, err := s.nodes(ctx)
	if err != nil {
		return err
	}
	for consumer := range s.lettersOf { // consumers that have nothing but dead letters
		if consumer != "" {
			also = append(also, consumer)
		}
	}
	return s.each(ctx, section{sql: statusConsumers, args: []any{manyEvents, manyKeys, manyHeads, also}, head: "CONSUMER\tSTORED\tKEYS\tOLDEST\tLETTERS\tNODES\tHEARD", name: "consumers",
		fields: "consumer stored keys oldest_seconds overdue_seconds letters nodes heard_seconds_ago",
		scans:  []any{&consumer, &waiting, &keys, &oldest, &overdue}, computed: []any{&letters, &alive, &heard}}, func() string {
		letters = s.lettersOf[consumer]
		s.sayLetters(consumer, letters)
		s.trouble = append(s.trouble, s.ages.stored(consumer, waiting, keys, oldest)...)
		if overdue > 0 {
			s.say("consumer %s has stored events that were due %s ago, and no node takes them: start a node of this consumer that handles their types", clean(consumer), span(overdue))
		}
		n, announced := living[consumer]
		alive, heard = n.Living, -1
		since := "-"
		if announced {
			heard, since = n.Silent, span(n.Silent)+" ago"
		}
		if announced && n.Gone() {
			s.say("%s", silence(n, s.schema))
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d\t%s", clean(consumer), atMost(waiting, manyEvents), atMost(keys, manyKeys), span(oldest), atMost(letters, manyEvents), alive, since)
	})
}

// nodes reads what is known of the nodes of each consumer that has ever had one. all are their names.
func (s *status) nodes(ctx context.Context) (of map[string]nodes.Row, all []string, err error) {
	rows, err := s.db.Query(ctx, sqlschema.In(s.schema, nodes.Rows), nodes.Args()...)
	if err != nil {
		return nil, nil, err
	}
	of, all = map[string]nodes.Row{}, []string{}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[nodes.Row])
	for _, n := range found {
		of[n.Consumer], all = n, append(all, n.Consumer)
	}
	return of, all, err
}

// silence says that a consumer has no node, with a remedy.
func silence(n nodes.Row, schema string) string {
	return fmt.Sprintf("consumer %s: no node has been heard of for %s, so its events wait: start one; if nobody needs the consumer any more: %s", clean(n.Consumer), span(n.Silent), clean(n.Forget(schema)))
}

func (s *status) sayLetters(consumer string, letters int64) {
	if letters > 0 {
		s.say("consumer %s has %s: holdfast dlq list --consumer %s", clean(consumer), count(int(letters), "open dead letter"), clean(consumer))
	}
}

func (s *status) blocked(ctx context.Context) error {
	var consumer, topic, key, id, eventType, failure string
	var why waiting.Why
	var events, since, attempts, next, letter int64
	var running bool
	return s.each(ctx, section{sql: statusBlocked, args: []any{manyRows, manyOldest}, head: "CONSUMER\tTOPIC\tBLOCKED KEY\tEVENTS\tFOR\tHEAD\tATTEMPTS\tWHY", name: "blocked_keys",
		fields: "consumer topic key events seconds head_id head_type attempts next_in_seconds letter error why running",
		scans:  []any{&consumer, &topic, &key, &events, &since, &id, &eventType, &attempts, &next, &letter, &failure, &why, &running}}, func() string {
		says := whyOr(why, running)
		switch why {
		case waiting.BehindLetter:
			says += fmt.Sprintf(": holdfast dlq show %d", letter)
		case waiting.NoHandler:
			says += " for " + clean(eventType)
		case waiting.Failed:
			says += ", next attempt in " + span(next)
		}
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s", clean(consumer), topic, clean(key), atMost(events, manyRows), span(since), clean(id), attempts, says)
	})
}

func (s *status) skipped(ctx context.Context) error {
	var consumer, topic, eventType string
	var events, last int64
	return s.each(ctx, section{sql: statusSkipped, head: "CONSUMER\tTOPIC\tSKIPPED TYPE\tEVENTS\tLAST", name: "skipped_types", fields: "consumer topic type events last_seconds_ago",
		scans: []any{&consumer, &topic, &eventType, &events, &last}}, func() string {
		if topic == "" {
			eventType = "(others)"
		}
		return fmt.Sprintf("%s\t%s\t%s\t%d\t%s ago", clean(consumer), dash(topic), clean(eventType), events, span(last))
	})
}

func (s *status) positions(ctx context.Context) error {
	ends, err := s.logEnds(ctx)
	if err != nil {
		return err
	}
	var consumer, topic, owner, held string
	var partition int
	var position, updated, lag int64
	return s.each(ctx, section{sql: statusPositions, head: "CONSUMER\tTOPIC\tPARTITION\tPOSITION\tLAG\tOWNER\tSAVED", name: "positions",
		fields: "consumer topic partition position owner saved_seconds_ago held lag", scans: []any{&consumer, &topic, &partition, &position, &owner, &updated, &held}, computed: []any{&lag}}, func() string {
		if held != "" {
			s.say("consumer %s holds partition %d of topic %s: %s", clean(consumer), partition, topic, clean(held))
		}
		lag = -1
		behind := "-"
		if end, known := ends[source.TopicPartition{Topic: topic, Partition: partition}]; known {
			lag = end - position
			behind = fmt.Sprint(lag)
		}
		return fmt.Sprintf("%s\t%s\t%d\t%d\t%s\t%s\t%s ago", clean(consumer), topic, partition, position, behind, dash(owner), span(updated))
	})
}

// logEnds asks Kafka for the end of each partition that a consumer has a position in. It is nil without brokers, and says why if
// they do not answer.
func (s *status) logEnds(ctx context.Context) (map[source.TopicPartition]int64, error) {
	if s.ends == nil {
		return nil, nil
	}
	rows, err := s.db.Query(ctx, sqlschema.In(s.schema, statusPartitions))
	if err != nil {
		return nil, err
	}
	wanted, err := partitionsOf(rows)
	if err != nil || len(wanted) == 0 {
		return nil, err
	}
	ends, err := s.ends(ctx, wanted)
	if err != nil {
		s.say("Kafka does not say where the partitions end, so the lag of consumers is not known: %s", clean(err.Error()))
	}
	return ends, nil
}

func (s *status) sizes(ctx context.Context) error {
	var name string
	var bytes, rows int64
	return s.each(ctx, section{sql: statusSizes, head: "TABLE\tMiB\tROWS", name: "sizes", fields: "table bytes rows", scans: []any{&name, &bytes, &rows}}, func() string {
		about := fmt.Sprint(rows)
		if rows < 0 {
			about = "-"
		}
		return strings.Join([]string{name, mebibytes(bytes), about}, "\t")
	})
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f", float64(bytes)/(1<<20)) }
