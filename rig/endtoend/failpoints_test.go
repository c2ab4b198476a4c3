//go:build unix

package endtoend

import (
	"crypto/rand"
	"flag"
	"fmt"
	"os/exec"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// crash is a row of the table: where a process is ended, and what goes on around it.
type crash struct {
	point   failpoint.Point
	turn    int // which time the point is reached; 0 is 1
	in      func() scenario
	earlier failpoint.Point // where a life of the subject before this one was killed
	fix     moment          // when the scenario's trouble ends
	ready   func(o *env)    // waits for what the subject needs
	atStart bool            // the point lies at the start of a process
	leaving bool            // the subject is told to stop, and the point lies on that way
}

type moment int

const (
	afterwards moment = iota // the end of the subject
	before                   // the end of the subject: while it runs
	inBetween                // an earlier life, which is killed once the trouble is there, and this one
)

// scenario is what there is to do, and what goes wrong beside the crash.
type scenario struct {
	topic   string       // tooSmall or notThere: a topic of the row's own
	begin   func(o *env) // writes what there is to do
	fixable func(o *env) // waits for the trouble, where fix does not: with a subject that has no order yet
	fix     func(o *env) // ends the trouble, once it is seen
	more    func(o *env) // writes more, where what there was to do has gone another way: a rebalance saves, too
	check   func(o *env) // what must hold beside the oracle
}

const (
	tooSmall = "too small" // it refuses large events
	notThere = "not there" // it is made late
)

// group is rows that one relay and one consumer, and those that take their place, go through together.
type group struct {
	name  string
	order order
	rows  []crash
}

// groups have every point. A row says in which scenario it is reached.
var groups = []group{
	{name: "producers", rows: []crash{
		{point: failpoint.OutboxWriting, turn: 7, in: produced},
		{point: failpoint.OutboxWritten, turn: 7, in: produced},
		{point: failpoint.OutboxCommitted, turn: 7, in: produced},
	}},
	{name: "relays", rows: []crash{
		{point: failpoint.RelayClaiming, in: plain, atStart: true},
		{point: failpoint.RelayClaimed, in: plain, atStart: true},
		{point: failpoint.RelayReading, turn: 4, in: plain},
		{point: failpoint.RelayProducing, turn: 4, in: plain},
		{point: failpoint.RelayProduced, turn: 4, in: plain},
		{point: failpoint.RelayMoved, turn: 4, in: plain},
		{point: failpoint.RelaySaving, turn: 2, in: plain},
		{point: failpoint.RelaySaved, turn: 2, in: plain},
		{point: failpoint.RelayStopping, turn: 2, in: plain, leaving: true},
		{point: failpoint.RelayYielding, turn: 2, in: plain, leaving: true},
		{point: failpoint.RelayYielded, turn: 2, in: plain, leaving: true},
		{point: failpoint.RelayDeregistering, in: plain, leaving: true},
	}},
	{name: "relays of large logs and of late events", rows: []crash{
		{point: failpoint.RelayReclaiming, in: manySegments},
		{point: failpoint.RelayReclaimed, in: manySegments},
		{point: failpoint.RelayRotating, in: manySegments},
		{point: failpoint.RelayRotated, in: manySegments},
		{point: failpoint.RelayScheduling, in: scheduled},
		{point: failpoint.RelayScheduled, in: scheduled},
	}},
	{name: "relays that give up", order: order{Attempts: 3}, rows: []crash{
		{point: failpoint.RelayParking, in: refused},
		{point: failpoint.RelayParked, in: refused},
		{point: failpoint.RelayDeadLettering, in: refused},
		{point: failpoint.RelayDeadLettered, in: refused},
	}},
	{name: "relays that wait", rows: []crash{
		{point: failpoint.RelayDelaying, in: refusedAtFirst},
		{point: failpoint.RelayUnparking, in: refusedAtFirst, fix: before},
		{point: failpoint.RelayUnparked, in: refusedAtFirst, fix: before},
		{point: failpoint.RelayParked, in: topicMissing},
		{point: failpoint.RelayAnswered, in: topicMissing, fix: before},
		{point: failpoint.RelayResuming, in: topicMissing, fix: before},
		{point: failpoint.RelayResumed, in: topicMissing, fix: before},
	}},
	{name: "relays that hold keys", order: order{Attempts: 2, HoldKey: true}, rows: []crash{
		{point: failpoint.RelayDeadLettered, in: keyHeld},
		{point: failpoint.RelayReleasing, in: keyReleased, fix: before},
		{point: failpoint.RelayReleased, in: keyReleased, fix: before},
		{point: failpoint.RelayReleasingOnClaim, in: keyReleased, fix: inBetween},
	}},
	{name: "consumers", rows: []crash{
		{point: failpoint.InboxAssigning, turn: 2, in: plain, atStart: true},
		{point: failpoint.InboxAssigned, turn: 2, in: plain, atStart: true},
		{point: failpoint.InboxFetched, turn: 2, in: plain},
		// Once in each partition: none has settled anything when the first handler has run, in a group or alone.
		{point: failpoint.InboxCounting, turn: ofEnv, in: plain, earlier: failpoint.InboxHandled},
		{point: failpoint.InboxCounted, turn: ofEnv, in: plain, earlier: failpoint.InboxHandled},
		{point: failpoint.InboxInserting, turn: 9, in: plain},
		{point: failpoint.InboxInserted, turn: 9, in: plain},
		{point: failpoint.InboxHandled, turn: 9, in: plain},
		{point: failpoint.InboxCommitting, turn: 9, in: plain},
		{point: failpoint.InboxCommitted, turn: 9, in: plain},
	}},
	{name: "consumers' positions", rows: []crash{
		{point: failpoint.InboxSaving, in: plain},
		{point: failpoint.InboxSaved, in: plain},
		{point: failpoint.InboxCommittingOffset, in: plain},
		{point: failpoint.InboxOffsetCommitted, in: plain},
		{point: failpoint.InboxReleasing, turn: 2, in: plain, leaving: true},
		{point: failpoint.InboxReleased, in: plain, leaving: true},
		{point: failpoint.InboxSweeping, in: aged, fix: before, atStart: true},
		{point: failpoint.InboxSwept, in: aged, fix: before, atStart: true},
	}},
	{name: "consumers of batches", order: order{Batch: 10}, rows: []crash{
		{point: failpoint.InboxBatched, turn: 2, in: plain},
		{point: failpoint.InboxHandled, turn: 2, in: plain},
		{point: failpoint.InboxCommitted, turn: 2, in: plain},
	}},
	{name: "consumers with steps", rows: []crash{
		{point: failpoint.InboxStepping, turn: 7, in: stepping},
		{point: failpoint.InboxStepped, turn: 7, in: calledAgain},
		{point: failpoint.InboxStepRecorded, turn: 7, in: stepping},
	}},
	{name: "consumers that try again", rows: []crash{
		{point: failpoint.InboxParking, in: failing},
		{point: failpoint.InboxParking, turn: 3, in: failing},
		{point: failpoint.InboxDecided, in: failing},
		{point: failpoint.InboxClaiming, turn: 3, in: failing},
		{point: failpoint.InboxClaimed, turn: 2, in: failing},
		{point: failpoint.InboxRetried, in: failing},
		{point: failpoint.InboxSettling, in: failing},
		{point: failpoint.InboxSettled, in: failing},
		{point: failpoint.InboxPostponing, in: failing},
		{point: failpoint.InboxWritten, in: failing},
	}},
	{name: "consumers that give up", order: order{Tries: 3}, rows: []crash{
		{point: failpoint.InboxDeadLettering, in: refusedByHandler},
		{point: failpoint.InboxDecided, in: refusedByHandler},
		{point: failpoint.InboxDeadLetteringStored, in: givenUp},
		{point: failpoint.InboxWritten, turn: 2, in: givenUp},
	}},
	{name: "dead letters", order: order{Attempts: 2, Tries: 2}, rows: []crash{
		{point: failpoint.DLQChanging, turn: 2, in: lettersOfTheConsumer, ready: lettersAreThere},
		{point: failpoint.DLQChanged, turn: 2, in: lettersOfTheConsumer, ready: lettersAreThere},
		{point: failpoint.DLQChanging, in: lettersOfTheRelay, ready: lettersAreThere},
		{point: failpoint.DLQChanged, in: lettersOfTheRelay, ready: lettersAreThere},
	}},
}

// atOnce is how many groups there are at a time: they wait for leases and sessions for most of it.
const atOnce = 6

// everyKind is for a run of its own: standing still for a lease, or stopping in order, takes long at so many points.
var everyKind = flag.Bool("failpoints.all", false, "end processes at all failpoints in every way that concerns them, not by killing alone and, on the usual way of an event, by stalling")

// kinds are the ways in which this run ends processes. All but killing are for the usual way alone where nobody asks for more.
func kinds() []kind {
	if *everyKind {
		return []kind{killed, stalled, frozen, stopped, panics}
	}
	return []kind{killed, stalled}
}

// subjectsAreLong is also why the race detector's run, which is short, is without them: a subject is not built for it.
const subjectsAreLong = "processes of the subject end at every failpoint, for minutes"

// A process that ends anywhere between two steps, in any way, loses nothing, doubles nothing and reorders nothing.
func TestFailpoints_WhereverAProcessEndsNothingIsLostDoubledOrReordered(t *testing.T) {
	skip.InShort(t, subjectsAreLong)
	t.Parallel()
	program, cluster := buildSubject(t), kafkatest.New(t)
	type run struct {
		w group
		k kind
	}
	runs := make(chan run)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for r := range runs {
				t.Run(fmt.Sprintf("%s/%s", r.w.name, r.k), func(t *testing.T) { r.w.run(t, program, cluster, r.k) })
			}
		})
	}
	for _, k := range kinds() {
		for _, w := range groups {
			if k.concerns(w) && (k == killed || *everyKind || w.name == "relays" || w.name == "consumers") {
				runs <- run{w, k}
			}
		}
	}
	close(runs)
	wg.Wait()
}

