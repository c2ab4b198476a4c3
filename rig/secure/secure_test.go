package secure

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/kafkago/oauthbearer"
	"github.com/holdfast-go/holdfast/relay"
)

// path is a relay and a consumer that reach Kafka as a connection says.
type path struct {
	*testing.T
	db       *pgtest.DB
	topic    string
	relay    *logtest.Log
	consumer *logtest.Log
	stop     func() // both, which must end without an error
}

func start(t *testing.T, b *broker, relayed, consumed kafkago.Connection) *path {
	t.Helper()
	p := &path{T: t, db: migrated.New(t), relay: new(logtest.Log), consumer: new(logtest.Log)}
	p.topic = "orders-" + strings.ToLower(rand.Text())
	if err := b.CreateTopic(t.Context(), p.topic, 1, nil); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, p.db.Pool, "create table effect (id text primary key)")
	publisher, err := kafkago.NewPublisher(relayed, kafkago.PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(publisher.Close)
	r, err := relay.New(p.db.Pool, publisher, relay.Config{Logger: slog.New(slog.NewTextHandler(p.relay, nil))})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(p.db.Pool, inbox.Config{Consumer: "billing", Logger: slog.New(slog.NewTextHandler(p.consumer, nil))})
	if err != nil {
		t.Fatal(err)
	}
	in.Handle("order.placed", func(ctx context.Context, tx pgx.Tx, e holdfast.Event) error {
		_, err := tx.Exec(ctx, "insert into effect values ($1)", e.ID)
		return err
	})
	group, err := kafkago.NewGroup(consumed, kafkago.GroupConfig{GroupID: "group-of-" + p.topic, Topics: []string{p.topic}, HeartbeatInterval: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan string, 3)
	for what, run := range map[string]func(context.Context) error{"relay": r.Run, "inbox": in.Run,
		"consumer": func(ctx context.Context) error { return in.Consume(ctx, group) }} {
		go func() {
			if err := run(ctx); err != nil || ctx.Err() == nil {
				ended <- fmt.Sprintf("%s: %v", what, err)
				return
			}
			ended <- ""
		}()
	}
	stopped := false
	p.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range cap(ended) {
			select {
			case what := <-ended:
				if what != "" {
					t.Errorf("it ended: %s", what)
				}
			case <-time.After(wait.Limit()):
				t.Fatal("it does not stop")
			}
		}
	}
	t.Cleanup(p.stop)
	return p
}

func (p *path) write() {
	p.Helper()
	pgtest.Exec(p, p.db.Pool, "select holdfast.write($1, 'k', 'order.placed', '{}')", p.topic)
}

func (p *path) effects() int64 {
	p.Helper()
	return pgtest.Count(p, p.db.Pool, "select count(*) from effect")
}

func (b *broker) over(listener string) []string { return []string{b.Listeners[listener]} }

func (b *broker) trusted() *tls.Config { return &tls.Config{RootCAs: b.authority.Pool()} }

func TestSecure_RelayAndConsumerPassEveryListener(t *testing.T) {
	skip.InShort(t, "it takes 20 s beside the others")
	b := theBroker(t)
	client := b.authority.Issue(t, "a client", time.Hour).Pair(t)
	connections := map[string]kafkago.Connection{
		"PLAIN without TLS, if it is asked for": {Brokers: b.over(open), SASL: mechanism(t, "PLAIN", true), AllowPlaintextCredentials: true},
		"SCRAM without TLS":                     {Brokers: b.over(open), SASL: mechanism(t, "SCRAM-SHA-512", true)},
		"a client certificate":                  {Brokers: b.over(mutual), TLS: &tls.Config{RootCAs: b.authority.Pool(), Certificates: []tls.Certificate{client}}},
		"another server name":                   {Brokers: b.over(elsewhere), TLS: &tls.Config{RootCAs: b.authority.Pool(), ServerName: "kafka.internal"}},
	}
	for _, name := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"} {
		connections[name+" over TLS"] = kafkago.Connection{Brokers: b.over(secure), TLS: b.trusted(), SASL: mechanism(t, name, true)}
	}
	for name, c := range connections {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, b, c, c)
			p.write()
			wait.Until(t, "the event has its effect", func() bool { return p.effects() == 1 })
			p.stop()
			// On a busy machine the broker may be slow to answer, and that is waited out. What follows is said of a refusal.
			log := p.relay.String() + p.consumer.String()
			for _, refused := range []string{"[33]", "[58]", "refused the token", "certificate"} {
				if strings.Contains(log, refused) {
					t.Errorf("it was refused before: %s", log)
				}
			}
		})
	}
}

