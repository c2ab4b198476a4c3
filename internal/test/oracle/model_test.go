package oracle

import (
	"fmt"
	"math/rand/v2"

	"github.com/holdfast-go/holdfast/internal/lane"
	"github.com/holdfast-go/holdfast/internal/test/history"
)

const (
	modelLanes      = 4
	modelPartitions = 3 // of each topic
	modelRelays     = 3
)

// model makes runs as they should be: producers, relays and consumers that keep every promise, under faults. It is the
// opposite of the oracle, and knows nothing of it.
type model struct {
	*rand.Rand
	script
	numbers   map[key]int64
	events    int
	places    map[string]int // in Written
	lanes     [modelLanes]modelLane
	relays    [modelRelays]Process
	nextPID   int
	logs      map[key][]Record // by topic and partition: the key's name is its number
	refused   map[string]bool  // relays' letters
	positions map[modelPartition]*modelPosition
	settled   map[[2]string]bool // consumer and event
	replays   []Effect           // of letters that a person will replay at the end
}

type modelLane struct {
	queue       []int // places in Written
	done, saved int
	epoch       int64
	owner       int // of relays, -1: nobody
}

type modelPartition struct {
	consumer string
	log      key
}

type modelPosition struct {
	next, saved int
	epoch       int64
	node        int
}

func newModel(seed uint64) *model {
	w := &model{Rand: rand.New(rand.NewPCG(seed, 1)), script: script{now: begun}, numbers: map[key]int64{}, nextPID: 100, places: map[string]int{}, logs: map[key][]Record{},
		refused: map[string]bool{}, positions: map[modelPartition]*modelPosition{}, settled: map[[2]string]bool{}}
	w.run.Lanes, w.run.Consumers = modelLanes, []string{"billing", "mail"}
	w.run.Limits.Canary = "4111-1111"
	w.run.Alarms = map[string][]Alarm{}
	for _, fault := range []string{"kill", "shot in flight", "freeze", "doubt"} {
		w.run.Alarms[fault] = []Alarm{{By: "relay", Messages: []string{"nobody says this", "alarm of " + fault}}}
	}
	w.say("producer/0", 10, history.Entry{Op: history.Begin})
	w.say("billing", 30, history.Entry{Op: history.Begin})
	w.say("mail", 31, history.Entry{Op: history.Begin})
	for i := range w.relays {
		w.start(i)
	}
	for i := range w.lanes {
		w.lanes[i].owner = -1
		w.logLane(i, "")
	}
	return w
}

// history plays a run of so many steps and ends it in order.
func (w *model) history(steps int) Run {
	for range steps {
		switch w.IntN(20) {
		case 0, 1, 2, 3, 4:
			w.transact()
		case 5, 6, 7, 8, 9, 10:
			w.publish(w.IntN(modelLanes))
		case 11, 12, 13, 14, 15, 16:
			w.consumeSome()
		case 17:
			w.run.Cursors = append(w.run.Cursors, CursorSample{At: w.now, Done: w.lanes[0].saved + w.lanes[1].saved})
		case 18:
			w.handOver(w.IntN(modelLanes))
		case 19:
			if w.IntN(4) == 0 {
				w.fault()
			}
		}
	}
	w.transact()
	w.fault() // one at least: there are answers that were lost
	w.drain()
	w.run.Effects = append(w.run.Effects, w.replays...)
	w.say("producer/0", 10, history.Entry{Op: history.End})
	w.say("billing", 30, history.Entry{Op: history.End})
	w.say("mail", 31, history.Entry{Op: history.End})
	for _, p := range w.relays {
		w.say(p.Actor, p.PID, history.Entry{Op: history.End})
	}
	for _, topic := range []string{"orders", "refunds"} {
		for p := range modelPartitions {
			w.run.Records = append(w.run.Records, w.logs[key{topic, fmt.Sprint(p)}]...)
		}
	}
	return w.run
}

// 1. Producers.

func (w *model) transact() {
	there, answer, told := true, history.OK, true
	switch w.IntN(20) {
	case 0:
		there, answer = false, history.Failed
	case 1:
		there, answer = false, history.Unknown
	case 2:
		answer = history.Unknown
	case 3:
		there, told = w.IntN(2) == 0, false // the producer is gone
	}
	var ids []string
	var rows []Written
	drawn := map[key]int64{}
	for range 1 + w.IntN(3) {
		w.events++
		row := Written{ID: fmt.Sprintf("e%d", w.events), Topic: []string{"orders", "refunds"}[w.IntN(2)]}
		if w.IntN(6) > 0 {
			row.Key = fmt.Sprintf("k%d", w.IntN(8))
			k := key{row.Topic, row.Key}
			drawn[k]++
			row.Number = w.numbers[k] + drawn[k]
		}
		ids, rows = append(ids, row.ID), append(rows, row)
	}
	w.did("producer/0", 10, history.Intend, "", ids...)
	if told {
		w.did("producer/0", 10, history.Commit, answer, ids...)
	}
	if !there {
		return
	}
	for k, n := range drawn {
		w.numbers[k] += n
	}
	for _, row := range rows {
		l := &w.lanes[lane.Of(row.Key, row.ID, modelLanes)]
		l.queue = append(l.queue, len(w.run.Written))
		w.places[row.ID] = len(w.run.Written)
		w.run.Written = append(w.run.Written, row)
	}
}

