package kafkago

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
)

const (
	// defaultClientID is Connection's default.
	defaultClientID = "holdfast"

	// dialTimeout bounds Dial.
	dialTimeout = 3 * time.Second

	// joinTimeout bounds one connection to the group's coordinator, where Connection.DialTimeout says nothing.
	joinTimeout = 10 * time.Second
)

// Connection says how to reach the brokers. Every Publisher and every Group makes connections of its own.
type Connection struct {
	// Brokers are addresses, host:port. One of them must answer; the others are found through it. Required.
	Brokers []string

	// TLS encrypts the connections. Defaults to nil, no encryption.
	TLS *tls.Config

	// SASL authenticates this program: a mechanism of kafka-go's packages sasl/plain, sasl/scram, or one of your own.
	// Defaults to nil, no authentication.
	SASL sasl.Mechanism

	// ClientID names this program in the brokers' logs, metrics and quotas. Each connection of a Group to its coordinator has
	// a few random letters and a number after it: the group shows which member is which. Defaults to "holdfast".
	ClientID string

	// Dial makes the connections, say through a proxy or a tunnel. It must return soon after ctx is done. TLS and SASL come
	// on top. Defaults to Dial for a Publisher, and to net.Dialer's DialContext for a Group.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// DialTimeout bounds one attempt to connect, with TLS and SASL. Defaults to kafka-go's own, 5 s; a Group joins with 10 s.
	DialTimeout time.Duration

	// Wrap takes the transport made of the fields above and returns the one to use: for a trace of each request, say. It may
	// return quite another, which is its owner's to close then. What a Group sends to be a member of its group (join,
	// heartbeat, commit) does not go through it, as kafka-go makes connections of its own for that.
	// Defaults to nil, which takes the transport as it is.
	Wrap func(kafka.RoundTripper) kafka.RoundTripper
}

// Dial connects for a Publisher. A connection that is closed while it still holds unsent bytes drops them instead of
// sending them later: kafka-go closes a connection when a request's time is over, and the kernel would otherwise go on
// for minutes trying to deliver what by then has been sent again. It gives up after 3 s.
func Dial(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := net.Dialer{Timeout: dialTimeout}
	c, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		if err := tcp.SetLinger(0); err != nil {
			c.Close()
			return nil, fmt.Errorf("set linger of the connection to %s: %w", address, err)
		}
	}
	return c, nil
}

// problems lists what is wrong.
func (c Connection) problems() []error {
	var found []error
	if len(c.Brokers) == 0 {
		found = append(found, errors.New("brokers is empty: it must have the address, host:port, of at least one broker"))
	}
	for _, b := range c.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			found = append(found, fmt.Errorf("broker is %s: it must be host:port", excerpt(b)))
		}
	}
	if c.DialTimeout < 0 {
		found = append(found, fmt.Errorf("dial timeout is %s: it must be positive, or 0 for the default", c.DialTimeout))
	}
	return found
}

// transportProblems lists what would lose events or hang with what Connection.Wrap returned.
func transportProblems(use kafka.RoundTripper) []error {
	t, ok := use.(*kafka.Transport)
	switch {
	case use == nil, ok && t == nil:
		return []error{errors.New("transport of wrap is nil: it must be the one to use")}
	case !ok:
		return nil
	}
	var found []error
	if t.MetadataTTL > time.Minute {
		found = append(found, fmt.Errorf("metadata ttl of wrap's transport is %v: it must be at most 1m: a partition whose leader moves is not written to for as long", t.MetadataTTL))
	}
	if t.Context != nil && t.Context.Err() != nil {
		found = append(found, errors.New("context of wrap's transport is done: it must be one that lasts, or none: its connections are closed"))
	}
	return found
}

// transport makes the connections for requests: own is ours to close, and use is what to send with.
func (c Connection) transport(dial func(context.Context, string, string) (net.Conn, error), metadataTTL time.Duration) (own *kafka.Transport, use kafka.RoundTripper) {
	own = &kafka.Transport{Dial: dial, DialTimeout: c.DialTimeout, TLS: c.TLS, SASL: c.SASL,
		ClientID: c.clientID(), MetadataTTL: metadataTTL}
	if c.Dial != nil {
		own.Dial = c.Dial
	}
	if c.Wrap == nil {
		return own, own
	}
	return own, c.Wrap(own)
}

func (c Connection) clientID() string { return cmp.Or(c.ClientID, defaultClientID) }

// dialer makes the connections of a member of a group, see dials for their client IDs.
func (c Connection) dialer() *kafka.Dialer {
	return &kafka.Dialer{DialFunc: c.Dial, Timeout: cmp.Or(c.DialTimeout, joinTimeout), DualStack: true, TLS: c.TLS, SASLMechanism: c.SASL}
}

// excerpt quotes the beginning of a value for an error message.
func excerpt(value string) string {
	if len(value) > 64 {
		return strconv.QuoteToASCII(value[:64]) + "…"
	}
	return strconv.QuoteToASCII(value)
}