// concerns says whether the rows of a group are run with a kind.
func (k kind) concerns(w group) bool {
	role := roleOf(w.rows[0].point)
	switch k {
	case stopped, stalled: // A producer and a person do one thing at a time, and have no stop of their own.
		return role == "relay" || role == "consumer"
	case panics: // It is as being killed, once it is seen that nothing catches it or waits for it.
		return strings.Contains(w.name, "give up") || strings.Contains(w.name, "batches") || role == "producer" || role == "dlq"
	default:
		return true
	}
}

// run goes through the rows of a group.
func (g group) run(t *testing.T, program string, cluster *kafkatest.Cluster, k kind) {
	o := newEnv(t, program, cluster, g, k)
	for i, row := range g.rows {
		well := t.Run(fmt.Sprintf("%s in %s", row.point, nameOf(row.in)), func(t *testing.T) {
			o.path.TB, o.row = t, i
			defer func() { o.path.TB = o.root }()
			o.runRow(row)
		})
		if !well {
			t.Fatalf("the rows after it are not run: what they would show is not theirs")
		}
	}
	o.leave()
}

// nameOf is the name of a scenario.
func nameOf(in func() scenario) string {
	full := runtime.FuncForPC(reflect.ValueOf(in).Pointer()).Name()
	return full[strings.LastIndex(full, ".")+1:]
}

