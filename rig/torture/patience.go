//go:build linux

package main

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"time"
)

// patience is how long a run waits for what has to happen. Time counts by what the machine can do meanwhile: while three times as many
// threads want to run as it has processors, because other tests run too, a second counts as a third of one. So a machine that does
// nothing else gives the limit, and so does one on which everything hangs, because what hangs does not want to run. What never happens
// is waited for at most mostPatience times the limit.
type patience struct {
	limit       time.Duration
	begun, last time.Time
	spent       time.Duration
}

// mostPatience bounds how much longer than the limit a slow machine may take.
const mostPatience = 10

func newPatience(limit time.Duration, begun time.Time) *patience {
	return &patience{limit: limit, begun: begun, last: begun}
}

// over counts the time since the last call, in which the machine was so many times slower than with nothing else to do, and says whether
// it is enough.
func (p *patience) over(now time.Time, slower float64) bool {
	p.spent += time.Duration(float64(now.Sub(p.last)) / max(slower, 1))
	p.last = now
	return p.spent >= p.limit || now.Sub(p.begun) >= mostPatience*p.limit
}

// waited is how long it was, by the clock.
func (p *patience) waited() time.Duration { return p.last.Sub(p.begun) }

// slower is how many threads want to run for each processor now: at least 1, and 1 where nobody can tell.
func slower() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 1
	}
	return max(1, float64(wantToRun(text))/float64(runtime.NumCPU()))
}

// wantToRun reads procs_running of proc_stat(5); 0 if it is not there.
func wantToRun(stat []byte) int {
	_, after, _ := bytes.Cut(stat, []byte("\nprocs_running "))
	number, _, _ := bytes.Cut(after, []byte("\n"))
	n, _ := strconv.Atoi(string(number))
	return n
}
