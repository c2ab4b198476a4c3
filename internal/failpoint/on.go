//go:build failpoints && unix

// Package failpoint marks the places between two steps where it matters that a process may end. In a program that is
// built with the tag failpoints, an environment variable can kill, stall, freeze, stop or panic the process
// there; docs/project/failpoints.md says how. In every other program the package is empty, and links nothing.
package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Var names the variable that says where the process ends, and how: "inbox.handled=kill", or "inbox.handled:3=kill" for
// the third time that the point is reached.
const Var = "HOLDFAST_FAILPOINT"

// What may happen to the process.
const (
	Kill   = "kill"   // SIGKILL: nothing runs any more
	Stall  = "stall"  // the goroutine that gets there stands still, the others go on for a second, and then SIGKILL
	Freeze = "freeze" // SIGSTOP: it stands still until it gets a SIGCONT, and goes on then
	Panic  = "panic"  // deferred functions of one goroutine run, and the process ends
	Stop   = "stop"   // SIGTERM: a request to stop, and the process goes on
)

// delivery is how long a signal to ourselves may take to arrive. Nothing after the point runs before it does.
const delivery = 100 * time.Millisecond

// stalling is how long the other goroutines have to do harm with what the stalled one left in memory.
const stalling = time.Second

// order is what shall happen, and how often its point has been reached.
type order struct {
	point Point
	turn  int64
	kind  string
	hits  atomic.Int64
}

var ordered atomic.Pointer[order]

func init() {
	if text := os.Getenv(Var); text != "" {
		if err := Order(text); err != nil {
			panic(err)
		}
	}
}

// Order says where the process ends, and how. It replaces the order before it, and counts the point's turns from now.
func Order(text string) error {
	o, err := parse(text)
	if err == nil {
		ordered.Store(o)
	}
	return err
}

// Hit does what was ordered for p. It may be called from many goroutines at once, and acts in one of them.
func Hit(p Point) {
	o := ordered.Load()
	if o == nil || o.point != p || o.hits.Add(1) != o.turn {
		return
	}
	fmt.Fprintf(os.Stderr, "\nfailpoint %s: %s\n", p, o.kind)
	switch o.kind {
	case Kill:
		signal(syscall.SIGKILL)
	case Stall:
		time.Sleep(stalling)
		signal(syscall.SIGKILL)
	case Freeze:
		signal(syscall.SIGSTOP)
	case Stop:
		signal(syscall.SIGTERM)
	case Panic:
		panic("failpoint " + string(p))
	}
}

func signal(s syscall.Signal) {
	if err := syscall.Kill(syscall.Getpid(), s); err != nil {
		panic(err)
	}
	time.Sleep(delivery)
}

func parse(text string) (*order, error) {
	where, kind, _ := strings.Cut(text, "=")
	name, turn, counted := strings.Cut(where, ":")
	o := &order{point: Point(name), turn: 1, kind: kind}
	if counted {
		n, err := strconv.ParseInt(turn, 10, 64)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("failpoint %q: the turn must be a number from 1 on", text)
		}
		o.turn = n
	}
	switch kind {
	case Kill, Stall, Freeze, Panic, Stop:
	default:
		return nil, fmt.Errorf("failpoint %q: the kind must be %s, %s, %s, %s or %s", text, Kill, Stall, Freeze, Panic, Stop)
	}
	for _, p := range Declared() {
		if p.Point == o.point {
			return o, nil
		}
	}
	return nil, fmt.Errorf("failpoint %q: there is no point %q", text, name)
}