// Every point that points.go declares is in the table.
func TestFailpoints_EveryFailpointIsInTheTable(t *testing.T) {
	skip.InShort(t, "it takes 40 s beside the others")
	out, err := exec.Command(buildSubject(t), "points").Output()
	if err != nil {
		t.Fatal(err)
	}
	inTable := map[string]bool{}
	for _, w := range groups {
		for _, c := range w.rows {
			inTable[string(c.point)] = true
		}
	}
	n := 0
	for line := range strings.Lines(string(out)) {
		point, _, _ := strings.Cut(line, "\t")
		if n++; !inTable[point] {
			t.Errorf("no process is ended at %s: give it a row in groups", point)
		}
	}
	if n < 50 {
		t.Errorf("the subject knows %d points only", n)
	}
}

// plain is some keys with some events each, and nothing else.
func plain() scenario {
	return scenario{begin: func(o *env) { o.load(10) }, more: func(o *env) { o.load(1) }}
}

// load writes events of some keys and of none, in a few transactions.
func (en *env) load(each int) {
	en.Helper()
	for n := 0; n < each; {
		var events []holdfast.Event
		for ; n < each && len(events) < 48; n++ {
			for k := range 8 {
				e := en.Event(fmt.Sprint("key ", k), int64(n))
				if k == 7 {
					e.Key = ""
				}
				events = append(events, e)
			}
		}
		en.write(events...)
	}
}

// produced has no events but those of the subject.
func produced() scenario {
	return scenario{begin: func(o *env) { o.order.Keys, o.order.Each = 5, 5 }, check: func(o *env) {
		if n := o.Count("select count(*) from written where key like $1", fmt.Sprintf("row %d key %%", o.row)); n != 25 {
			o.Errorf("the producer has committed %d events, want 25", n)
		}
	}}
}

const smallTopic = 20_000 // bytes that a topic takes which is too small