// 2. Relays.

func (w *model) start(i int) {
	w.nextPID++
	w.relays[i] = Process{fmt.Sprintf("relay/%d", i), w.nextPID}
	w.say(w.relays[i].Actor, w.nextPID, history.Entry{Op: history.Begin})
}

func (w *model) logLane(n int, by string) {
	l := &w.lanes[n]
	owner := ""
	if l.owner >= 0 {
		owner = w.relays[l.owner].Actor
	}
	w.run.LaneLog = append(w.run.LaneLog, LaneChange{N: int64(len(w.run.LaneLog)), At: w.now, Lane: n, Epoch: l.epoch, Owner: owner, By: by,
		Done: fmt.Sprintf("3:%d:", 3+l.saved)})
}

func (w *model) claim(n, relay int) {
	l := &w.lanes[n]
	l.epoch++
	l.owner, l.done = relay, l.saved
	w.logLane(n, w.relays[relay].Actor)
	w.say(w.relays[relay].Actor, w.relays[relay].PID, history.Entry{Op: history.Claim, Lane: n, Epoch: l.epoch})
}

func (w *model) save(n int) {
	l := &w.lanes[n]
	l.saved = l.done
	w.logLane(n, w.relays[l.owner].Actor)
}

func (w *model) batch(n int) (ids []string) {
	l := &w.lanes[n]
	for _, place := range l.queue[l.done:min(len(l.queue), l.done+1+w.IntN(5))] {
		ids = append(ids, w.run.Written[place].ID)
	}
	return ids
}

// reach puts events in Kafka.
func (w *model) reach(ids []string) {
	for _, id := range ids {
		row := w.run.Written[w.places[id]]
		p := w.IntN(modelPartitions)
		if row.Key != "" {
			p = lane.Of(row.Key, "", modelPartitions)
		}
		at := key{row.Topic, fmt.Sprint(p)}
		w.logs[at] = append(w.logs[at], Record{id, row.Topic, row.Key, p, int64(len(w.logs[at])), ""})
	}
}

func (w *model) publish(n int) {
	l := &w.lanes[n]
	if l.owner < 0 {
		w.claim(n, w.IntN(modelRelays))
	}
	ids := w.batch(n)
	if len(ids) == 0 {
		return
	}
	p := w.relays[l.owner]
	switch w.IntN(20) {
	case 0: // it arrived, and nobody said so
		w.did(p.Actor, p.PID, history.Publish, "", ids...)
		w.reach(ids)
		w.did(p.Actor, p.PID, history.Acknowledge, history.Unknown, ids...)
	case 1: // it did not
		w.did(p.Actor, p.PID, history.Publish, "", ids...)
		w.did(p.Actor, p.PID, history.Acknowledge, history.Failed, ids...)
	case 2: // the first is refused for good
		w.did(p.Actor, p.PID, history.Publish, "", ids[0])
		w.did(p.Actor, p.PID, history.Acknowledge, history.Failed, ids[0])
		w.did(p.Actor, p.PID, history.Letter, "", ids[0])
		if !w.refused[ids[0]] {
			w.refused[ids[0]] = true
			w.letter(ids[0], "", []State{Open, Discarded}[w.IntN(2)])
		}
		l.done++
		w.save(n)
	default:
		w.did(p.Actor, p.PID, history.Publish, "", ids...)
		w.reach(ids)
		w.did(p.Actor, p.PID, history.Acknowledge, history.OK, ids...)
		l.done += len(ids)
	}
	if w.IntN(2) == 0 {
		w.save(n)
	}
}

func (w *model) letter(id, consumer string, state State) {
	w.run.Letters = append(w.run.Letters, Letter{int64(len(w.run.Letters) + 1), id, consumer, state, "it failed 5 times"})
}

func (w *model) handOver(n int) {
	l := &w.lanes[n]
	if l.owner < 0 {
		return
	}
	w.save(n)
	p := w.relays[l.owner]
	l.owner = -1
	w.logLane(n, p.Actor)
	w.say(p.Actor, p.PID, history.Entry{Op: history.Lose, How: history.OK, Lane: n})
}

// 3. Faults. Each is said, healed and recovered from.

