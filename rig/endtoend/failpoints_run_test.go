//go:build unix

package endtoend

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/outbox"
	"github.com/holdfast-go/holdfast/rig/internal/auditlog"
)

// This file runs the table in failpoints_test.go. In each env there are a producer, a relay, a consumer and a
// person at the dead letters, as far as they are needed, each in a process of its own (rig/internal/subject). Row
// by row one of them is ended at a failpoint, and another takes its place: it recovers from that, and is the next subject.
// After each row the oracle looks at everything that ever happened in the env.

// kind is what becomes of a subject.
type kind string

const (
	killed  kind = "kill"
	stalled kind = "stall"  // the others go on for a second before it is killed
	frozen  kind = "freeze" // and thawed when another has done its work
	panics  kind = "panic"
	stopped kind = "stop" // told to, and it must do so in order
)

// order is subject.Order.
type order struct {
	Role                string
	DSN                 string
	Brokers, Topics     []string
	Idle                time.Duration
	Prefix              string
	Keys, Each          int
	BatchSize, Attempts int
	HoldKey             bool
	Batch, Tries        int
}

const (
	lanes    = 8 // that the schema has
	pageSize = 5 // of a relay
)

// idle is how long a producer's transaction may stand still, by whether the producer is to be frozen: that is waited for. Else it is
// the machine that stands still.
var idle = map[bool]time.Duration{true: 3 * time.Second, false: time.Minute}

// env is where all rows of a group are run with one kind.
type env struct {
	*path
	root    testing.TB // path has that of the row
	kind    kind
	order   order
	pool    *pgxpool.Pool
	program string
	row     int

	numbers map[string]int64    // of the last event of a key
	letters map[string]bool     // ids of the events that must be open letters
	active  map[string]*subject // by role
	all     []*subject
	topicOf map[int]string // a row's own
	excused int            // duplicates in Kafka so far, at most
	fresh   []string       // ids of the letters of this row
	looks   looks
}

// subject is a process, and what it has said.
type subject struct {
	*process
	role  string
	stdin io.WriteCloser
	tail  io.Writer

	mu    sync.Mutex
	lines []string
	rest  []byte
}

// Write takes what the process says, line by line.
func (s *subject) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest = append(s.rest, b...)
	for {
		line, rest, ok := bytes.Cut(s.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		s.rest = bytes.Clone(rest)
		if len(line) > 0 {
			s.lines = append(s.lines, string(line))
			if !bytes.HasPrefix(line, []byte("report ")) {
				_, _ = s.tail.Write(append(line, '\n'))
			}
		}
	}
}

func (s *subject) said(line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.lines, line)
}

func (s *subject) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// launch starts a process; where is an order for its failpoints, "" for none.
func (en *env) launch(role, where string) *subject {
	en.Helper()
	c := en.order
	c.Role, c.DSN, c.Brokers, c.Prefix = role, en.Dsn, en.Cluster.Brokers, fmt.Sprintf("row %d key ", en.row)
	c.Topics = append([]string{en.Topic()}, slices.Sorted(maps.Values(en.topicOf))...)
	config, err := json.Marshal(c)
	if err != nil {
		en.Fatal(err)
	}
	v := &subject{role: role, tail: en.Tail}
	cmd := exec.Command(en.program)
	cmd.Env = append(os.Environ(), "HOLDFAST_SUBJECT="+string(config), "HOLDFAST_FAILPOINT="+where)
	cmd.Stderr = v
	if v.stdin, err = cmd.StdinPipe(); err == nil {
		err = cmd.Start()
	}
	if err != nil {
		en.Fatalf("start a %s: %v", role, err)
	}
	v.process = &process{cmd: cmd, stdin: v.stdin, done: make(chan struct{})}
	go func() {
		defer close(v.done)
		v.err = cmd.Wait()
	}()
	en.root.Cleanup(v.kill)
	en.all = append(en.all, v)
	en.active[role] = v
	return v
}

