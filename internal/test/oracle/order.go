package oracle

import "math"

// keyOrder is O4: the first records of a key's events ascend, in one partition; and so do their first effects with each
// consumer. What was given up has lost its place: it is not compared, and those after it are compared without it. A
// repeat may come late, and is counted.
//
// An event that arrives after a later one of its key is one break, however late it is.
func keyOrder(b *book, found *findings, figures *Figures) {
	inKafka(b, found, figures)
	inEffects(b, found)
}

func inKafka(b *book, found *findings, figures *Figures) {
	type place struct {
		topic     string
		partition int
		highest   int64
		seen      bool
		strayed   bool
	}
	at := make([]place, len(b.keys))
	for i, r := range b.Records {
		n := b.records[i]
		if n == none {
			continue
		}
		repeat := b.of[n].first != int32(i)
		if repeat {
			figures.Duplicates++
			if first := b.Records[b.of[n].first]; first.Topic == r.Topic && first.Partition == r.Partition {
				figures.Furthest = max(figures.Furthest, r.Offset-first.Offset)
			}
		}
		w := b.Written[n]
		if b.of[n].key == none || r.Topic != w.Topic || r.Key != w.Key {
			continue // without order, or not what was written: O2 has that
		}
		k := &at[b.of[n].key]
		if !k.seen {
			*k = place{topic: r.Topic, partition: r.Partition, highest: math.MinInt64, seen: true}
		}
		if k.partition != r.Partition {
			if !k.strayed {
				found.add(Strayed, "key %q of topic %s is in partitions %d and %d: %s", w.Key, w.Topic, k.partition, r.Partition, b.name(n))
			}
			// Between partitions there is no order to judge: this one begins anew.
			k.partition, k.highest, k.strayed = r.Partition, math.MinInt64, true
		}
		switch {
		case repeat:
			if w.Number < k.highest {
				figures.Late++
			}
		case b.givenUp(n, ""):
		case w.Number <= k.highest:
			found.add(Overtaken, "%s, offset %d of partition %d, came after number %d", b.name(n), r.Offset, r.Partition, k.highest)
		default:
			k.highest = w.Number
		}
	}
}

func inEffects(b *book, found *findings) {
	type progress struct {
		done    []bool  // by event
		highest []int64 // by key
	}
	redone := map[int32]bool{}
	for _, id := range b.Redone {
		redone[b.event(id)] = true
	}
	of := make([]progress, len(b.Consumers))
	for c := range of {
		of[c] = progress{make([]bool, len(b.Written)), make([]int64, len(b.keys))}
		for k := range of[c].highest {
			of[c].highest[k] = math.MinInt64
		}
	}
	for _, e := range b.effects {
		if e.event == none || e.consumer == none || b.of[e.event].key == none {
			continue
		}
		p := &of[e.consumer]
		if p.done[e.event] {
			continue // O3 has that
		}
		p.done[e.event] = true
		highest := &p.highest[b.of[e.event].key]
		switch number := b.Written[e.event].Number; {
		case redone[e.event]:
		case b.givenUp(e.event, b.Consumers[e.consumer]):
		case number <= *highest:
			found.add(OutOfTurn, "%s had its effect with %s after number %d", b.name(e.event), b.Consumers[e.consumer], *highest)
		default:
			*highest = number
		}
	}
}