func (en *env) to(topic, key string) holdfast.Event {
	e := en.Event(key, 0)
	e.Topic = topic
	return e
}

// tooLarge writes an event that its topic refuses, among others.
func (en *env) tooLarge(key string) (large holdfast.Event) {
	en.Helper()
	topic := en.topicOf[en.row]
	large = en.to(topic, key)
	large.Payload = make([]byte, 2*smallTopic)
	_, _ = rand.Read(large.Payload)
	en.load(6)
	en.write(en.to(topic, "large"), en.to(topic, "other"), large)
	en.write(en.to(topic, "large"), en.to(topic, "other"), en.to(topic, "large"))
	return large
}

// widen has the small topic take everything. What the broker says of it is not what it does yet: but it makes changes in their
// order, and goes by this one once it goes by a later one.
func (en *env) widen() {
	en.Helper()
	en.widenTopic(en.topicOf[en.row])
	later := en.Cluster.Topic(en, 1, "max.message.bytes", fmt.Sprint(smallTopic))
	en.widenTopic(later)
	large := make([]byte, 2*smallTopic)
	_, _ = rand.Read(large)
	en.Await("the broker goes by the change", func() bool {
		res, err := en.Cluster.Client.Produce(en.Context(), &kafka.ProduceRequest{Topic: later, RequiredAcks: kafka.RequireAll,
			Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes(large)})})
		return err == nil && res.Error == nil
	})
}

func (en *env) widenTopic(topic string) {
	en.Helper()
	en.Await("the broker changes the topic", func() bool {
		res, err := en.Cluster.Client.IncrementalAlterConfigs(en.Context(), &kafka.IncrementalAlterConfigsRequest{
			Resources: []kafka.IncrementalAlterConfigsRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
				Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: "max.message.bytes", Value: "1000000", ConfigOperation: kafka.ConfigOperationSet}}}}})
		return err == nil && res.Resources[0].Error == nil
	})
	en.Await("the broker knows of the change", func() bool {
		res, err := en.Cluster.Client.DescribeConfigs(en.Context(), &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
			{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"max.message.bytes"}}}})
		return err == nil && len(res.Resources) == 1 && len(res.Resources[0].ConfigEntries) == 1 && res.Resources[0].ConfigEntries[0].ConfigValue == "1000000"
	})
}

// refused is an event that the broker does not take: it becomes a letter.
func refused() scenario {
	return scenario{topic: tooSmall, begin: func(o *env) { o.letters[o.tooLarge("large").ID] = true }}
}

// refusedAtFirst is one that the broker takes in the end.
func refusedAtFirst() scenario {
	return scenario{topic: tooSmall, begin: func(o *env) { o.tooLarge("large") }, fixable: func(o *env) {
		o.comes("the event is parked", "select exists (select from holdfast.parked where attempts > 0)")
	}, fix: (*env).widen}
}

// topicMissing is a topic that is made late.
func topicMissing() scenario {
	return scenario{topic: notThere, begin: func(o *env) {
		topic := o.topicOf[o.row]
		o.load(6)
		o.write(o.to(topic, "a"), o.to(topic, "b"), o.to(topic, "a"), o.to(topic, "b"), o.to(topic, "a"))
	}, fixable: func(o *env) {
		o.comes("the topic is held", "select exists (select from holdfast.parked where why = 'topic')")
	}, fix: func(o *env) {
		topic := o.topicOf[o.row]
		if err := o.Cluster.Server.CreateTopic(o.Context(), topic, ofRow, nil); err != nil {
			o.Fatal(err)
		}
		o.Topics = append(o.Topics, topic)
	}}
}

// keyHeld is a key that waits for the dead letter of an event, until the letter is replayed.
func keyHeld() scenario {
	return scenario{topic: tooSmall, begin: func(o *env) { o.tooLarge("large") }, fix: func(o *env) {
		o.comes("the letter", "select count(*) = 1 from holdfast.letter where state = 'open'")
		o.widen()
		// The broker may refuse it once more: what it knows and what it does are not one.
		o.Await("the letter is replayed", func() bool {
			if o.Count("select count(*) from holdfast.letter where state = 'open'") > 0 {
				o.replay(o.path.letters())
			}
			return o.Count("select count(*) from holdfast.letter where state in ('open', 'replaying')") == 0
		})
	}}
}