// running is the subject of a role that runs already, or one without an order.
func (en *env) running(role string) *subject {
	en.Helper()
	if v := en.active[role]; v != nil && !v.ended() {
		return v
	}
	return en.launch(role, "")
}

// armed is the subject of a role, with an order: the one that runs already, unless the point lies at its start.
func (en *env) armed(role, where string, atStart bool) *subject {
	en.Helper()
	v := en.active[role]
	if atStart || v == nil || v.ended() {
		return en.launch(role, where)
	}
	if _, err := fmt.Fprintln(v.stdin, where); err != nil {
		en.Fatal(err)
	}
	// It may end there before it has said so.
	en.Await("the subject takes its order", func() bool { return v.said("report order "+where+" <nil>") || v.ended() })
	return v
}

// reaches waits until the point has been reached, and what was ordered has come of it. More, where there is any, is
// called every ten seconds until then.
func (en *env) reaches(v *subject, point failpoint.Point, k kind, more func(o *env)) {
	en.Helper()
	word := fmt.Sprintf("failpoint %s: %s", point, k)
	last := time.Now()
	en.Await(word, func() bool {
		if more != nil && time.Since(last) > 10*time.Second {
			last = time.Now()
			more(en)
		}
		over := v.ended() // Its last words come before its end is known.
		if over && !v.said(word) {
			en.Fatalf("the %s ended (%v) and has not come to %s", v.role, v.err, point)
		}
		return v.said(word)
	})
	if k == frozen {
		en.Await("it is frozen", func() bool {
			out, err := exec.Command("ps", "-o", "stat=", "-p", fmt.Sprint(v.cmd.Process.Pid)).Output()
			return err == nil && strings.HasPrefix(strings.TrimSpace(string(out)), "T")
		})
		return
	}
	select {
	case <-v.done:
	case <-time.After(wait.Limit()):
		en.Fatalf("after %q the %s does not end", word, v.role)
	}
	status := v.cmd.ProcessState.Sys().(syscall.WaitStatus)
	switch {
	case (k == killed || k == stalled) && (!status.Signaled() || status.Signal() != syscall.SIGKILL):
		en.Fatalf("the %s ended with %v, want a SIGKILL", v.role, v.err)
	case k == panics && (!status.Exited() || status.ExitStatus() != 2):
		en.Fatalf("the %s ended with %v, want the exit of a panic", v.role, v.err)
	case k == stopped && v.err != nil:
		en.Fatalf("the %s, told to stop, ended with %v", v.role, v.err)
	}
}

// roleOf is who comes by a point.
func roleOf(p failpoint.Point) string {
	family, _, _ := strings.Cut(string(p), ".")
	return map[string]string{"outbox": "producer", "relay": "relay", "inbox": "consumer", "dlq": "dlq"}[family]
}

