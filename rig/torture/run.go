//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// drawn is the randomness of one thing of a run: its nth fault, the nth start of an actor. It does not depend on the
// machine, nor on how often something else was drawn before.
func drawn(seed uint64, what string, n int) *rand.Rand {
	h := fnv.New64a()
	fmt.Fprint(h, what, " ", n)
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// Options says what to run. The zero value of each field means its default.
type Options struct {
	// For is how long faults are made, without the time for making the ground and judging. Defaults to 3 min.
	For time.Duration
	// Seed decides which faults come when, for how long, and what is written. Defaults to a random one. It does not decide
	// what the machine's scheduler does: a seed repeats the plan of a run, not its every step.
	Seed uint64
	// Faults are names of faults, or patterns of path.Match: "kill-*". Defaults to "*", which is all but those that last
	// long; "all" is these as well.
	Faults []string
	// Brokers is how many brokers of Kafka there are: 1, or 3 that are one cluster. Defaults to 1.
	Brokers int
	// PgBouncer puts PgBouncer in transaction pooling between all parts and Postgres.
	PgBouncer bool
	// Postgres is the folder of the programs of PostgreSQL to run, initdb and postgres at least. Defaults to the first that
	// is found on this machine.
	Postgres string
	// Producers, Relays and Consumers are how many processes there are of each. Default to 2.
	Producers, Relays, Consumers int
	// Rate is how many transactions a second each producer begins. Defaults to 30.
	Rate int
	// Repeat lets a run go on until it has made each of its faults, however long that takes. More than 1 is for the function
	// Repeat, which makes so many runs. Defaults to 0: a run ends when For is over.
	Repeat int
	// Dir is where histories and logs stay. Defaults to a folder that is removed if the run holds.
	Dir string
	// Out gets a line for everything that happens. Defaults to nothing.
	Out io.Writer

	// For the suite's own tests: a bug to inject, a broker that several runs share, the prefix of their topics, how long a
	// recovery may take (a minute by default; patience says how it is counted), and how long a relay may save nothing.
	bug     string
	shared  *kafkaserver.Server
	prefix  string
	limit   time.Duration
	unsaved time.Duration
}

func (o Options) withDefaults() Options {
	if o.For == 0 {
		o.For = 3 * time.Minute
	}
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	if len(o.Faults) == 0 {
		o.Faults = []string{"*"}
	}
	for _, n := range []*int{&o.Producers, &o.Relays, &o.Consumers} {
		if *n == 0 {
			*n = 2
		}
	}
	if o.Brokers == 0 {
		o.Brokers = 1
	}
	if o.Rate == 0 {
		o.Rate = 30
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.limit == 0 {
		o.limit = time.Minute
	}
	return o
}

func (o Options) validate() error {
	var problems []error
	bad := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if o.For < time.Second {
		bad("for is %s: it must be at least 1s", o.For)
	}
	for name, n := range map[string]int{"producers": o.Producers, "relays": o.Relays, "consumers": o.Consumers} {
		if n < 1 || n > 20 {
			bad("%s is %d: it must be between 1 and 20", name, n)
		}
	}
	if o.Brokers != 1 && o.Brokers != 3 {
		bad("brokers is %d: it must be 1 or 3", o.Brokers)
	}
	if o.Repeat < 0 || o.Repeat > 1000 {
		bad("repeat is %d: it must be between 0 and 1000", o.Repeat)
	}
	if o.Rate < 1 || o.Rate > 1000 {
		bad("rate is %d: it must be between 1 and 1000 transactions a second", o.Rate)
	}
	for _, pattern := range o.Faults {
		if len(chosen([]string{pattern})) == 0 {
			bad("faults has %q, and no fault has a name like that: -list shows them", pattern)
		}
	}
	return errors.Join(problems...)
}

// chosen are the faults that patterns name, in the catalogue's order.
func chosen(patterns []string) (some []fault) {
	for _, f := range catalogue() {
		if slices.ContainsFunc(patterns, func(pattern string) bool {
			ok, _ := path.Match(pattern, f.name)
			return ok && (pattern != "*" || !f.long) || pattern == "all"
		}) {
			some = append(some, f)
		}
	}
	return some
}

// run is one run in progress.
type run struct {
	Options
	*ground
	*cast
	rec     *history.Recorder
	rng     *rand.Rand
	samples sampler
	witness *witness
	idle    idleness
	report  *Report
	since   time.Time     // all that was committed before has arrived
	slowest time.Duration // recovery that patience allowed, by the clock
}

// Run makes a ground, starts the parts, makes faults until the time is over, and judges. The error says that there could be
// no run, or that it broke off; the findings of the oracles are in the Report.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("torture: %w", err)
	}
	keep := o.Dir != ""
	if !keep {
		if o.Dir, err = os.MkdirTemp("", "holdfast-torture-"); err != nil {
			return nil, fmt.Errorf("torture: %w", err)
		}
	}
	if err := emptyFolder(o.Dir); err != nil {
		return nil, fmt.Errorf("torture: dir: %w", err)
	}
	r := &run{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 0)), report: &Report{Options: o}}
	began := time.Now()
	err = r.run(ctx)
	r.report.Took = time.Since(began)
	if err != nil {
		return r.report, fmt.Errorf("torture: %w", err)
	}
	if !keep {
		r.report.tidy()
	}
	return r.report, nil
}

