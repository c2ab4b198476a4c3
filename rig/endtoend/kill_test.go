package endtoend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/endtoend"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/relay"
)

// partVar makes this test binary a part of the path, a relay or a consumer, instead of running tests. Its value is a
// part in JSON.
const partVar = "HOLDFAST_INTEGRATION_PART"

// part is a relay or a consumer in a process of its own.
type part struct {
	Role    string // "relay", or the consumer's name
	DSN     string
	Brokers []string
	Topics  []string
	Node    *node // a consumer that does more than that: load_test.go
}

func isPart() bool { return os.Getenv(partVar) != "" }

// runPart is the whole program of a part. It ends in order when its standard input ends: when the test closes it, and
// when the test is no more.
func runPart() int {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
		time.Sleep(wait.Limit()) // sleep: it must not outlive its test, whatever hangs
		os.Exit(3)
	}()
	if err := doPart(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func doPart(ctx context.Context) error {
	var c part
	if err := json.Unmarshal([]byte(os.Getenv(partVar)), &c); err != nil {
		return err
	}
	logger := endtoend.TextLogger(os.Stderr, fmt.Sprint(c.Role, " ", os.Getpid()))
	pool, err := endtoend.OpenPool(c.DSN, pgx.QueryExecModeCacheStatement, 10)
	if err != nil {
		return err
	}
	defer pool.Close()
	if c.Role == "relay" {
		r, err := endtoend.NewRelay(pool, c.Brokers, kafkago.PublisherConfig{}, relay.Config{Lease: 3 * time.Second, Logger: logger})
		if err != nil {
			return err
		}
		return r.Run(ctx)
	}
	if c.Node != nil {
		return c.Node.consume(ctx, c, pool, logger)
	}
	in, err := inbox.New(pool, inbox.Config{Consumer: c.Role, Logger: logger, StopTimeout: 300 * time.Millisecond, Grace: 300 * time.Millisecond})
	if err != nil {
		return err
	}
	in.Handle("changed", endtoend.EffectOf(c.Role))
	g := endtoend.GroupOf(c.Role, c.Topics)
	g.SessionTimeout, g.HeartbeatInterval = time.Second, 200*time.Millisecond // a killed member is missed soon
	return endtoend.ConsumeGroup(ctx, in, c.Brokers, g)
}

// process is a part that runs, or was killed.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}
	err   error // how it ended; set when done is closed
}

func (p *path) start(role string) *process {
	p.Helper()
	return p.startPart(part{Role: role, DSN: p.Dsn, Brokers: p.Cluster.Brokers, Topics: p.Topics})
}

func (p *path) startPart(c part) *process {
	p.Helper()
	config, err := json.Marshal(c)
	if err != nil {
		p.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), partVar+"="+string(config))
	cmd.Stderr = p.Tail
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.Fatalf("start %s: %v", c.Role, err)
	}
	proc := &process{cmd: cmd, stdin: stdin, done: make(chan struct{})}
	go func() {
		defer close(proc.done)
		proc.err = cmd.Wait()
	}()
	p.Cleanup(proc.kill)
	return proc
}

// kill ends it as a crash does.
func (proc *process) kill() {
	_ = proc.cmd.Process.Kill()
	<-proc.done
}

// quit ends it in order.
func (proc *process) quit() error {
	_ = proc.stdin.Close()
	select {
	case <-proc.done:
		return proc.err
	case <-time.After(wait.Limit()):
		return errors.New("it does not stop")
	}
}

func TestKill_NothingIsLostWhileRelaysAndConsumersAreKilled(t *testing.T) {
	skip.InShort(t, "it takes 34 s beside the others")
	t.Parallel()
	lasting := 20 * time.Second
	if testing.Short() {
		lasting = 6 * time.Second
	}
	// A broker of its own: the usual one does not let a session be shorter than 6 s, and a killed member holds its group
	// for so long.
	p := setupPath(t, pgtest.Container(t, pgtest.Image), kafkatest.Own(t, "group.min.session.timeout.ms", "500"), 8)
	p.meetCoordinator()
	roles := []string{"relay", "relay", "billing", "billing"}
	parts := make([]*process, len(roles))
	for i, role := range roles {
		parts[i] = p.start(role)
	}
	seed := seed.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), lasting)
	defer cancel()
	begun := time.Now()
	w := load{writers: 6, keys: 24, perSecond: 150, seed: seed}.write(ctx, p)

	// Something is killed every one to two seconds, and missing for up to one.
	var kills [2]int
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	for after(ctx, time.Second+time.Duration(rng.IntN(200))*time.Millisecond) {
		i := rng.IntN(len(parts))
		parts[i].kill()
		kills[i/2]++
		after(ctx, time.Duration(rng.IntN(800))*time.Millisecond)
		parts[i] = p.start(roles[i])
	}
	w.wg.Wait()
	wrote := time.Since(begun)
	p.Arrive("billing")
	drained := time.Since(begun) - wrote
	var relays, consumers []func()
	for i, proc := range parts {
		stop := func() {
			if err := proc.quit(); err != nil {
				t.Errorf("%s, told to stop: %v", roles[i], err)
			}
		}
		if roles[i] == "relay" {
			relays = append(relays, stop)
		} else {
			consumers = append(consumers, stop)
		}
	}
	v := p.Finish(relays, consumers, "billing")
	t.Logf("%d relays and %d consumers killed in %v, the rest arrived %v later; %s; %s", kills[0], kills[1],
		wrote.Round(time.Millisecond), drained.Round(time.Millisecond), w, v)
	v.MustHold(t)
	w.kept(p)
	if kills[0]+kills[1] == 0 {
		t.Error("nothing was killed, so nothing was tested")
	}
}

// meetCoordinator waits until the broker has made the topic of its consumer groups, which takes it seconds at first.
func (p *path) meetCoordinator() {
	p.Await("the broker coordinates groups", func() bool {
		res, err := p.Cluster.Client.FindCoordinator(p.Context(), &kafka.FindCoordinatorRequest{Key: "any", KeyType: kafka.CoordinatorKeyTypeConsumer})
		return err == nil && res.Error == nil
	})
}

// after waits, and is false when ctx ended meanwhile.
func after(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