// keyReleased is a key that waits for the dead letter of an event, until the letter is discarded.
func keyReleased() scenario {
	return scenario{topic: tooSmall, begin: func(o *env) { o.fresh = []string{o.tooLarge("large").ID} }, fixable: func(o *env) {
		// A slow relay may give up before it has read what follows: nobody would be there to be released.
		o.comes("the letter, and the events that wait for it", `select count(*) = 1 and (select count(*) from holdfast.parked where key = 'large') = 2
			from holdfast.letter where state = 'open'`)
	}, fix: func(o *env) {
		d := o.path.letters()
		for _, l := range o.openLetters(d) {
			// Nobody is to see it ever: to the oracle it is one that was never written.
			pgtest.Exec(o, o.Db, "delete from written where id = $1", l.Event.ID)
			if err := d.Discard(o.Context(), l.ID, "the test", "nobody wants it"); err != nil {
				o.Fatal(err)
			}
		}
	}}
}

// scheduled is events that fall due while the relay runs. On a slow machine they may be due by the time they are written.
func scheduled() scenario {
	return scenario{begin: func(o *env) {
		o.load(3)
		o.later()
	}, more: (*env).later}
}

// later writes events some of which are not due yet.
func (en *env) later() {
	en.Helper()
	var events []holdfast.Event
	for k := range 10 {
		e := en.Event(fmt.Sprintf("key %d of %d", k, len(en.numbers)), 0) // a new one: what is due when it is written overtakes what was not
		e.NotBefore = time.Now().Add(time.Duration(k/5) * time.Second)
		events = append(events, e)
	}
	en.write(events...)
}

// manySegments is more than one segment of the log holds.
func manySegments() scenario {
	return scenario{begin: func(o *env) {
		o.load(3)
		var events []holdfast.Event
		for n := range 24 {
			e := o.Event(fmt.Sprint("key ", n%6), 0)
			e.Payload = make([]byte, 64<<10)
			_, _ = rand.Read(e.Payload)
			events = append(events, e)
		}
		o.write(events...)
	}}
}

// fails writes events whose handler fails, followed by others of their keys.
func (en *env) fails(how string) (ids []string) {
	en.Helper()
	en.load(3)
	for k := range 4 {
		e := en.Event(fmt.Sprint("key ", k), 0)
		e.Headers = map[string]string{"fail": how}
		en.write(e, en.Event(e.Key, 0), en.Event(e.Key, 0))
		ids = append(ids, e.ID)
	}
	en.load(2)
	return ids
}

// failing is events whose handler fails twice.
func failing() scenario {
	return scenario{begin: func(o *env) { o.fails("twice") }}
}

// refusedByHandler is events that become letters at once.
func refusedByHandler() scenario { return hopeless("at once") }

// givenUp is events that become letters after some tries.
func givenUp() scenario { return hopeless("always") }

func hopeless(how string) scenario {
	return scenario{begin: func(o *env) {
		for _, id := range o.fails(how) {
			o.letters[id] = true
		}
	}}
}

// stepping is events whose handler calls a provider in two steps. Half of them fail twice when both steps are done.
func stepping() scenario {
	return scenario{begin: func(o *env) {
		for k := range 4 {
			for _, how := range []string{"twice", ""} {
				e := o.Event(fmt.Sprint("key ", k), 0)
				e.Headers = map[string]string{"steps": "two", "fail": how}
				o.write(e)
				o.fresh = append(o.fresh, e.ID)
			}
		}
	}, check: func(o *env) { o.stepsHold() }}
}

// calledAgain is the same, where the end comes between a call and its record: one that stops in order records it yet.
func calledAgain() scenario {
	s := stepping()
	s.check = func(o *env) {
		if again := o.stepsHold(); again == 0 && o.kind != stopped {
			o.Errorf("no step was called again: then no process ended between a call and its record")
		}
	}
	return s
}

// stepsAtOnce is how many handlers a subject runs at once: of its four workers, and of four more for stored events.
const stepsAtOnce = 8

