package kafkago

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/protocol/saslauthenticate"
	"github.com/segmentio/kafka-go/protocol/saslhandshake"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/holdfast-go/holdfast/retry"
)

// This file puts TLS and SASL on connections. kafka-go could do it, by one piece of code for requests and by another for
// members of a group. Neither bounds SASL in time: a broker that falls silent in the middle keeps a process from ever
// connecting again, and a Group from closing. Neither authenticates again before a broker ends the session. And a
// member of a group does not learn why it was refused.

// What secure does, for its errors.
const (
	startTLS    = "start TLS"
	askVersions = "ask for its versions"
)

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// secured makes connections by Connection.Dial, or else by dial, and puts TLS and SASL on top. usual bounds it all, where
// Connection.DialTimeout says nothing.
func (c Connection) secured(dial dialFunc, usual time.Duration) dialFunc {
	if c.Dial != nil {
		dial = c.Dial
	}
	if c.TLS == nil && c.SASL == nil {
		return dial
	}
	timeout := cmp.Or(c.DialTimeout, usual)
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		bare, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, func() { _ = bare.Close() })
		conn, err := c.secure(ctx, bare, address, timeout)
		if !stop() && err == nil {
			err = explained(address, "use it", ctx.Err())
		}
		if err != nil {
			_ = bare.Close()
			return nil, err
		}
		return conn, nil
	}
}

// secure puts TLS and SASL on bare, which is closed when ctx ends.
func (c Connection) secure(ctx context.Context, bare net.Conn, address string, timeout time.Duration) (net.Conn, error) {
	conn := bare
	fail := func(doing string, err error) error {
		if ctx.Err() != nil {
			err = ctx.Err() // instead of that the connection is closed
		}
		return explained(address, doing, err)
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fail("read the address", err)
	}
	port, _ := strconv.Atoi(text)
	if c.TLS != nil {
		config := c.TLS.Clone()
		config.ServerName = cmp.Or(config.ServerName, host)
		encrypted := tls.Client(bare, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return nil, fail(startTLS, err)
		}
		conn = encrypted
	}
	// Also where nothing is left to do: a broker refuses a certificate of ours when we read from it, and not before.
	pc := protocol.NewConn(conn, c.clientID())
	versions, err := versionsOf(pc)
	if err != nil {
		return nil, fail(askVersions, err)
	}
	pc.SetVersions(versions)
	if c.SASL == nil {
		return conn, nil
	}
	doing := "authenticate by " + c.SASL.Name()
	metadata := &sasl.Metadata{Host: host, Port: port}
	session, err := authenticate(sasl.WithMetadata(ctx, metadata), pc, c.SASL)
	if err != nil {
		return nil, fail(doing, err)
	}
	return renewing(conn, session, timeout, func(ctx context.Context) (time.Duration, error) {
		session, err := authenticate(sasl.WithMetadata(ctx, metadata), pc, c.SASL)
		if err != nil {
			err = explained(address, doing+" again", err)
		}
		return session, err
	}), nil
}

// versionsOf asks a broker how it speaks.
func versionsOf(pc *protocol.Conn) (map[protocol.ApiKey]int16, error) {
	answer, err := pc.RoundTrip(new(apiversions.Request))
	if err != nil {
		return nil, err
	}
	res := answer.(*apiversions.Response)
	if res.ErrorCode != 0 {
		return nil, kafka.Error(res.ErrorCode)
	}
	versions := make(map[protocol.ApiKey]int16, 2)
	for _, r := range res.ApiKeys {
		if key := protocol.ApiKey(r.ApiKey); key == protocol.SaslHandshake || key == protocol.SaslAuthenticate {
			versions[key] = key.SelectVersion(r.MinVersion, r.MaxVersion)
		}
	}
	return versions, nil
}

