//go:build unix

package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// child is the service in a process of its own.
type child struct {
	cmd *exec.Cmd
	url string
}

func (s *site) command() *child {
	s.Helper()
	cmd := exampletest.Command([]string{"DATABASE_URL=" + s.db.DSN, "KAFKA_BROKERS=" + strings.Join(s.kafka.Brokers, ",")},
		"-listen", "127.0.0.1:0", "-name", s.name)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = cmd.Process.Kill() })
	c := &child{cmd: cmd}
	lines := bufio.NewScanner(out)
	for c.url == "" && lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "serving on "); ok {
			c.url = at
		}
	}
	if c.url == "" {
		s.Fatal("the command ended without serving")
	}
	go func() {
		for lines.Scan() { // so that it never waits for a reader
		}
	}()
	return c
}

// terminate sends SIGTERM and wants the command to end with status 0 in time.
func (s *site) terminate(c *child) {
	s.Helper()
	begun := time.Now()
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		s.Errorf("after SIGTERM the command ended with %v", err)
	}
	if took := time.Since(begun); took > 24*time.Second {
		s.Errorf("the command took %v to end, more than its limits together", took)
	}
}

func TestSignal_SIGTERMDuringRequestsLosesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t, exampletest.Cluster(t).Server.Cluster)
	c := s.command()

	var mu sync.Mutex
	accepted := map[int64]bool{}
	enough := make(chan struct{})
	var clients sync.WaitGroup
	for _, customer := range []string{"ann", "ben", "cleo", "dan"} {
		clients.Go(func() {
			for { // until the service is gone
				o, err := s.post(c.url, customer)
				if err != nil {
					return
				}
				mu.Lock()
				accepted[o.ID] = true
				if len(accepted) == 60 {
					close(enough)
				}
				mu.Unlock()
			}
		})
	}
	select {
	case <-enough:
	case <-time.After(2 * time.Minute):
		t.Fatal("60 orders took longer than two minutes")
	}
	s.terminate(c)
	clients.Wait()

	rows, err := s.db.Query(t.Context(), "select id from "+s.name+".orders")
	if err != nil {
		t.Fatal(err)
	}
	stored := map[int64]bool{}
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		stored[id] = true
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	for id := range accepted {
		if !stored[id] {
			t.Errorf("order %d was answered with 201 and is not there", id)
		}
	}
	if len(stored) != len(accepted) {
		t.Errorf("%d orders are stored and %d were answered with 201: a request in progress was cut off", len(stored), len(accepted))
	}
	before := 0
	for _, ids := range s.ordersInTopic() {
		before += len(ids)
	}
	next := s.command()
	s.wantAllPublished()
	s.terminate(next)
	t.Logf("%d orders taken, %d of them published before the stop, all by the next start", len(stored), before)
	if n := pgtest.Count(t, s.db, "select count(*) from "+s.name+"_holdfast.lane where owner is not null and lease_until > now()"); n != 0 {
		t.Errorf("%d lanes were not handed back", n)
	}
}
