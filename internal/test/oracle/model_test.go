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
func (m *model) history(steps int) Run {
	for range steps {
		switch m.IntN(20) {
		case 0, 1, 2, 3, 4:
			m.transact()
		case 5, 6, 7, 8, 9, 10:
			m.publish(m.IntN(modelLanes))
		case 11, 12, 13, 14, 15, 16:
			m.consumeSome()
		case 17:
			m.run.Cursors = append(m.run.Cursors, CursorSample{At: m.now, Done: m.lanes[0].saved + m.lanes[1].saved})
		case 18:
			m.handOver(m.IntN(modelLanes))
		case 19:
			if m.IntN(4) == 0 {
				m.fault()
			}
		}
	}
	m.transact()
	m.fault() // one at least: there are answers that were lost
	m.drain()
	m.run.Effects = append(m.run.Effects, m.replays...)
	m.say("producer/0", 10, history.Entry{Op: history.End})
	m.say("billing", 30, history.Entry{Op: history.End})
	m.say("mail", 31, history.Entry{Op: history.End})
	for _, p := range m.relays {
		m.say(p.Actor, p.PID, history.Entry{Op: history.End})
	}
	for _, topic := range []string{"orders", "refunds"} {
		for p := range modelPartitions {
			m.run.Records = append(m.run.Records, m.logs[key{topic, fmt.Sprint(p)}]...)
		}
	}
	return m.run
}

// 1. Producers.

func (m *model) transact() {
	there, answer, told := true, history.OK, true
	switch m.IntN(20) {
	case 0:
		there, answer = false, history.Failed
	case 1:
		there, answer = false, history.Unknown
	case 2:
		answer = history.Unknown
	case 3:
		there, told = m.IntN(2) == 0, false // the producer is gone
	}
	var ids []string
	var rows []Written
	drawn := map[key]int64{}
	for range 1 + m.IntN(3) {
		m.events++
		row := Written{ID: fmt.Sprintf("e%d", m.events), Topic: []string{"orders", "refunds"}[m.IntN(2)]}
		if m.IntN(6) > 0 {
			row.Key = fmt.Sprintf("k%d", m.IntN(8))
			k := key{row.Topic, row.Key}
			drawn[k]++
			row.Number = m.numbers[k] + drawn[k]
		}
		ids, rows = append(ids, row.ID), append(rows, row)
	}
	m.did("producer/0", 10, history.Intend, "", ids...)
	if told {
		m.did("producer/0", 10, history.Commit, answer, ids...)
	}
	if !there {
		return
	}
	for k, n := range drawn {
		m.numbers[k] += n
	}
	for _, row := range rows {
		l := &m.lanes[lane.Of(row.Key, row.ID, modelLanes)]
		l.queue = append(l.queue, len(m.run.Written))
		m.places[row.ID] = len(m.run.Written)
		m.run.Written = append(m.run.Written, row)
	}
}

// 2. Relays.

func (m *model) start(i int) {
	m.nextPID++
	m.relays[i] = Process{fmt.Sprintf("relay/%d", i), m.nextPID}
	m.say(m.relays[i].Actor, m.nextPID, history.Entry{Op: history.Begin})
}

func (m *model) logLane(n int, by string) {
	l := &m.lanes[n]
	owner := ""
	if l.owner >= 0 {
		owner = m.relays[l.owner].Actor
	}
	m.run.LaneLog = append(m.run.LaneLog, LaneChange{N: int64(len(m.run.LaneLog)), At: m.now, Lane: n, Epoch: l.epoch, Owner: owner, By: by,
		Done: fmt.Sprintf("3:%d:", 3+l.saved)})
}

func (m *model) claim(n, relay int) {
	l := &m.lanes[n]
	l.epoch++
	l.owner, l.done = relay, l.saved
	m.logLane(n, m.relays[relay].Actor)
	m.say(m.relays[relay].Actor, m.relays[relay].PID, history.Entry{Op: history.Claim, Lane: n, Epoch: l.epoch})
}

func (m *model) save(n int) {
	l := &m.lanes[n]
	l.saved = l.done
	m.logLane(n, m.relays[l.owner].Actor)
}