// runRow is one row.
func (en *env) runRow(c crash) {
	en.Helper()
	begun := time.Now()
	role, s := roleOf(c.point), c.in()
	oneTask := role == "producer" || role == "dlq" // The others run until they are told to stop.
	en.fresh = nil

	// 1. Whoever is not the subject.
	for _, other := range []string{"relay", "consumer"} {
		if other != role {
			en.running(other)
		}
	}

	// 2. The subject, and its end. An earlier life of it may end badly before.
	where := fmt.Sprintf("%s:%d=%s", c.point, max(c.turn, 1), en.kind)
	var v *subject
	switch {
	case c.earlier != "":
		for tries, done := 1, false; !done; tries++ {
			v = en.armed(role, string(c.earlier)+"=kill", false)
			s.begin(en)
			en.reaches(v, c.earlier, killed, s.more)
			en.excuse(v, killed)
			en.expire(role, killed)
			en.Await("Kafka has all that the next life finds", en.published)
			v = en.launch(role, where)
			word := fmt.Sprintf("failpoint %s: %s", c.point, en.kind)
			en.settledUnless(func() bool { done = v.said(word); return done })
			// A rebalance ends in order what an unclean end left: the point is not reached then.
			if tries == 10 && !done {
				en.Fatalf("after %s the %s does not come to %s", c.earlier, role, c.point)
			}
		}
	case c.fix == before && s.fixable != nil:
		// Its order comes with the trouble: on a slow machine, whatever else went wrong before has passed the point already.
		en.running(role)
		s.begin(en)
		s.fixable(en)
		v = en.armed(role, where, false)
	case c.fix == inBetween:
		v = en.running(role)
		s.begin(en)
		s.fixable(en)
		v.kill()
		en.excuse(v, killed)
		en.expire(role, killed)
		s.fix(en)
		v = en.launch(role, where)
	case c.atStart || oneTask:
		if v = en.active[role]; v != nil && !v.ended() {
			if err := v.quit(); err != nil {
				en.Fatalf("the %s, told to stop: %v", role, err)
			}
		}
		s.begin(en)
		if c.ready != nil {
			c.ready(en)
		}
		v = en.launch(role, where)
	default:
		v = en.armed(role, where, false)
		s.begin(en)
	}
	if c.fix == before {
		s.fix(en)
	}
	if c.leaving {
		// A rebalance may bring it to the point before: then it ends by itself.
		en.settledUnless(v.ended)
		_ = v.stdin.Close()
	}
	en.reaches(v, c.point, en.kind, s.more)
	en.look()
	en.excuse(v, en.kind)
	ended := time.Since(begun)

	// 3. Another in its place. More has been written meanwhile.
	en.expire(role, en.kind)
	en.write(en.Event("key 1", 0), en.Event("key 1", 0), en.Event("", 0))
	next := en.launch(role, "")
	if c.fix == afterwards && s.fix != nil {
		if s.fixable != nil {
			s.fixable(en)
		}
		s.fix(en)
	}
	if oneTask {
		en.completes(role, next)
	}
	en.settled()

	// 4. What was frozen goes on where it stood.
	if en.kind == frozen {
		if err := v.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			en.Fatal(err)
		}
		en.write(en.Event("key 1", 0), en.Event("", 0))
		en.settled()
		if err := v.quit(); err != nil && !oneTask { // Whoever has one task may say that its transaction was ended under it.
			en.Errorf("the %s, thawed and told to stop: %v", role, err)
		}
		if oneTask {
			en.completes(role, en.launch(role, ""))
		}
		en.settled()
	}
	en.mustHold()
	if s.check != nil {
		s.check(en)
	}
	en.Logf("ended after %v, all well after %v", ended.Round(100*time.Millisecond), time.Since(begun).Round(100*time.Millisecond))
}

// settled waits until everything has arrived.
func (en *env) settled() {
	en.Helper()
	en.settledUnless(func() bool { return false })
}

// settledUnless is settled, or over.
func (en *env) settledUnless(over func() bool) {
	en.Helper()
	if en.comesUnless(over, "every event has its effect, and nothing waits", `select not exists (select from written w
			where not exists (select from effect e where e.id = w.id)
			and not exists (select from holdfast.letter l where l.event_id = w.id and l.state = 'open'))
		and not exists (select from holdfast.parked) and not exists (select from holdfast.stored)`); en.Failed() {
		en.FailNow()
	}
}

// comes waits until a question is answered by yes.
func (en *env) comes(what, question string, args ...any) {
	en.Helper()
	en.comesUnless(func() bool { return false }, what, question, args...)
}

// comesUnless is comes, or over.
func (en *env) comesUnless(over func() bool, what, question string, args ...any) {
	en.Helper()
	// sleep: it does not ask as often as package wait would, because the machine has better things to do
	for begun := time.Now(); !over(); time.Sleep(100 * time.Millisecond) {
		var yes bool
		if err := en.pool.QueryRow(context.Background(), question, args...).Scan(&yes); err != nil {
			en.Fatal(err)
		}
		if yes {
			return
		}
		en.lookNowAndThen()
		if time.Since(begun) > wait.Limit() {
			en.Fatalf("waited %v for this: %s\n%s\nfencing and cursors: %s", wait.Limit(), what, en.Census(), en.accused())
		}
	}
}

