package kafkago

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/metadata"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"
)

// doorman is a broker that lets connections in, and answers requests for metadata. It is reached by its dial. The zero value
// speaks no TLS and lets everybody in for ever.
type doorman struct {
	tls     *tls.Config
	offers  []string                               // mechanisms; none is any
	mutters func(request string) bool              // says whether a request gets no answer
	judges  func(said string) (answer, err string) // what a client that authenticates is answered
	session time.Duration
	mu      sync.Mutex
	said    []string // by clients that authenticated
	late    int      // requests after a session was over, at which the connection was closed
	dialled int
	asked   int
	slowly  time.Duration // before the answer to a request for metadata
}

func (d *doorman) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	d.mu.Lock()
	d.dialled++
	d.mu.Unlock()
	go d.serve(ours)
	return theirs, nil
}

// overTCP is dial for TLS that fails: both sides may write before they read then, which a pipe does not let them.
func (d *doorman) overTCP(t *testing.T) dialFunc {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go d.serve(conn)
		}
	}()
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
	}
}

func (d *doorman) serve(bare net.Conn) {
	defer bare.Close()
	conn := bare
	if d.silent("tls") {
		_, _ = conn.Read(make([]byte, 1))
		for { // for the end of the connection
			if _, err := conn.Read(make([]byte, 1024)); err != nil {
				return
			}
		}
	}
	if d.tls != nil {
		conn = tls.Server(bare, d.tls)
	}
	var over time.Time
	for {
		version, id, _, request, err := protocol.ReadRequest(conn)
		if err != nil {
			return
		}
		var answer protocol.Message
		name := ""
		switch r := request.(type) {
		case *apiversions.Request:
			name = "versions"
			answer = &apiversions.Response{ApiKeys: []apiversions.ApiKeyResponse{{ApiKey: int16(protocol.SaslHandshake), MaxVersion: 1}, {ApiKey: int16(protocol.SaslAuthenticate), MaxVersion: 2}}}
		case *saslhandshake.Request:
			name = "handshake"
			res := &saslhandshake.Response{Mechanisms: d.offers}
			if len(d.offers) > 0 && !strings.Contains(strings.Join(d.offers, " "), r.Mechanism) {
				res.ErrorCode = 33
			}
			answer = res
		case *saslauthenticate.Request:
			name = "authenticate"
			d.mu.Lock()
			d.said = append(d.said, string(r.AuthBytes))
			d.mu.Unlock()
			res := &saslauthenticate.Response{SessionLifetimeMs: d.session.Milliseconds()}
			if d.judges != nil {
				text, refusal := d.judges(string(r.AuthBytes))
				res.AuthBytes = []byte(text)
				if refusal == "hang up" {
					return
				}
				if refusal != "" {
					res.ErrorCode, res.ErrorMessage = 58, refusal
				}
			}
			if d.session > 0 {
				over = time.Now().Add(d.session)
			}
			answer = res
		case *metadata.Request:
			name = "metadata"
			d.mu.Lock()
			d.asked++
			late := !over.IsZero() && !time.Now().Before(over)
			if late {
				d.late++
			}
			d.mu.Unlock()
			if late {
				return
			}
			time.Sleep(d.slowly) // sleep: of a clock that is not real
			answer = &metadata.Response{}
		}
		if d.silent(name) {
			continue
		}
		if err := protocol.WriteResponse(conn, version, id, answer); err != nil {
			return
		}
	}
}

func (d *doorman) silent(request string) bool { return d.mutters != nil && d.mutters(request) }

// saying is a SASL mechanism with one message.
type saying struct {
	name, message string
	next          func(challenge string) (last string, err error)
}

func (s saying) Name() string { return s.name }

func (s saying) Start(context.Context) (sasl.StateMachine, []byte, error) {
	return s, []byte(s.message), nil
}

func (s saying) Next(_ context.Context, challenge []byte) (bool, []byte, error) {
	if s.next == nil {
		return true, nil, nil
	}
	last, err := s.next(string(challenge))
	return err == nil, []byte(last), err
}

// enter connects as c says.
func (d *doorman) enter(t *testing.T, c Connection) (net.Conn, error) {
	t.Helper()
	conn, err := c.secured(d.dial, 5*time.Second)(t.Context(), "tcp", "kafka-1:9092")
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}