func (m *model) batch(n int) (ids []string) {
	l := &m.lanes[n]
	for _, place := range l.queue[l.done:min(len(l.queue), l.done+1+m.IntN(5))] {
		ids = append(ids, m.run.Written[place].ID)
	}
	return ids
}

// reach puts events in Kafka.
func (m *model) reach(ids []string) {
	for _, id := range ids {
		row := m.run.Written[m.places[id]]
		p := m.IntN(modelPartitions)
		if row.Key != "" {
			p = lane.Of(row.Key, "", modelPartitions)
		}
		at := key{row.Topic, fmt.Sprint(p)}
		m.logs[at] = append(m.logs[at], Record{id, row.Topic, row.Key, p, int64(len(m.logs[at])), ""})
	}
}

func (m *model) publish(n int) {
	l := &m.lanes[n]
	if l.owner < 0 {
		m.claim(n, m.IntN(modelRelays))
	}
	ids := m.batch(n)
	if len(ids) == 0 {
		return
	}
	p := m.relays[l.owner]
	switch m.IntN(20) {
	case 0: // it arrived, and nobody said so
		m.did(p.Actor, p.PID, history.Publish, "", ids...)
		m.reach(ids)
		m.did(p.Actor, p.PID, history.Acknowledge, history.Unknown, ids...)
	case 1: // it did not
		m.did(p.Actor, p.PID, history.Publish, "", ids...)
		m.did(p.Actor, p.PID, history.Acknowledge, history.Failed, ids...)
	case 2: // the first is refused for good
		m.did(p.Actor, p.PID, history.Publish, "", ids[0])
		m.did(p.Actor, p.PID, history.Acknowledge, history.Failed, ids[0])
		m.did(p.Actor, p.PID, history.Letter, "", ids[0])
		if !m.refused[ids[0]] {
			m.refused[ids[0]] = true
			m.letter(ids[0], "", []State{Open, Discarded}[m.IntN(2)])
		}
		l.done++
		m.save(n)
	default:
		m.did(p.Actor, p.PID, history.Publish, "", ids...)
		m.reach(ids)
		m.did(p.Actor, p.PID, history.Acknowledge, history.OK, ids...)
		l.done += len(ids)
	}
	if m.IntN(2) == 0 {
		m.save(n)
	}
}

func (m *model) letter(id, consumer string, state State) {
	m.run.Letters = append(m.run.Letters, Letter{int64(len(m.run.Letters) + 1), id, consumer, state, "it failed 5 times", ""})
}

func (m *model) handOver(n int) {
	l := &m.lanes[n]
	if l.owner < 0 {
		return
	}
	m.save(n)
	p := m.relays[l.owner]
	l.owner = -1
	m.logLane(n, p.Actor)
	m.say(p.Actor, p.PID, history.Entry{Op: history.Lose, How: history.OK, Lane: n})
}

// 3. Faults. Each is said, healed and recovered from.

func (m *model) fault() {
	n := m.IntN(modelLanes)
	for m.lanes[n].owner < 0 {
		m.publish(n)
		if m.lanes[n].owner < 0 {
			m.claim(n, m.IntN(modelRelays))
		}
	}
	l := &m.lanes[n]
	owner := l.owner
	p := m.relays[owner]
	name := []string{"kill", "shot in flight", "freeze", "doubt"}[m.IntN(4)]
	m.say("faults", 1, history.Entry{Op: history.Fault, Text: name})
	m.say("relay/9", 9, history.Entry{Op: history.Log, Text: "alarm of " + name})
	ids := m.batch(n)
	switch name {
	case "kill", "shot in flight":
		if name == "shot in flight" && len(ids) > 0 {
			m.did(p.Actor, p.PID, history.Publish, "", ids...)
			m.reach(ids)
		}
		m.run.Killed = append(m.run.Killed, p)
		for i := range m.lanes {
			if m.lanes[i].owner == owner {
				m.lanes[i].owner = -1 // the row still has the owner: nobody can say so
			}
		}
		m.start(owner)
		m.claim(n, m.IntN(modelRelays))
	case "freeze": // with a batch in flight, which arrives when another has long published it
		if len(ids) > 0 {
			m.did(p.Actor, p.PID, history.Publish, "", ids...)
		}
		until := l.done + len(ids)
		m.claim(n, (owner+1)%modelRelays)
		for l.done < until {
			m.publish(n)
		}
		if len(ids) > 0 {
			m.reach(ids)
			m.did(p.Actor, p.PID, history.Acknowledge, history.OK, ids...)
		}
		m.say(p.Actor, p.PID, history.Entry{Op: history.Lose, How: history.Failed, Lane: n})
	case "doubt":
		m.say(p.Actor, p.PID, history.Entry{Op: history.Lose, How: history.Failed, Lane: n})
		m.claim(n, owner)
	}
	m.say("faults", 1, history.Entry{Op: history.Heal, Text: name})
	m.drain()
	m.say("runner", 1, history.Entry{Op: history.Recovered, Text: name})
}