// completes waits until a task is done. A lock of the one before may be held for some seconds yet.
func (en *env) completes(role string, v *subject) {
	en.Helper()
	for tries := 1; ; tries++ {
		select {
		case <-v.done:
		case <-time.After(wait.Limit()):
			en.Fatalf("the %s does not end", role)
		}
		if v.err == nil {
			return
		}
		if tries == 10 {
			en.Fatalf("the %s fails again and again: %v", role, v.err)
		}
		v = en.launch(role, "")
	}
}

// expire lets leases run out, which takes longer than a test should: the database's clock decides that, so this is as if
// the time had passed. A relay that is frozen has a clock too, by which its lease is not over: it is waited for.
func (en *env) expire(role string, k kind) {
	en.Helper()
	if role == "consumer" {
		pgtest.Exec(en, en.Db, "update holdfast.stored set lease_until = now() where lease_until > now()")
	}
	if role == "relay" && k != frozen {
		// What the dead one had sent may still be going on: two who lock several rows can be in each other's way.
		en.Await("leases run out", func() bool {
			_, err := en.pool.Exec(context.Background(), "update holdfast.lane set lease_until = now() where lease_until > now()")
			return err == nil
		})
		pgtest.Exec(en, en.Db, "update holdfast.relay set seen_until = now()")
	}
}

// excuse counts how many duplicates in Kafka the end of a relay excuses: what it has published since a save of before it
// began, and the pages in progress. One that stops in order, or is no relay, is excused none.
func (en *env) excuse(v *subject, k kind) {
	if v.role != "relay" || k == stopped {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	var last, before int
	for _, line := range v.lines {
		var n int
		if _, err := fmt.Sscanf(line, "report published %d", &n); err == nil {
			last += n
		} else if strings.HasPrefix(line, "report saved") {
			// It may have begun before what was published since the one before it.
			last, before = 0, last
		}
	}
	en.excused += last + before + lanes*pageSize
	if k == frozen {
		en.excused += lanes * pageSize // What is in progress when it thaws.
	}
}

// lost is how many lanes a subject has lost, and how many duplicates that excuses: what it had published of a lane since a save of
// before the last one, and the pages in progress.
func (s *subject) lost() (lost, excused int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var last, before [lanes]int
	for _, line := range s.lines {
		var n, lane int
		if _, err := fmt.Sscanf(line, "report published %d %d", &n, &lane); err == nil {
			last[lane] += n
		} else if strings.HasPrefix(line, "report saved") {
			last, before = [lanes]int{}, last
		} else if _, err := fmt.Sscanf(line, "report lost %d", &lane); err == nil {
			lost++
			excused += last[lane] + before[lane] + 2*pageSize
			last[lane], before[lane] = 0, 0
		}
	}
	return lost, excused
}

// mustHold asks the oracles.
func (en *env) mustHold() {
	en.Helper()
	en.holds(en.known())
}

// holds asks the oracles about all that is known.
func (en *env) holds(known oracle.Run) {
	en.Helper()
	v := endtoend.VerdictOf(known)
	v.MustHold(en)
	want, got := slices.Sorted(maps.Keys(en.letters)), slices.Sorted(maps.Keys(v.Letters))
	if !slices.Equal(got, want) {
		en.Errorf("open letters are of the events %q, want %q", got, want)
	}
	lost, most := 0, en.excused // A machine that stands still for half a lease costs lanes.
	for _, v := range en.all {
		n, excused := v.lost()
		lost, most = lost+n, most+excused
	}
	if v.Figures.Duplicates > most {
		en.Errorf("Kafka has %d duplicates, at most %d are excused: %s", v.Figures.Duplicates, most, v)
	}
	en.Logf("%d events, %d duplicates of at most %d, %d lanes lost; %d changes of lanes, %d of positions, %d taken in, %d looks at the cursors", v.Figures.Events,
		v.Figures.Duplicates, most, lost, len(known.LaneLog), len(known.PositionLog), len(known.TakenLog), len(known.Cursors))
}

// leave ends the processes of an env in order.
func (en *env) leave() {
	en.Helper()
	// The last relay may have just begun to read again what one before it had published, and not saved.
	en.comes("the cursors are past everything", "select not exists ("+unreadEvents+")")
	var relays, consumers []func()
	for _, v := range en.all {
		if v.ended() {
			continue
		}
		quit := func() {
			if err := v.quit(); err != nil {
				en.Errorf("the %s, told to stop: %v", v.role, err)
			}
		}
		if v.role == "relay" {
			relays = append(relays, quit)
		} else {
			consumers = append(consumers, quit)
		}
	}
	en.Finish(relays, consumers, "billing")
	known := en.known()
	en.left(&known)
	en.holds(known)
}

// write writes events, each the next of its key, in one transaction.
func (en *env) write(events ...holdfast.Event) {
	en.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait.Limit())
	defer cancel()
	var ids, topics, keys []string
	var numbers []int64
	for _, e := range events {
		k := e.Topic + "/" + e.Key
		en.numbers[k]++
		ids, topics, keys, numbers = append(ids, e.ID), append(topics, e.Topic), append(keys, e.Key), append(numbers, en.numbers[k])
	}
	err := pgx.BeginFunc(ctx, en.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into written select * from unnest($1::text[], $2::text[], $3::text[], $4::bigint[])", ids, topics, keys, numbers); err != nil {
			return err
		}
		return outbox.Write(ctx, tx, events...)
	})
	if err != nil {
		en.Fatal(err)
	}
}