// authenticate carries a mechanism out. It returns after how long the broker ends the session, 0 for never. If Next of the
// mechanism returns an error with a response, the broker gets that: so it knows why, and can log it.
func authenticate(ctx context.Context, pc *protocol.Conn, m sasl.Mechanism) (session time.Duration, err error) {
	answer, err := pc.RoundTrip(&saslhandshake.Request{Mechanism: m.Name()})
	if err != nil {
		return 0, err
	}
	if res := answer.(*saslhandshake.Response); res.ErrorCode != 0 {
		err := error(kafka.Error(res.ErrorCode))
		if len(res.Mechanisms) > 0 {
			err = fmt.Errorf("%w; it offers %s", err, excerpt(strings.Join(res.Mechanisms, ", ")))
		}
		return 0, err
	}
	state, data, err := m.Start(ctx)
	if err != nil {
		return 0, fmt.Errorf("get the credentials: %w", err)
	}
	for done := false; !done; {
		answer, err := pc.RoundTrip(&saslauthenticate.Request{AuthBytes: data})
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // as brokers before Kafka 1.0 say no
			return 0, fmt.Errorf("%w: the broker ended the connection: %w", kafka.SASLAuthenticationFailed, err)
		case err != nil:
			return 0, err
		}
		res := answer.(*saslauthenticate.Response)
		if res.ErrorCode != 0 {
			err := error(kafka.Error(res.ErrorCode))
			if res.ErrorMessage != "" {
				err = fmt.Errorf("%w: %s", err, res.ErrorMessage)
			}
			return 0, err
		}
		session = time.Duration(res.SessionLifetimeMs) * time.Millisecond
		if done, data, err = state.Next(ctx, res.AuthBytes); err != nil {
			if len(data) > 0 {
				_, _ = pc.RoundTrip(&saslauthenticate.Request{AuthBytes: data})
			}
			return 0, refused{err}
		}
	}
	return session, nil
}

// refused is an error of a mechanism that read the broker's answer.
type refused struct{ error }

func (r refused) Unwrap() error { return r.error }

// connectError says that a broker was reached, and that TLS or SASL with it failed.
type connectError struct {
	address string
	doing   string
	err     error
	fix     string // what to do about it; "" where the error says it all
	refused bool   // by one of both sides, and not for want of an answer
}

func (e *connectError) Error() string {
	text := fmt.Sprintf("connect to %s: %s: %v", e.address, e.doing, e.err)
	if e.fix != "" {
		text += ": " + e.fix
	}
	return text
}

func (e *connectError) Unwrap() error { return e.err }

// RetryClass is for package retry: somebody has to change certificates, a password or rights.
func (e *connectError) RetryClass() retry.Class {
	if e.refused {
		return retry.Auth
	}
	return ""
}

// explained says what to do about an error, where that is known.
func explained(address, doing string, err error) *connectError {
	e := &connectError{address: address, doing: doing, err: err}
	for _, row := range remedies {
		if row.fits(err) {
			e.fix, e.refused = row.fix, true
			return e
		}
	}
	if retry.Classify(err) == retry.Unavailable {
		e.fix = ended[doing]
	}
	return e
}

// remedies is the one table of what TLS and SASL refuse. docs/guides/kafka-connections.md explains each.
var remedies = []struct {
	fits func(error) bool
	fix  string
}{
	{as[x509.HostnameError], "the certificate is for other names: use one of them as the broker's address, or set it as the server name"},
	{as[x509.UnknownAuthorityError], "trust the certificate authority of the brokers, if this is one of them"},
	{as[*tls.CertificateVerificationError], "look at the broker's certificate and at this machine's clock"},
	{as[tls.RecordHeaderError], "the broker does not speak TLS on this port: use that of its TLS listener"},
	{alerted, "the broker refused TLS: it may want a client certificate that it trusts"},
	{is(kafka.UnsupportedSASLMechanism), "use a mechanism that this listener has"},
	{is(kafka.IllegalSASLState), "this listener has no SASL: use the port of one that has, or no SASL"},
	{is(kafka.SASLAuthenticationFailed), "check user and password, or the token"},
	{as[refused], ""},
}

// ended is what to do where a broker ends a connection without a word.
var ended = map[string]string{
	startTLS:    "the broker may not speak TLS on this port: use that of its TLS listener",
	askVersions: "the broker may want TLS, or a client certificate that it trusts",
}

func as[E error](err error) bool {
	var target E
	return errors.As(err, &target)
}

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

// alerted says that the broker ended TLS with an alert, say because it wants a certificate.
func alerted(err error) bool {
	var alert *net.OpError
	return errors.As(err, &alert) && alert.Op == "remote error"
}