func (w *model) fault() {
	n := w.IntN(modelLanes)
	for w.lanes[n].owner < 0 {
		w.publish(n)
		if w.lanes[n].owner < 0 {
			w.claim(n, w.IntN(modelRelays))
		}
	}
	l := &w.lanes[n]
	owner := l.owner
	p := w.relays[owner]
	name := []string{"kill", "shot in flight", "freeze", "doubt"}[w.IntN(4)]
	w.say("faults", 1, history.Entry{Op: history.Fault, Text: name})
	w.say("relay/9", 9, history.Entry{Op: history.Log, Text: "alarm of " + name})
	ids := w.batch(n)
	switch name {
	case "kill", "shot in flight":
		if name == "shot in flight" && len(ids) > 0 {
			w.did(p.Actor, p.PID, history.Publish, "", ids...)
			w.reach(ids)
		}
		w.run.Killed = append(w.run.Killed, p)
		for i := range w.lanes {
			if w.lanes[i].owner == owner {
				w.lanes[i].owner = -1 // the row still has the owner: nobody can say so
			}
		}
		w.start(owner)
		w.claim(n, w.IntN(modelRelays))
	case "freeze": // with a batch in flight, which arrives when another has long published it
		if len(ids) > 0 {
			w.did(p.Actor, p.PID, history.Publish, "", ids...)
		}
		until := l.done + len(ids)
		w.claim(n, (owner+1)%modelRelays)
		for l.done < until {
			w.publish(n)
		}
		if len(ids) > 0 {
			w.reach(ids)
			w.did(p.Actor, p.PID, history.Acknowledge, history.OK, ids...)
		}
		w.say(p.Actor, p.PID, history.Entry{Op: history.Lose, How: history.Failed, Lane: n})
	case "doubt":
		w.say(p.Actor, p.PID, history.Entry{Op: history.Lose, How: history.Failed, Lane: n})
		w.claim(n, owner)
	}
	w.say("faults", 1, history.Entry{Op: history.Heal, Text: name})
	w.drain()
	w.say("runner", 1, history.Entry{Op: history.Recovered, Text: name})
}

func (w *model) drain() {
	for n := range w.lanes {
		for w.lanes[n].done < len(w.lanes[n].queue) {
			w.publish(n)
		}
	}
	for at := range modelLogs() {
		for _, c := range w.run.Consumers {
			for w.consume(c, at) {
			}
		}
	}
}

// 4. Consumers.

// modelLogs yields the partitions, always in one order: so that a seed gives one run.
func modelLogs() func(func(key) bool) {
	return func(yield func(key) bool) {
		for _, topic := range []string{"orders", "refunds"} {
			for p := range modelPartitions {
				if !yield(key{topic, fmt.Sprint(p)}) {
					return
				}
			}
		}
	}
}

func (w *model) consumeSome() {
	c := w.run.Consumers[w.IntN(2)]
	at := key{[]string{"orders", "refunds"}[w.IntN(2)], fmt.Sprint(w.IntN(modelPartitions))}
	for range 1 + w.IntN(6) {
		w.consume(c, at)
	}
}

func (w *model) consume(c string, at key) bool {
	log := modelPartition{c, at}
	p := w.positions[log]
	if p == nil || w.IntN(30) == 0 { // another node takes the partition, and reads again what was not saved
		if p == nil {
			p = &modelPosition{node: -1}
			w.positions[log] = p
		}
		p.epoch, p.node, p.next = p.epoch+1, p.node+1, p.saved
		w.logPosition(log)
	}
	if p.next >= len(w.logs[at]) {
		return false
	}
	r := w.logs[at][p.next]
	p.next++
	pid := map[string]int{"billing": 30, "mail": 31}[c]
	done := [2]string{c, r.ID}
	if !w.settled[done] {
		w.taken(c, at.topic, int(at.name[0]-'0'), r.ID, w.owner(log))
	}
	say := func(op history.Op, text string) {
		w.say(c, pid, history.Entry{Op: op, IDs: []string{r.ID}, Text: text})
	}
	switch {
	case w.settled[done]:
		say(history.Receive, "duplicate")
		if w.IntN(10) == 0 {
			w.run.Letters = append(w.run.Letters, Letter{int64(len(w.run.Letters) + 1), "e0", c, Open, "conflict: another payload"})
			w.run.Letters[len(w.run.Letters)-1].EventID = r.ID
			say(history.Letter, "conflict")
		}
	case w.IntN(25) == 0:
		w.settled[done] = true
		say(history.Letter, "")
		state := []State{Open, Discarded, Replayed}[w.IntN(3)]
		w.letter(r.ID, c, state)
		if state == Replayed {
			w.replays = append(w.replays, Effect{Consumer: c, ID: r.ID, Key: r.Key})
		}
	default:
		w.settled[done] = true
		say(history.Effect, "")
		w.run.Effects = append(w.run.Effects, Effect{Consumer: c, ID: r.ID, Key: r.Key, At: w.now})
		say(history.Receive, "handled")
	}
	if w.IntN(3) == 0 {
		p.saved = p.next
		w.logPosition(log)
	}
	return true
}

func (w *model) logPosition(at modelPartition) {
	p := w.positions[at]
	owner := w.owner(at)
	partition := int(at.log.name[0] - '0')
	w.run.PositionLog = append(w.run.PositionLog, PositionChange{N: w.nextChange(), At: w.now, Consumer: at.consumer, Topic: at.log.topic,
		Partition: partition, Epoch: p.epoch, Position: int64(p.saved), Owner: owner, By: owner})
}

func (w *model) owner(at modelPartition) string {
	return fmt.Sprintf("%s/%d", at.consumer, w.positions[at].node)
}
