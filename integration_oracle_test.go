package holdfast_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// fact is an event that was committed: the table written says so. number is its place in its key's order, decided by
// the row lock under which it was drawn, not by clocks.
type fact struct {
	id, topic, key string
	number         int64
}

// arrival is a record in Kafka, in the order of its partition.
type arrival struct {
	id, topic, key string
	partition      int
}

// effect is what a handler did, in the order of commits of its key.
type effect struct{ consumer, id, key string }

// verdict is what the oracle found.
type verdict struct {
	committed, arrivals, effects int

	duplicates int // records whose id came before in Kafka: allowed, at least once
	furthest   int // records between a duplicate and its first, at most

	lost       int // committed, not in Kafka
	ghosts     int // in Kafka, not committed
	disordered int // first arrivals in Kafka that overtook an earlier one of their key
	strayed    int // keys in two partitions

	missing     int // committed, no effect
	double      int // effects that happened again
	phantoms    int // effects of what was not committed
	outOfTurn   int // effects that overtook an earlier one of their key
	parked      int64
	stored      int64
	letters     int64
	examples    []string
	withLetters map[string]bool // ids that are excused: they are dead letters of the test's own making
}

// judge is the oracle. It decides on what was committed, what arrived and what was done; nobody's word counts.
func judge(facts []fact, arrivals []arrival, effects []effect, consumers, excused []string) verdict {
	v := verdict{committed: len(facts), arrivals: len(arrivals), effects: len(effects), withLetters: map[string]bool{}}
	for _, id := range excused {
		v.withLetters[id] = true
	}
	known := make(map[string]fact, len(facts))
	for _, f := range facts {
		known[f.id] = f
	}
	example := func(format string, args ...any) {
		if len(v.examples) < 8 {
			v.examples = append(v.examples, fmt.Sprintf(format, args...))
		}
	}

	// 1. Kafka.
	first := map[string]int{}
	last := map[[2]string]fact{}
	home := map[[2]string]int{}
	for i, a := range arrivals {
		f, ok := known[a.id]
		if !ok {
			v.ghosts++
			example("ghost: %s of key %q is in Kafka and was never committed", a.id, a.key)
			continue
		}
		if before, again := first[a.id]; again {
			v.duplicates++
			v.furthest = max(v.furthest, i-before)
			continue
		}
		first[a.id] = i
		if a.key == "" {
			continue
		}
		k := [2]string{a.topic, a.key}
		if before, ok := last[k]; ok && f.number <= before.number {
			v.disordered++
			example("order in Kafka: number %d of key %q came after %d", f.number, a.key, before.number)
		}
		last[k] = f
		if partition, ok := home[k]; ok && partition != a.partition {
			v.strayed++
			example("key %q is in partitions %d and %d", a.key, partition, a.partition)
		}
		home[k] = a.partition
	}

	// 2. Effects.
	done := map[[2]string]bool{}
	turn := map[[3]string]fact{}
	for _, e := range effects {
		f, ok := known[e.id]
		if !ok {
			v.phantoms++
			example("phantom: %s of key %q had an effect with %s and was never committed", e.id, e.key, e.consumer)
			continue
		}
		if done[[2]string{e.consumer, e.id}] {
			v.double++
			example("double: number %d of key %q had its effect with %s again", f.number, e.key, e.consumer)
			continue
		}
		done[[2]string{e.consumer, e.id}] = true
		if e.key == "" {
			continue
		}
		k := [3]string{e.consumer, f.topic, e.key}
		if before, ok := turn[k]; ok && f.number <= before.number {
			v.outOfTurn++
			example("order of effects: number %d of key %q came after %d with %s", f.number, e.key, before.number, e.consumer)
		}
		turn[k] = f
	}

	// 3. What is not there.
	for _, f := range facts {
		if v.withLetters[f.id] {
			continue
		}
		if _, ok := first[f.id]; !ok {
			v.lost++
			example("lost: number %d of key %q (%s) is not in Kafka", f.number, f.key, f.id)
		}
		for _, c := range consumers {
			if !done[[2]string{c, f.id}] {
				v.missing++
				example("missing: number %d of key %q (%s) had no effect with %s", f.number, f.key, f.id, c)
			}
		}
	}
	return v
}

func (v verdict) holds() bool {
	return v.lost+v.ghosts+v.disordered+v.strayed+v.missing+v.double+v.phantoms+v.outOfTurn == 0 &&
		v.parked+v.stored == 0 && v.letters == int64(len(v.withLetters))
}

func (v verdict) mustHold(t testing.TB) {
	t.Helper()
	if !v.holds() {
		t.Errorf("the oracle says no: %s\n%s", v, strings.Join(v.examples, "\n"))
	}
	if v.committed == 0 {
		t.Error("nothing was written, so nothing was tested")
	}
}