// What a broker refuses is in both logs, with what to do. It ends neither, spends no attempt, and is over once it is fixed.
// That it takes no time to be said is shown in package kafkago, by a clock that does not depend on the machine.
func TestSecure_WhatABrokerRefusesIsLoggedAndWaitedOut(t *testing.T) {
	skip.InShort(t, "it takes 24 s beside the others")
	b := theBroker(t)
	foreign := b.foreign.Issue(t, "a client", time.Hour).Pair(t)
	client := b.authority.Issue(t, "a client", time.Hour).Pair(t)
	var rows []refusal
	for _, name := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"} {
		r := refusal{name: "a wrong secret of " + name, connection: kafkago.Connection{Brokers: b.over(secure), TLS: b.trusted()},
			want: "authenticate by " + name + ": [58] SASL Authentication Failed"}
		if name == "OAUTHBEARER" {
			r.want = "authenticate by OAUTHBEARER: the broker refused the token: "
		}
		var right atomic.Bool
		r.connection.SASL = kafkago.Rotating(name, func(context.Context) (sasl.Mechanism, error) { return mechanism(t, name, right.Load()), nil })
		r.fix = func() { right.Store(true) }
		rows = append(rows, r)
	}
	rows = append(rows,
		refusal{name: "a mechanism that the listener has not", want: "[33] Unsupported SASL Mechanism",
			connection: kafkago.Connection{Brokers: b.over(secure), TLS: b.trusted(), SASL: renamed{mechanism(t, "PLAIN", true)}}},
		refusal{name: "SASL at a listener without it", want: "connect to ",
			connection: kafkago.Connection{Brokers: b.over(elsewhere), TLS: &tls.Config{RootCAs: b.authority.Pool(), ServerName: "kafka.internal"}, SASL: mechanism(t, "PLAIN", true)}},
		refusal{name: "another authority", want: "trust the certificate authority of the brokers",
			connection: kafkago.Connection{Brokers: b.over(mutual), TLS: &tls.Config{RootCAs: b.foreign.Pool(), Certificates: []tls.Certificate{client}}}},
		refusal{name: "another name", want: "the certificate is for other names",
			connection: kafkago.Connection{Brokers: b.over(elsewhere), TLS: b.trusted()}},
		refusal{name: "no client certificate", want: "client certificate that it trusts", connection: kafkago.Connection{Brokers: b.over(mutual), TLS: b.trusted()}},
		refusal{name: "a client certificate of another authority", want: "client certificate that it trusts",
			connection: kafkago.Connection{Brokers: b.over(mutual), TLS: &tls.Config{RootCAs: b.authority.Pool(), Certificates: []tls.Certificate{foreign}}}},
		refusal{name: "TLS at a listener without it", want: "speak TLS on this port",
			connection: kafkago.Connection{Brokers: b.over(open), TLS: b.trusted()}},
		refusal{name: "SASL without TLS at a listener with it", want: "may want TLS",
			connection: kafkago.Connection{Brokers: b.over(secure), SASL: mechanism(t, "SCRAM-SHA-512", true)}},
	)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) { r.run(t, b) })
	}
}

// refusal is a connection that the broker refuses until fix is called, where there is one.
type refusal struct {
	name       string
	connection kafkago.Connection
	want       string
	fix        func()
}