// emptyFolder makes a folder, or checks that it is empty: files of another run would count as this one's.
func emptyFolder(name string) error {
	if err := os.MkdirAll(name, 0o755); err != nil {
		return err
	}
	there, err := os.ReadDir(name)
	if err != nil {
		return err
	}
	if len(there) > 0 {
		return fmt.Errorf("%s has %s in it, and %d more: name an empty folder, or one that is not there", name, there[0].Name(), len(there)-1)
	}
	return nil
}

func (r *run) run(ctx context.Context) (err error) {
	r.report.faults = chosen(r.Faults)
	late := !slices.ContainsFunc(r.report.faults, func(f fault) bool { return f.name == missingTopic })
	r.say("seed %d; the servers start", r.Seed)
	if r.ground, err = newGround(ctx, r.Dir, r.Options, late); err != nil {
		return err
	}
	defer r.ground.stop()
	var version string
	if err := r.admin.QueryRow(ctx, "show server_version").Scan(&version); err != nil {
		return err
	}
	r.say("PostgreSQL %s, Kafka of %d", version, len(r.kafka.Nodes()))
	histories, err := folder(r.Dir, "history")
	if err != nil {
		return err
	}
	if r.rec, err = history.Open(histories, "run"); err != nil {
		return err
	}
	defer r.rec.Close()
	r.witness = newWitness(histories)
	logs, err := folder(r.Dir, "log")
	if err != nil {
		return err
	}
	if !late {
		r.rec.Add(history.Entry{Op: history.Fault, Text: missingTopic}) // it lasts from the start, until it is drawn
	}
	r.cast = &cast{
		ground:  r.ground,
		dir:     logs,
		seed:    r.Seed,
		running: map[string]*process{},
		base: part{
			History:  histories,
			Topics:   r.topics,
			Late:     r.late,
			Misspelt: r.misspelt,
			Provider: r.provider.url,
			Rate:     r.Rate,
			Bug:      r.bug,
		},
	}
	if r.PgBouncer {
		r.base.Mode = "exec"
	}
	defer r.killAll()
	for _, some := range []struct {
		role string
		n    int
	}{{roleProducer, r.Producers}, {roleRelay, r.Relays}, {roleConsumer, r.Consumers}, {rolePerson, 1}} {
		for i := range some.n {
			if err := r.start(some.role, fmt.Sprint(some.role, "/", i)); err != nil {
				return err
			}
		}
	}
	if r.bouncer != nil {
		finish := r.supervise(ctx, r.bouncer)
		defer func() { r.report.revived = finish() }() // before the ground is stopped
	}
	broken := r.makeFaults(ctx)
	if broken != nil { // What was done until then can be judged all the same.
		r.say("broken off: %v", broken)
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), judgesWithin)
		defer cancel()
	}
	err = r.comeToRest(ctx)
	if err == nil {
		err = r.judge(ctx, histories)
	}
	if broken != nil && err != nil {
		err = fmt.Errorf("it could not be judged: %w", err)
	}
	return errors.Join(broken, err)
}

// judgesWithin bounds the judging of a run that was broken off.
const judgesWithin = 10 * time.Minute

// rest is the time between a recovery and the next fault.
const rest = 300 * time.Millisecond

// recoversWith is for how long after the heal of a fault events are written that have to arrive too before all has
// recovered: earlier ones may not need a part that was killed and is back at once. So no recovery takes less.
const recoversWith = time.Second

// makeFaults draws from a deck until the time is over: every fault comes once before one comes twice.
func (r *run) makeFaults(ctx context.Context) error {
	if err := r.awaitSomething(ctx); err != nil {
		return err
	}
	var deck []fault
	for end := time.Now().Add(r.For); time.Now().Before(end) || r.Repeat > 0 && len(r.report.made) < len(r.report.faults); {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(deck) == 0 {
			if deck = r.shuffled(); len(deck) == 0 {
				return errors.New("none of the faults can be made on this machine")
			}
		}
		f := deck[0]
		deck = deck[1:]
		if err := r.make(ctx, f); err != nil {
			return err
		}
		sleep(ctx, rest)
	}
	return nil
}

