package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/certtest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// binaryDir is removed by TestMain.
var binaryDir string

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "holdfast")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "holdfast")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		err = errors.New(string(out))
	}
	return path, err
})

// sidecarProcess is a relay in a process of its own.
type sidecarProcess struct {
	*exec.Cmd
	log logtest.Log
}

func startSidecar(t *testing.T, db *pgtest.DB, env []string, args ...string) *sidecarProcess {
	t.Helper()
	return startProcess(t, append([]string{"DATABASE_URL=" + db.DSN}, env...), args...)
}

// startProcess is startSidecar for databases that a file of settings names.
func startProcess(t *testing.T, env []string, args ...string) *sidecarProcess {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatalf("build: %v", err)
	}
	s := &sidecarProcess{Cmd: exec.Command(path, append([]string{"relay", "--name", "the sidecar"}, args...)...)}
	s.Stderr = &s.log
	s.Env = os.Environ()
	if !slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "DATABASE_URL=") }) {
		s.Env = slices.DeleteFunc(s.Env, func(v string) bool { return strings.HasPrefix(v, "DATABASE_URL=") })
	}
	s.Env = append(s.Env, env...)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Process.Kill() })
	return s
}

// stop tells the relay to stop, and wants it to have done so in order.
func (s *sidecarProcess) stop(t *testing.T, dbs ...*pgtest.DB) {
	t.Helper()
	if err := s.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("the sidecar ended with %v: %s", err, s.log.String())
	}
	for _, db := range dbs {
		if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.lane where owner is not null"); n != 0 || !strings.Contains(s.log.String(), `msg="relay stopped"`) {
			t.Errorf("%d lanes were not handed back: %s", n, s.log.String())
		}
	}
}

func migrate(t *testing.T, db *pgtest.DB) {
	t.Helper()
	t.Setenv("DATABASE_URL", db.DSN)
	wantStatus(t, 0, "version 2", "migrate")
}

const claimedLanes = "select count(*) from holdfast.lane where owner = 'the sidecar'"

func TestRelay_TheSidecarRunsUntilItHasToStop(t *testing.T) {
	db := pgtest.New(t)
	migrate(t, db)
	s := startSidecar(t, db, nil, "--brokers", "127.0.0.1:1")
	wait.Until(t, "the sidecar has claimed all lanes", func() bool { return pgtest.Count(t, db.Pool, claimedLanes) == 8 })
	s.stop(t, db)
}

// A broker that takes requests and never answers keeps a stop waiting for the publisher's own bound.
func TestRelay_ASecondSignalEndsTheSidecarAtOnce(t *testing.T) {
	skip.InShort(t, "it takes 2 s beside the others")
	db := pgtest.New(t)
	migrate(t, db)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	asked := make(chan struct{}, 100)
	go func() {
		for {
			conn, err := mute.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			asked <- struct{}{}
		}
	}()
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 'order.placed', '{}')")
	s := startSidecar(t, db, nil, "--brokers", mute.Addr().String())
	<-asked
	// The relay asks the broker at its start too, and does not wait for that when it stops.
	wait.Until(t, "a call of the publisher is late", func() bool { return strings.Contains(s.log.String(), "partition waits") })
	ended := make(chan struct{})
	go func() { defer close(ended); s.Wait() }()
	// The process says nothing of the first signal. One that comes before that is taken is lost: so it is sent again, which
	// ends a process that a second one ends, and no other.
	for signals, over := 0, false; !over; signals++ {
		if err := s.Process.Signal(syscall.SIGTERM); err != nil && signals < 2 {
			t.Fatal(err)
		}
		select {
		case <-ended:
			over = true
		case <-time.After(200 * time.Millisecond):
		}
	}
	if status, ok := s.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGTERM {
		t.Errorf("the sidecar ended with %v, want by the second signal: %s", s.ProcessState, s.log.String())
	}
}

// The password's file is wrong at first, and then right: the relay goes on trying, says why, and needs no restart.
func TestRelay_TheSidecarPublishesToABrokerThatAsksForTLSAndAPassword(t *testing.T) {
	skip.InShort(t, "it takes 12 s beside the others")
	authority := certtest.New(t)
	server, ca := authority.Issue(t, "a broker", time.Hour, "127.0.0.1"), certtest.File(t, "ca.pem", authority.PEM)
	for _, mechanism := range []string{"plain", "scram-sha-256", "scram-sha-512"} {
		t.Run(mechanism, func(t *testing.T) {
			cluster := kafkatest.Imitate(t, kafkatest.Imitation{Topics: map[string]int{"orders": 1}, Certificate: server.Certificate, Key: server.Key,
				Mechanism: strings.ToUpper(mechanism), User: "relay", Password: "hunter2"})
			db := pgtest.New(t)
			migrate(t, db)
			pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 'order.placed', '{}')")
			password := certtest.File(t, "password", []byte("hunter3\n"))
			s := startSidecar(t, db, []string{"KAFKA_USER=relay"}, "--brokers", cluster.Brokers[0], "--tls", "--tls-ca", ca,
				"--sasl-mechanism", mechanism, "--sasl-password-file", password)
			refused := "connect to " + cluster.Brokers[0] + ": authenticate by " + strings.ToUpper(mechanism) + ": "
			wait.Until(t, "the log says that the password is wrong", func() bool { return strings.Contains(s.log.String(), refused) })
			if err := os.WriteFile(password, []byte("hunter2\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			right, err := (&kafkaFlags{TLS: true, CA: ca, Mechanism: mechanism, User: "relay", PasswordFile: password}).connection(nil, func(string) string { return "" })
			if err != nil {
				t.Fatal(err)
			}
			transport := &kafka.Transport{TLS: right.TLS, SASL: right.SASL}
			defer transport.CloseIdleConnections()
			client := kafka.Client{Addr: kafka.TCP(cluster.Brokers...), Transport: transport}
			wait.Until(t, "the event is in the topic", func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				offsets, err := client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{"orders": {kafka.LastOffsetOf(0)}}})
				if err != nil {
					t.Fatal(err)
				}
				return offsets.Topics["orders"][0].LastOffset == 1
			})
			s.stop(t, db)
			if strings.Contains(s.log.String(), "hunter") {
				t.Errorf("the log shows the password: %s", s.log.String())
			}
		})
	}
}