func (r refusal) run(t *testing.T, b *broker) {
	p := start(t, b, r.connection, r.connection)
	p.write()
	began := time.Now()
	for what, log := range map[string]*logtest.Log{`msg="partition waits"`: p.relay, `msg="waiting for the broker"`: p.consumer} {
		says := func() bool {
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, what) && strings.Contains(line, r.want) && strings.Contains(line, "connect to 127.0.0.1:") {
					return true
				}
			}
			return false
		}
		if !wait.For(wait.Limit(), says) {
			t.Errorf("no line has %s and %q:\n%s", what, r.want, log.String())
		}
		t.Logf("%s after %s", what, time.Since(began).Round(time.Millisecond))
	}
	if r.fix != nil {
		r.fix()
		wait.Until(t, "the event has its effect", func() bool { return p.effects() == 1 })
	}
	if n := pgtest.Count(t, p.db.Pool, "select (select count(*) from holdfast.parked) + (select count(*) from holdfast.letter)"); n > 0 {
		t.Errorf("%d events are parked or dead letters", n)
	}
	p.stop()
	if all := p.relay.String() + p.consumer.String(); strings.Contains(all, password) || strings.Contains(all, "eyJ") {
		t.Errorf("the log has the password or the token: %s", all)
	}
}

type renamed struct{ sasl.Mechanism }

func (renamed) Name() string { return "HOLDFAST" }

// Sessions of 3 s, and events all the time: the broker closes no connection. It closes one where the machine stands still for the rest
// of a session, so that is tried again: a client that renews none loses some at every try.
func TestSecure_TheBrokerClosesNoConnectionWhoseSessionEnds(t *testing.T) {
	skip.InShort(t, "it watches a broker for five sessions")
	b := theBroker(t)
	connections := map[string]kafkago.Connection{}
	for _, name := range []string{"PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"} {
		connections[name] = kafkago.Connection{Brokers: b.over(short), TLS: b.trusted(), SASL: mechanism(t, name, true)}
	}
	connections["tokens that end, where the broker limits no session"] = kafkago.Connection{Brokers: b.over(secure), TLS: b.trusted(),
		SASL: oauthbearer.Mechanism(func(context.Context) (oauthbearer.Token, error) { return token(t, user, 4*time.Second), nil })}
	for name, c := range connections {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for tries := 1; !keepsItsConnections(t, b, c); tries++ {
				if tries == 4 {
					t.Fatal("the broker closes connections, or they are not used for long enough, at every try")
				}
			}
		})
	}
}

// keepsItsConnections says whether the broker closed none while events went through five sessions, and the client renewed them.
func keepsItsConnections(t *testing.T, b *broker, c kafkago.Connection) bool {
	t.Helper()
	relayed, consumed := watch{Mechanism: c.SASL}, watch{Mechanism: c.SASL}
	p := start(t, b, relayed.on(c), consumed.on(c))
	defer p.stop()
	written := int64(0)
	for began := time.Now(); time.Since(began) < 5*shortSession; time.Sleep(200 * time.Millisecond) { // sleep: the sessions of a real broker take real time
		p.write()
		written++
	}
	wait.Until(t, "all events have their effects", func() bool { return p.effects() == written })
	kept := true
	for what, w := range map[string]*watch{"relay": &relayed, "consumer": &consumed} {
		t.Logf("the %s made %d connections, of which the broker closed %d, and authenticated %d times", what, w.made.Load(), w.ended.Load(), w.authenticated.Load())
		if more := w.authenticated.Load() - w.made.Load(); w.ended.Load() > 0 || more < 3 { // With fewer it shows nothing.
			kept = false
		}
	}
	return kept
}

// watch counts what becomes of connections.
type watch struct {
	sasl.Mechanism
	made, authenticated atomic.Int64
	ended               atomic.Int64 // by the broker
}

func (w *watch) on(c kafkago.Connection) kafkago.Connection {
	c.SASL = w
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := kafkago.Dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		w.made.Add(1)
		return &watchedConn{Conn: conn, w: w}, nil
	}
	return c
}

func (w *watch) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	w.authenticated.Add(1)
	return w.Mechanism.Start(ctx)
}

type watchedConn struct {
	net.Conn
	w    *watch
	once sync.Once
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		c.once.Do(func() { c.w.ended.Add(1) })
	}
	return n, err
}