func (m *model) drain() {
	for n := range m.lanes {
		for m.lanes[n].done < len(m.lanes[n].queue) {
			m.publish(n)
		}
	}
	for at := range modelLogs() {
		for _, c := range m.run.Consumers {
			for m.consume(c, at) {
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

func (m *model) consumeSome() {
	c := m.run.Consumers[m.IntN(2)]
	at := key{[]string{"orders", "refunds"}[m.IntN(2)], fmt.Sprint(m.IntN(modelPartitions))}
	for range 1 + m.IntN(6) {
		m.consume(c, at)
	}
}

func (m *model) consume(c string, at key) bool {
	log := modelPartition{c, at}
	p := m.positions[log]
	if p == nil || m.IntN(30) == 0 { // another node takes the partition, and reads again what was not saved
		if p == nil {
			p = &modelPosition{node: -1}
			m.positions[log] = p
		}
		p.epoch, p.node, p.next = p.epoch+1, p.node+1, p.saved
		m.logPosition(log)
	}
	if p.next >= len(m.logs[at]) {
		return false
	}
	r := m.logs[at][p.next]
	p.next++
	pid := map[string]int{"billing": 30, "mail": 31}[c]
	done := [2]string{c, r.ID}
	if !m.settled[done] {
		m.taken(c, at.topic, int(at.name[0]-'0'), r.ID, m.owner(log))
	}
	say := func(op history.Op, text string) {
		m.say(c, pid, history.Entry{Op: op, IDs: []string{r.ID}, Text: text})
	}
	switch {
	case m.settled[done]:
		say(history.Receive, "duplicate")
		if m.IntN(10) == 0 {
			m.run.Letters = append(m.run.Letters, Letter{int64(len(m.run.Letters) + 1), "e0", c, Open, "conflict: another payload", ""})
			m.run.Letters[len(m.run.Letters)-1].EventID = r.ID
			say(history.Letter, "conflict")
		}
	case m.IntN(25) == 0:
		m.settled[done] = true
		say(history.Letter, "")
		state := []State{Open, Discarded, Replayed}[m.IntN(3)]
		m.letter(r.ID, c, state)
		if state == Replayed {
			m.replays = append(m.replays, Effect{Consumer: c, ID: r.ID, Key: r.Key})
		}
	default:
		m.settled[done] = true
		say(history.Effect, "")
		m.run.Effects = append(m.run.Effects, Effect{Consumer: c, ID: r.ID, Key: r.Key, At: m.now})
		say(history.Receive, "handled")
	}
	if m.IntN(3) == 0 {
		p.saved = p.next
		m.logPosition(log)
	}
	return true
}

func (m *model) logPosition(at modelPartition) {
	p := m.positions[at]
	owner := m.owner(at)
	partition := int(at.log.name[0] - '0')
	m.run.PositionLog = append(m.run.PositionLog, PositionChange{N: m.nextChange(), At: m.now, Consumer: at.consumer, Topic: at.log.topic,
		Partition: partition, Epoch: p.epoch, Position: int64(p.saved), Owner: owner, By: owner})
}

func (m *model) owner(at modelPartition) string {
	return fmt.Sprintf("%s/%d", at.consumer, m.positions[at].node)
}
