//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/oracle"
)

// process is a part that runs. Its methods are for one goroutine.
type process struct {
	part  part
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}
	err   error // how it ended; set when done is closed
}

// cast is all the parts of a run, each in its place.
type cast struct {
	ground *ground
	base   part // what all parts share
	dir    string
	seed   uint64 // of the run

	mu      sync.Mutex
	running map[string]*process          // by actor
	dead    map[oracle.Process]time.Time // those that were killed, and when
	starts  map[string]int               // of each actor
	roles   []string                     // of actors, in the order of their start
	actors  []string
}

// start starts a part in its place: a new one, or the next process after one that was killed.
func (c *cast) start(role, actor string) error {
	p := c.base
	p.Role, p.Actor, p.Seed = role, actor, drawn(c.seed, actor, c.startsOf(actor)).Uint64()
	p.DSN = c.ground.dsn(role)
	p.Brokers = c.ground.kafka.Brokers
	p.Through = c.ground.through(role)
	config, err := json.Marshal(p)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("start %s: %w", actor, err)
	}
	log, err := os.OpenFile(filepath.Join(c.dir, strings.ReplaceAll(actor, "/", "-")+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("start %s: %w", actor, err)
	}
	defer log.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), partVar+"="+string(config))
	cmd.Stderr = log
	// A group of its own: an interrupt typed at the terminal is for the run, which stops its parts in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", actor, err)
	}
	proc := watch(p, cmd, stdin)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.actors, actor) {
		c.actors, c.roles = append(c.actors, actor), append(c.roles, role)
	}
	c.running[actor] = proc
	return nil
}

// startsOf counts the starts of an actor, and begins at 0.
func (c *cast) startsOf(actor string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.starts == nil {
		c.starts = map[string]int{}
	}
	c.starts[actor]++
	return c.starts[actor] - 1
}

// watch is a process that has been started.
func watch(p part, cmd *exec.Cmd, stdin io.WriteCloser) *process {
	proc := &process{part: p, cmd: cmd, stdin: stdin, done: make(chan struct{})}
	go func() {
		defer close(proc.done)
		proc.err = cmd.Wait()
	}()
	return proc
}

// of lists the actors of a role.
func (c *cast) of(role string) (actors []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, actor := range c.actors {
		if c.roles[i] == role && c.running[actor] != nil {
			actors = append(actors, actor)
		}
	}
	return actors
}

// processes are those that run in the places of a role.
func (c *cast) processes(role string) (all []oracle.Process) {
	for _, actor := range c.of(role) {
		if p := c.get(actor); p != nil {
			all = append(all, p.who())
		}
	}
	return all
}

func (c *cast) get(actor string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running[actor]
}

// endedEarly lists the actors whose process ended although nobody ended it.
func (c *cast) endedEarly() (actors []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, actor := range c.actors {
		if p := c.running[actor]; p != nil && p.ended() {
			actors = append(actors, actor)
		}
	}
	return actors
}

// kill ends a process as a crash does. One that has ended before is not killed: it crashed by itself, and its last
// history entry must not be missing.
func (c *cast) kill(p *process) error {
	at := time.Now()
	if err := p.end(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead == nil {
		c.dead = map[oracle.Process]time.Time{}
	}
	c.dead[p.who()] = at
	return nil
}

// killed lists what kill has ended, and when.
func (c *cast) killed() map[oracle.Process]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.dead)
}

// leave takes a part out of its place: it still runs, and no fault hits it.
func (c *cast) leave(actor string) *process {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.running[actor]
	delete(c.running, actor)
	return p
}

// who is its name in the history.
func (p *process) who() oracle.Process {
	return oracle.Process{Actor: p.part.Actor, PID: p.cmd.Process.Pid}
}

// ended says whether it has ended.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// end kills it. The error says that it had ended before, by itself.
func (p *process) end() error {
	before := p.ended()
	_ = p.cmd.Process.Kill()
	<-p.done
	// A signal between its end and its wait has no effect: then the status is its own.
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if before || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		return fmt.Errorf("%s ended before it was killed: %s", p.who(), p.cmd.ProcessState)
	}
	return nil
}

// name is that of its sessions.
func (p *process) name() string { return fmt.Sprint(p.part.Actor, "/", p.cmd.Process.Pid) }

func (p *process) freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) thaw() error   { return p.cmd.Process.Signal(syscall.SIGCONT) }

// command sends it a command.
func (p *process) command(command string) error {
	_, err := fmt.Fprintln(p.stdin, command)
	return err
}

// tell sends a command to all parts of a role.
func (c *cast) tell(role, command string) error {
	for _, actor := range c.of(role) {
		if err := c.get(actor).command(command); err != nil {
			return fmt.Errorf("tell %s %q: %w", actor, command, err)
		}
	}
	return nil
}

// quit ends it in order.
func (p *process) quit() error {
	if p.ended() {
		return fmt.Errorf("%s ended before it was told to: %s", p.who(), p.cmd.ProcessState)
	}
	_ = p.stdin.Close()
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s, told to stop: %w", p.part.Actor, p.err)
		}
		return nil
	case <-time.After(stopWithin + 20*time.Second):
		_ = p.end()
		return fmt.Errorf("%s does not stop", p.part.Actor)
	}
}

// quitAll ends all parts of a role in order.
func (c *cast) quitAll(role string) error {
	var wg sync.WaitGroup
	actors := c.of(role)
	errs := make([]error, len(actors))
	for i, actor := range actors {
		wg.Go(func() { errs[i] = c.get(actor).quit() })
	}
	wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, actor := range actors {
		delete(c.running, actor)
	}
	return errors.Join(errs...)
}

// killAll leaves no process behind.
func (c *cast) killAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for actor, p := range c.running {
		_ = p.end()
		delete(c.running, actor)
	}
}