func (v verdict) String() string {
	return fmt.Sprintf("%d events committed, %d records in Kafka (%d duplicates, furthest %d records behind), %d effects; "+
		"in Kafka %d lost, %d ghosts, %d out of order, %d strayed; effects %d missing, %d double, %d phantoms, %d out of order; %d parked, %d stored, %d letters",
		v.committed, v.arrivals, v.duplicates, v.furthest, v.effects,
		v.lost, v.ghosts, v.disordered, v.strayed, v.missing, v.double, v.phantoms, v.outOfTurn, v.parked, v.stored, v.letters)
}

// judge reads everything and asks the oracle. Events of open letters are excused from arriving.
func (p *path) judge(consumers ...string) verdict {
	p.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	rows, err := p.db.Query(ctx, "select id, topic, key, number from written")
	if err != nil {
		p.Fatal(err)
	}
	facts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f fact, err error) {
		return f, row.Scan(&f.id, &f.topic, &f.key, &f.number)
	})
	if err != nil {
		p.Fatal(err)
	}
	if rows, err = p.db.Query(ctx, "select consumer, id, key from effect order by n"); err != nil {
		p.Fatal(err)
	}
	effects, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e effect, err error) {
		return e, row.Scan(&e.consumer, &e.id, &e.key)
	})
	if err != nil {
		p.Fatal(err)
	}
	if rows, err = p.db.Query(ctx, "select event_id from holdfast.letter where state = 'open'"); err != nil {
		p.Fatal(err)
	}
	dead, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.Fatal(err)
	}
	var arrivals []arrival
	for _, topic := range p.topics {
		for _, r := range p.cluster.ReadAll(p, topic) {
			id, _ := r.Header("ce_id")
			arrivals = append(arrivals, arrival{id, topic, string(r.Key), r.Partition})
		}
	}
	v := judge(facts, arrivals, effects, consumers, dead)
	v.parked = p.count("select count(*) from holdfast.parked")
	v.stored = p.count("select count(*) from holdfast.stored")
	v.letters = p.count("select count(*) from holdfast.letter where state = 'open'")
	return v
}

func newID() string { return strings.ToLower(rand.Text()) + "-0123456789" }

func TestTheOracleSeesEveryKindOfWrong(t *testing.T) {
	facts := []fact{{"a1", "o", "a", 1}, {"a2", "o", "a", 2}, {"b1", "o", "b", 1}}
	in := func(ids ...string) (arrivals []arrival) {
		for _, id := range ids {
			arrivals = append(arrivals, arrival{id, "o", id[:1], 0})
		}
		return arrivals
	}
	did := func(ids ...string) (effects []effect) {
		for _, id := range ids {
			effects = append(effects, effect{"c", id, id[:1]})
		}
		return effects
	}
	for _, c := range []struct {
		name     string
		arrivals []arrival
		effects  []effect
		found    func(v verdict) int
	}{
		{"an event that is not in Kafka", in("a1", "b1"), did("a1", "a2", "b1"), func(v verdict) int { return v.lost }},
		{"a record of nothing that was committed", in("a1", "x1", "a2", "b1"), did("a1", "a2", "b1"), func(v verdict) int { return v.ghosts }},
		{"a key whose order is broken in Kafka", in("a2", "a1", "b1"), did("a1", "a2", "b1"), func(v verdict) int { return v.disordered }},
		{"a key in two partitions", append(in("a1", "b1"), arrival{"a2", "o", "a", 1}), did("a1", "a2", "b1"), func(v verdict) int { return v.strayed }},
		{"an effect that is missing", in("a1", "a2", "b1"), did("a1", "b1"), func(v verdict) int { return v.missing }},
		{"an effect that happened twice", in("a1", "a2", "b1"), did("a1", "a2", "b1", "b1"), func(v verdict) int { return v.double }},
		{"an effect of nothing that was committed", in("a1", "a2", "b1"), did("a1", "a2", "x1", "b1"), func(v verdict) int { return v.phantoms }},
		{"effects of a key out of order", in("a1", "a2", "b1"), did("a2", "a1", "b1"), func(v verdict) int { return v.outOfTurn }},
	} {
		v := judge(facts, c.arrivals, c.effects, []string{"c"}, nil)
		if c.found(v) != 1 || v.holds() {
			t.Errorf("%s: the oracle says %s", c.name, v)
		}
	}
	v := judge(facts, in("a1", "b1", "a2", "a1"), did("b1", "a1", "a2"), []string{"c"}, nil)
	if !v.holds() || v.duplicates != 1 || v.furthest != 3 {
		t.Errorf("a redelivery, and keys in any order among each other: the oracle says %s", v)
	}
}
