package kafkago

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast/retry"
)

// ask asks for metadata, as kafka-go does.
func ask(conn net.Conn) error {
	_, err := protocol.RoundTrip(reader{conn}, 1, 1, "test", &metadata.Request{})
	return err
}

// reader reads byte by byte, and so counts answers at the latest moment.
type reader struct{ net.Conn }

func (r reader) Read(p []byte) (int, error) { return r.Conn.Read(p[:min(len(p), 1)]) }

// The broker ends a connection at the first request after its session, as Kafka does.
func TestRenew_AConnectionOutlivesTheSessionsOfItsBroker(t *testing.T) {
	for _, row := range []struct {
		name             string
		session, between time.Duration
		requests         int
		least, most      int // how often it authenticates
	}{
		{"in constant use", 10 * time.Second, time.Second, 100, 10, 15},
		{"idle until long after", 10 * time.Second, time.Minute, 10, 11, 11},
		{"without an end", 0, time.Hour, 10, 1, 1},
		{"of a session that is too short to be renewed", 1900 * time.Millisecond, time.Second, 1, 1, 1},
		{"of the shortest session", 2 * time.Second, 100 * time.Millisecond, 100, 5, 8},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &doorman{session: row.session}
				conn, err := d.enter(t, Connection{SASL: saying{name: "SCRAM-SHA-512"}})
				if err != nil {
					t.Fatal(err)
				}
				for n := range row.requests {
					time.Sleep(row.between) // sleep: of a clock that is not real
					if err := ask(conn); err != nil {
						t.Fatalf("request %d: %v", n, err)
					}
				}
				if times := len(d.said); times < row.least || times > row.most || d.asked != row.requests || d.late > 0 || d.dialled != 1 {
					t.Errorf("authenticated %d times, want %d to %d; %d requests, %d late, %d connections", times, row.least, row.most, d.asked, d.late, d.dialled)
				}
				_ = conn.Close()
			})
		})
	}
}

// kafka-go's transport and its dialer keep their connections.
func TestRenew_RequestsAndMembersOutliveSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doorman{session: 10 * time.Second}
		c := Connection{Brokers: []string{"kafka-1:9092"}, Dial: d.dial, SASL: saying{name: "SCRAM-SHA-512"}}
		own, use := c.transport(Dial, time.Second)
		for range 100 {
			time.Sleep(time.Second) // sleep: of a clock that is not real
			if _, err := use.RoundTrip(t.Context(), kafka.TCP("kafka-1:9092"), &metadata.Request{AllowAutoTopicCreation: true, TopicNames: []string{"t"}}); err != nil {
				t.Fatal(err)
			}
		}
		own.CloseIdleConnections()
		if d.dialled > 4 || d.late > 0 || d.asked < 100 { // one a session would be ten; another looks for changes of the cluster, and one may be in use still
			t.Errorf("requests: %d connections, %d late, %d requests", d.dialled, d.late, d.asked)
		}
		d.dialled = 0
		conn, err := c.dialer().DialContext(t.Context(), "tcp", "kafka-1:9092")
		if err != nil {
			t.Fatal(err)
		}
		for range 100 {
			time.Sleep(time.Second) // sleep: of a clock that is not real
			if _, err := conn.Brokers(); err != nil {
				t.Fatal(err)
			}
		}
		_ = conn.Close()
		if d.dialled > 1 || d.late > 0 {
			t.Errorf("a member: %d connections, %d late", d.dialled, d.late)
		}
	})
}

// answering is a connection that takes all, and reads frames without content.
type answering struct{ net.Conn }

func (answering) Write(p []byte) (int, error)      { return len(p), nil }
func (answering) Read(p []byte) (int, error)       { clear(p); return len(p), nil }
func (answering) SetDeadline(time.Time) error      { return nil }
func (answering) SetReadDeadline(time.Time) error  { return nil }
func (answering) SetWriteDeadline(time.Time) error { return nil }

func TestRenew_ASessionIsRenewedBetweenTwoRequestsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		renewed := 0
		conn := renewing(answering{}, 10*time.Second, time.Second, func(context.Context) (time.Duration, error) { renewed++; return 10 * time.Second, nil })
		write := func(what string, p []byte, want int) {
			t.Helper()
			if _, err := conn.Write(p); err != nil || renewed != want {
				t.Errorf("%s: renewed %d times, want %d: %v", what, renewed, want, err)
			}
		}
		read := func(frames int) { _, _ = conn.Read(make([]byte, 4*frames)) }
		request := []byte{0, 0, 0, 2, 'o', 'k'}
		write("before it is due", request, 0)
		time.Sleep(9 * time.Second) // sleep: of a clock that is not real
		write("while an answer is outstanding", request[:3], 0)
		read(1)
		write("within a request", request[3:5], 0)
		write("at its end", request[5:], 0)
		write("while another answer is outstanding", request, 0)
		read(2)
		write("between two requests", request, 1)
		read(1)
		write("after it was renewed", request, 1)
		read(1)
		time.Sleep(9 * time.Second) // sleep: of a clock that is not real
		write("when it is due once more", request, 2)
	})
}