// stepsHold asks the provider about the steps of a row, and says how often one was called again. At a provider that honours keys an effect is a key, at another
// one it is a call.
func (en *env) stepsHold() (again int64) {
	en.Helper()
	var steps, keys, most, known, others int64
	if err := en.pool.QueryRow(en.Context(), `
		with s as (select id, step, count(*) calls, count(distinct key) keys, max(n) last, count(*) filter (where recorded) known from called where id = any($1) group by 1, 2)
		select count(*), coalesce(sum(keys), 0), coalesce(max(calls), 0), coalesce(sum(calls - 1), 0), coalesce(sum(known), 0),
			count(*) filter (where (select array_agg(call) from went_by w where w.id = s.id and w.step = s.step) is distinct from array[last]) from s`, en.fresh).
		Scan(&steps, &keys, &most, &again, &known, &others); err != nil {
		en.Fatal(err)
	}
	if want := int64(2 * len(en.fresh)); steps != want || keys != want {
		en.Errorf("%d steps were called with %d keys, want %d with a key each", steps, keys, want)
	}
	if ends := en.unrecorded() + 1; most > 1+ends || again > stepsAtOnce*ends {
		en.Errorf("a step was called %d times, and %d calls were repeats, which is too many for a process that ended: %d had no record", most, again, ends-1)
	}
	// One that is frozen may have looked before another recorded the step, and call after.
	if en.kind != frozen && (known != 0 || others != 0) {
		en.Errorf("%d calls were made although their step was recorded, and %d handlers went by another call than the last", known, others)
	}
	en.Logf("%d steps, called again %d times", steps, again)
	return again
}

// unrecorded is how often a subject has said that it could not record a step: on a machine that stood still.
func (en *env) unrecorded() (n int64) {
	for _, v := range en.all {
		v.mu.Lock()
		for _, line := range v.lines {
			if strings.Contains(line, "step was done and not recorded") {
				n++
			}
		}
		v.mu.Unlock()
	}
	return n
}

// aged is events whose rows in the inbox are older than the window.
func aged() scenario {
	return scenario{begin: func(o *env) {
		o.load(4)
		// A turn of the row before puts off the next one as it thinks: none begins before the rows are old.
		pgtest.Exec(o, o.Db, "update holdfast.retention set next_at = now() + interval '5 minutes'")
	}, fix: func(o *env) {
		o.settled()
		o.comes("the positions are saved", `select not exists (select from holdfast.inbox i join holdfast.consumer_position p using (consumer, topic, partition) where i."offset" >= p.position)`)
		// A row of that age is long below the group's offset, too: else its record could be read again when the row is gone.
		o.Await("the group's offsets are the positions", o.offsetsAreThePositions)
		pgtest.Exec(o, o.Db, "update holdfast.inbox set processed_at = processed_at - interval '2 hours'")
		pgtest.Exec(o, o.Db, "update holdfast.retention set next_at = now()")
	}}
}

// offsetsAreThePositions tells whether the consumer has committed to Kafka what it has saved.
func (en *env) offsetsAreThePositions() bool {
	en.Helper()
	rows, err := en.Db.Query(en.Context(), "select topic, partition, position from holdfast.consumer_position")
	if err != nil {
		en.Fatal(err)
	}
	positions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct {
		Topic     string
		Partition int
		Position  int64
	}])
	if err != nil {
		en.Fatal(err)
	}
	for _, p := range positions {
		if offset, known := en.Committed(p.Topic, p.Partition); !known || offset != p.Position {
			return false
		}
	}
	return len(positions) > 0
}

// lettersOfTheConsumer is letters that the subject replays. Nothing of their keys comes after them: it would have gone on.
func lettersOfTheConsumer() scenario {
	return scenario{begin: func(o *env) {
		pgtest.Exec(o, o.Db, "delete from fixed")
		o.load(2)
		for n := range 4 {
			e := o.Event(fmt.Sprintf("row %d alone %d", o.row, n), 0)
			e.Headers = map[string]string{"fail": "always"}
			o.write(e)
			o.fresh = append(o.fresh, e.ID)
		}
	}, check: everyLetterIsReplayedOnce}
}

func lettersOfTheRelay() scenario {
	return scenario{topic: tooSmall, begin: func(o *env) {
		o.fresh = []string{o.tooLarge("alone").ID}
	}, check: everyLetterIsReplayedOnce}
}

// lettersAreThere waits for the letters, and sees to it that their replay succeeds.
func lettersAreThere(o *env) {
	o.Helper()
	o.comes("the letters", "select count(*) = $1 from holdfast.letter where state = 'open'", len(o.fresh))
	if o.topicOf[o.row] != "" {
		o.widen()
	}
	pgtest.Exec(o, o.Db, "insert into fixed default values")
}

func everyLetterIsReplayedOnce(o *env) {
	o.Helper()
	if n := o.Count(`select count(*) from holdfast.letter l where event_id = any($1) and state = 'replayed'
			and (select count(*) from holdfast.letter_action a where a.letter = l.id and a.action = 'replay') = 1`, o.fresh); n != int64(len(o.fresh)) {
		o.Errorf("%d letters have been replayed once, want %d", n, len(o.fresh))
	}
}
