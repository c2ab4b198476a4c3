package endtoend

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// node is a consumer in a process of its own, that can be frozen and killed. It writes down which process had its
// effect, and under which epoch of its partition.
type node struct {
	Session        time.Duration
	Timeout, Grace time.Duration
	Attempts       int
}

func (n node) consume(ctx context.Context, c part, pool *pgxpool.Pool, logger *slog.Logger) error {
	report := func(what string, partition int, epoch int64, id string) {
		// On a connection of its own, whatever becomes of the transaction in progress.
		_, err := pool.Exec(context.Background(), "insert into report (pid, what, partition, epoch, id) values ($1, $2, $3, $4, $5)", os.Getpid(), what, partition, epoch, id)
		if err != nil {
			logger.Error("the node cannot report", "what", what, "error", err)
		}
	}
	in, err := inbox.New(pool, inbox.Config{Consumer: c.Role, Logger: logger, Timeout: n.Timeout, Grace: max(n.Grace, n.Session/5), StopTimeout: n.Session / 5,
		Retry: retry.Policy{Attempts: n.Attempts, Base: 20 * time.Millisecond, Cap: 100 * time.Millisecond},
		Observer: inbox.Observer{
			OnAssigned: func(p inbox.Assignment, start int64) { report("assigned", p.Partition, p.Epoch, "") },
			OnFenced:   func(p inbox.Assignment) { report("fenced", p.Partition, p.Epoch, "") },
		}})
	if err != nil {
		return err
	}
	in.Handle("changed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		switch e.Headers["do"] {
		case "exit":
			report("start", -1, -1, e.ID)
			os.Exit(7)
		case "work":
			after(ctx, 5*time.Millisecond)
		case "gate": // Inside its transaction, until the test opens the gate.
			report("at the gate", -1, -1, e.ID)
			for after(ctx, 10*time.Millisecond) {
				var open bool
				if err := pool.QueryRow(ctx, "select exists (select from report where what = 'the gate is open')").Scan(&open); err != nil || open {
					break
				}
			}
		}
		return n.witness(ctx, tx, c.Role, e)
	})
	g := endtoend.GroupOf(c.Role, c.Topics)
	g.SessionTimeout, g.HeartbeatInterval = n.Session, n.Session/5
	return endtoend.ConsumeGroup(ctx, in, c.Brokers, g)
}

// witness is putEffect, and which epoch the partition has at this moment: until the transaction ends it has no other,
// if the fence is worth anything.
func (n node) witness(ctx context.Context, tx pgx.Tx, consumer string, e holdfast.Event) error {
	if err := endtoend.PutEffect(ctx, tx, consumer, e); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `update effect set pid = $1, partition = p.partition, epoch = p.epoch from holdfast.consumer_position p
		where effect.consumer = $2 and effect.id = $3 and p.consumer = $2 and p.topic = $4 and p.partition = $5::text::int`, os.Getpid(), consumer, e.ID, e.Topic, e.Headers["partition"])
	return err
}

func (co *consumers) startNode(n node) *process {
	co.Helper()
	return co.startPart(part{Role: "billing", DSN: co.Dsn, Brokers: co.Cluster.Brokers, Topics: co.Topics, Node: &n})
}

func (proc *process) pid() int { return proc.cmd.Process.Pid }

// signal is for a process that we started and have not waited for.
func (co *consumers) signal(proc *process, sig syscall.Signal) {
	co.Helper()
	if err := proc.cmd.Process.Signal(sig); err != nil {
		co.Fatalf("%v: %v", sig, err)
	}
}

// owns waits until a process has been given a partition.
func (co *consumers) owns(proc *process) {
	co.Helper()
	co.Await("the node has a partition", func() bool {
		return co.Count("select count(*) from report where pid = $1 and what = 'assigned'", proc.pid()) > 0
	})
}

// fenced checks that nothing was done under an epoch but by the process that had raised it.
func (co *consumers) fenced() {
	co.Helper()
	if n := co.Count("select count(*) from effect where epoch is not null"); n == 0 {
		co.Error("no effect has a witness")
	}
	if n := co.Count("select count(*) from (select from report where what = 'assigned' group by partition, epoch having count(distinct pid) > 1) x"); n > 0 {
		co.Errorf("%d epochs were raised by two processes", n)
	}
	n := co.Count(`select count(*) from effect e where e.epoch is not null and not exists
		(select from report t where t.what = 'assigned' and t.partition = e.partition and t.epoch = e.epoch and t.pid = e.pid)`)
	if n > 0 {
		co.Errorf("%d effects were committed by a process under an epoch that another had raised", n)
	}
}