// The request's own time bounds a renewal, and what was set before holds again after it.
func TestRenew_ARenewalLeavesDeadlinesAsTheyWere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := false
		d := &doorman{session: 10 * time.Second, mutters: func(string) bool { return silent }}
		conn, err := d.enter(t, Connection{SASL: saying{name: "SCRAM-SHA-512"}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // sleep: of a clock that is not real
		began := time.Now()
		set := errors.Join(conn.SetReadDeadline(began.Add(2*time.Second)), conn.SetWriteDeadline(began.Add(time.Hour)))
		if err := ask(conn); err != nil || set != nil || len(d.said) != 2 {
			t.Fatalf("authenticated %d times: %v, %v", len(d.said), err, set)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 2*time.Second {
			t.Errorf("a read ended after %s: %v", time.Since(began), err)
		}
		d.slowly = 30 * time.Second
		if err := conn.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // sleep: of a clock that is not real
		if err := ask(conn); err != nil {
			t.Errorf("a request without a deadline, after a renewal: %v", err)
		}
		silent = true
		time.Sleep(10 * time.Second) // sleep: of a clock that is not real
		began = time.Now()
		if err := conn.SetDeadline(began.Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if err := ask(conn); !strings.Contains(err.Error(), "authenticate by SCRAM-SHA-512 again: ") || retry.Classify(err) != retry.Timeout || time.Since(began) != time.Second {
			t.Errorf("a renewal that is not answered ended after %s: %v", time.Since(began), err)
		}
		if err := ask(conn); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("the connection is used after a renewal that failed: %v", err)
		}
	})
}

func TestRenew_ARenewalHasItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := false
		d := &doorman{session: 10 * time.Second, mutters: func(string) bool { return silent }}
		conn, err := d.enter(t, Connection{SASL: saying{name: "SCRAM-SHA-512"}, DialTimeout: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		silent = true
		time.Sleep(10 * time.Second) // sleep: of a clock that is not real
		began := time.Now()
		if err := ask(conn); retry.Classify(err) != retry.Timeout || time.Since(began) != 3*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestRenew_ARefusedRenewalIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal := ""
		d := &doorman{session: 10 * time.Second, judges: func(string) (string, string) { return "", refusal }}
		conn, err := d.enter(t, Connection{SASL: saying{name: "SCRAM-SHA-512"}})
		if err != nil {
			t.Fatal(err)
		}
		refusal = "the user is gone"
		time.Sleep(10 * time.Second) // sleep: of a clock that is not real
		if err := ask(conn); err == nil || !strings.Contains(err.Error(), "connect to kafka-1:9092: authenticate by SCRAM-SHA-512 again: ") || retry.Classify(err) != retry.Auth {
			t.Errorf("%s: %v", retry.Classify(err), err)
		}
	})
}

func TestRenew_ASessionIsRenewedAfterMostOfIt(t *testing.T) {
	now := time.Now()
	for chance, want := range map[float64]time.Duration{0: 70 * time.Second, 0.5: 80 * time.Second, 1: 90 * time.Second} {
		if got := renewAt(now, 100*time.Second, chance).Sub(now).Round(time.Millisecond); got != want {
			t.Errorf("chance %v: after %s, want %s", chance, got, want)
		}
	}
}

func TestRenew_FramesAreCountedHoweverTheyAreCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		ends := map[int]int64{0: 0} // by length of the stream: frames
		for n, size := range rapid.SliceOf(rapid.IntRange(0, 9)).Draw(t, "sizes") {
			stream = append(binary.BigEndian.AppendUint32(stream, uint32(size)), make([]byte, size)...)
			ends[len(stream)] = int64(n + 1)
		}
		var f frames
		for passed := 0; passed < len(stream); {
			n := min(rapid.IntRange(0, 20).Draw(t, "cut"), len(stream)-passed)
			f.pass(stream[passed : passed+n])
			passed += n
			whole, between := ends[passed]
			if f.between() != between || between && f.whole != whole {
				t.Fatalf("after %d bytes: between is %t, want %t; %d frames, want %d", passed, f.between(), between, f.whole, whole)
			}
		}
	})
}