// shuffled is a new deck. The fault of the missing topic comes before all others, and never again.
func (r *run) shuffled() (deck []fault) {
	r.report.impossible = map[string]string{}
	for _, f := range r.report.faults {
		if why := f.impossible(r.ground); why != "" {
			r.report.impossible[f.name] = why
		} else if f.name != missingTopic {
			deck = append(deck, f)
		}
	}
	r.rng.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
	for _, f := range r.report.faults {
		if f.name == missingTopic && r.report.count(missingTopic) == 0 {
			deck = slices.Insert(deck, 0, f)
		}
	}
	return deck
}

// make makes one fault, holds and heals it, and waits until all has recovered.
func (r *run) make(ctx context.Context, f fault) error {
	rng := drawn(r.Seed, "fault", len(r.report.made))
	s := &stage{
		ground:  r.ground,
		cast:    r.cast,
		rng:     rng,
		witness: r.witness,
		held:    between(rng, f.hold[0], f.hold[1]),
	}
	beside := !f.alone && s.held > time.Second && rng.IntN(3) == 0
	began := time.Now()
	if err := r.witness.look(); err != nil {
		return err
	}
	if f.name != missingTopic {
		r.rec.Add(history.Entry{Op: history.Fault, Text: f.name})
	}
	heal, err := f.begin(ctx, s)
	if err != nil {
		return fmt.Errorf("make %s: %w", f.name, err)
	}
	if beside {
		sleep(ctx, s.held/2)
		role := []string{roleProducer, roleRelay, roleConsumer}[rng.IntN(3)]
		if _, err := killOne(s, role); err != nil {
			return fmt.Errorf("kill a %s beside %s: %w", role, f.name, err)
		}
		s.held /= 2
	}
	sleep(ctx, s.held)
	hit, err := s.awaitHit(ctx)
	if err != nil {
		return fmt.Errorf("hold %s: %w", f.name, err)
	}
	if heal != nil {
		if err := heal(context.WithoutCancel(ctx)); err != nil { // Also where the run is interrupted: what was done is judged.
			return fmt.Errorf("heal %s: %w", f.name, err)
		}
	}
	healed := time.Now()
	r.rec.Add(history.Entry{Op: history.Heal, Text: f.name})
	waits, err := r.recover(ctx, healed, healed.Add(recoversWith))
	if err != nil {
		return fmt.Errorf("after %s: %w", f.name, err)
	}
	m := made{
		name:      f.name,
		missed:    !hit,
		beside:    beside,
		held:      healed.Sub(began),
		recovered: time.Since(healed),
	}
	if m.flowing, err = r.flowing(ctx, healed); err != nil {
		return fmt.Errorf("after %s: %w", f.name, err)
	}
	if m.missed {
		r.say("%-28s NEVER HIT anything", f.name)
	}
	if waits == "" {
		r.rec.Add(history.Entry{Op: history.Recovered, Text: f.name})
		r.slowest = max(r.slowest, time.Since(healed))
		r.say("%-28s held %6s, events flow after %6s, recovered in %6s%s", f.name, round(m.held), inTime(m.flowing), round(m.recovered), s.drew())
	} else {
		m.recovered = never
		r.say("%-28s held %6s, NOT RECOVERED after %s: %s%s", f.name, round(m.held), round(r.limit), waits, s.drew())
	}
	r.report.made = append(r.report.made, m)
	if early := r.endedEarly(); len(early) > 0 {
		return fmt.Errorf("after %s: ended although nobody ended them: %s (see their logs in %s)", f.name, strings.Join(early, ", "), filepath.Join(r.Dir, "log"))
	}
	for _, idle := range r.idle.after(time.Now(), r.workers(), r.witness.stirred) {
		r.trouble(errors.New(idle))
	}
	return errors.Join(r.measure(ctx), r.sample(ctx))
}

// drew says in brackets what a fault has drawn.
func (s *stage) drew() string {
	if s.about == "" {
		return ""
	}
	return " (" + s.about + ")"
}

// holdsOn is how much longer a fault is held that has not hit anything yet.
const holdsOn = 20 * time.Second

// awaitHit lets a fault last until it has hit something, and says whether it has.
func (s *stage) awaitHit(ctx context.Context) (hit bool, err error) {
	if s.hit == nil {
		return true, nil
	}
	for end := time.Now().Add(holdsOn); ; {
		if hit, err = s.hit(); hit || err != nil || time.Now().After(end) || !sleep(ctx, 50*time.Millisecond) {
			return hit, err
		}
	}
}

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.Out, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func round(d time.Duration) string {
	return fmt.Sprintf("%.1fs", d.Seconds())
}