// newEnv sets an env up.
func newEnv(t testing.TB, program string, cluster *kafkatest.Cluster, w group, k kind) *env {
	p := setupPath(t, pgtest.New(t), cluster, ofEnv)
	p.meetCoordinator()
	if err := auditlog.Install(t.Context(), p.Db); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, p.Db, "create table fixed ()")
	pgtest.Exec(t, p.Db, "create table called (n bigint generated always as identity primary key, key text not null, id text not null, step text not null, recorded boolean not null)")
	pgtest.Exec(t, p.Db, "create table went_by (id text not null, step text not null, call bigint not null)")
	o := &env{path: p, root: t, kind: k, order: w.order, pool: p.Pool(2), program: program,
		numbers: map[string]int64{}, letters: map[string]bool{}, active: map[string]*subject{}, topicOf: map[int]string{},
		looks: looks{seen: map[string]struct{}{}, next: map[kafkaLog]int64{}}}
	o.order.BatchSize, o.order.Idle = pageSize, idle[k == frozen]
	if o.order.Tries == 0 {
		o.order.Tries = 12
	}
	if o.order.Attempts == 0 {
		o.order.Attempts = 10_000
	}
	// The topics of single rows have to be known before the first consumer starts.
	for i, row := range w.rows {
		switch row.in().topic {
		case tooSmall:
			o.topicOf[i] = cluster.Topic(t, ofRow, "max.message.bytes", fmt.Sprint(smallTopic))
			p.Topics = append(p.Topics, o.topicOf[i])
		case notThere:
			o.topicOf[i] = fmt.Sprintf("%s-%d", o.Topic(), i)
		}
	}
	return o
}

var subjects struct {
	once    sync.Once
	program string
	err     error
}

// buildSubject builds it once for a test binary, and not again while nothing has changed since the last one: go looks at
// what is there before it links.
func buildSubject(t testing.TB) string {
	t.Helper()
	subjects.once.Do(func() {
		here, err := os.Getwd()
		if err == nil {
			subjects.program, err = os.UserCacheDir()
		}
		if err != nil {
			subjects.err = err
			return
		}
		subjects.program += fmt.Sprintf("/holdfast-subject/%x", sha256.Sum256([]byte(here)))
		out, err := exec.Command("go", "build", "-tags", "failpoints", "-o", subjects.program, "github.com/holdfast-go/holdfast/rig/internal/subject").CombinedOutput()
		if err != nil {
			subjects.err = fmt.Errorf("build the subject: %w: %s", err, out)
		}
	})
	if subjects.err != nil {
		t.Fatal(subjects.err)
	}
	return subjects.program
}