func TestLoadNodes_ConsumersThatComeAndGoHandleEverythingOnceInOrder(t *testing.T) {
	skip.InShort(t, "it takes 20 s beside the others")
	// Not parallel: it bounds delays, which depend on what else runs.
	s := setupConsumers(t, 8)
	// A member sends no heartbeats while it hands its partitions over: its session must be longer than that takes.
	n := node{Session: 3 * time.Second, Timeout: 4 * time.Second, Grace: 500 * time.Millisecond}
	steps, step := 9, 2*time.Second
	if testing.Short() {
		steps, step = 4, time.Second
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wait := s.flow(ctx, 100, s.any(40, "work"))

	// 1. Every step one joins or one leaves; one is killed, one is frozen for longer than its session and goes on.
	nodes := []*process{s.startNode(n), s.startNode(n)}
	s.owns(nodes[0])
	take := func() *process { // at random, out of those that work
		i := s.rng.IntN(len(nodes))
		proc := nodes[i]
		nodes = append(nodes[:i], nodes[i+1:]...)
		return proc
	}
	var joined, left int
	var frozen *process
	for i := range steps {
		after(ctx, step)
		switch {
		case i == 1:
			take().kill()
			nodes = append(nodes, s.startNode(n))
		case i == 2:
			frozen = take()
			s.owns(frozen)
			s.signal(frozen, syscall.SIGSTOP)
			nodes = append(nodes, s.startNode(n))
		case len(nodes) < 3:
			nodes = append(nodes, s.startNode(n))
			joined++
		default:
			if err := take().quit(); err != nil {
				t.Errorf("a node, told to stop: %v", err)
			}
			left++
		}
	}
	s.Await("others have the partitions of the frozen node", func() bool {
		return s.Count(`select count(*) from (select distinct on (partition) pid from report where what = 'assigned' order by partition, epoch desc) x where pid = $1`, frozen.pid()) == 0
	})
	thawed := s.Count("select coalesce(max(n), 0) from report")
	s.signal(frozen, syscall.SIGCONT)
	nodes = append(nodes, frozen)
	s.Await("the node that was frozen is a member again", func() bool {
		return s.Count("select count(*) from report where what = 'assigned' and pid = $1 and n > $2", frozen.pid(), thawed) > 0
	})
	cancel()
	wait()

	// 2. The rest drains, and the nodes leave.
	var stops []func()
	for _, proc := range nodes {
		stops = append(stops, func() {
			if err := proc.quit(); err != nil {
				t.Errorf("a node, told to stop: %v", err)
			}
		})
	}
	v := s.ends(stops...)
	all := s.delays("true")
	t.Logf("%d joined, %d left, one was killed, one frozen (%d times fenced); %s; %s", joined+4, left,
		s.Count("select count(*) from report where what = 'fenced'"), all, v)
	v.MustHold(t)
	s.fenced()
	// On a quiet machine: a session, and how long a transaction may stay that a frozen node left open, which is Timeout,
	// Grace and ten seconds.
	if bound := 90 * time.Second; all.max > bound {
		t.Errorf("an event was delayed by %v, want at most %v", all.max, bound)
	}
}

func TestLoadNodes_ANodeFrozenInsideAHandlerHoldsItsPartition(t *testing.T) {
	t.Parallel()
	skip.InShort(t, "Postgres ends the frozen transaction after 10 s, the handler's time and its grace")
	s := setupConsumers(t, 1)
	n := node{Session: time.Second, Timeout: 5 * time.Second, Grace: 500 * time.Millisecond}
	frozen := s.startNode(n)
	s.owns(frozen)

	// 1. It is frozen with hundreds of events to handle and one of them inside its handler.
	s.freezeAtTheGate(frozen)
	begun := time.Now()
	pgtest.Exec(t, s.Db, "insert into report (what) values ('the gate is open')")
	before, written := s.Count("select count(*) from effect"), s.Count("select count(*) from written")
	other := s.startNode(n)
	s.owns(other)
	took := time.Since(begun)

	// 2. The other is at work when the zombie wakes: both are working on the same events.
	s.signal(frozen, syscall.SIGCONT)
	s.Await("the zombie hears that it is fenced", func() bool {
		return s.Count("select count(*) from report where what = 'fenced' and pid = $1", frozen.pid()) > 0
	})
	v := s.ends(func() { _ = frozen.quit() }, func() { _ = other.quit() })
	t.Logf("%d of %d were handled before the freeze; another node had the partition %v after it; %s; %s", before, written, took.Round(time.Millisecond), s.delays("true"), v)
	v.MustHold(t)
	s.fenced()
	if limit := n.Session + 10*time.Second + n.Timeout + n.Grace; took > limit+15*time.Second {
		t.Errorf("another node had the partition after %v, want about %v", took, limit)
	}
}

// freezeAtTheGate stops a node's process while a handler of its is inside its transaction. On a busy machine the handler
// may run into its time-out first. Its event is stored then, and guarded by the lease of its key: not by the fence of
// the partition, which is what the caller looks at. So that is tried again, with other events.
func (co *consumers) freezeAtTheGate(proc *process) {
	co.Helper()
	for tries := int64(1); tries <= 20; tries++ {
		events := append(co.some(100, 8, "work"), co.next("gate", "gate"))
		co.publish(append(events, co.some(2000, 8, "work")...)...)
		co.Await("a handler is at the gate", func() bool {
			return co.Count("select count(distinct id) from report where what = 'at the gate'") == tries
		})
		co.signal(proc, syscall.SIGSTOP)
		open := co.Count("select count(*) from pg_stat_activity where datname = current_database() and state = 'idle in transaction'")
		if open > 0 && co.Count("select count(*) from holdfast.stored") == 0 {
			return
		}
		co.Logf("no handler was inside its transaction when the process stopped: once more")
		co.signal(proc, syscall.SIGCONT)
		co.Await("everything is handled", func() bool {
			return co.Count("select count(*) from written w where not exists (select from effect e where e.id = w.id)") == 0
		})
	}
	co.Fatal("no handler could be frozen inside its transaction")
}
