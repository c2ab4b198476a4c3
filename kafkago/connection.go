package kafkago

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
)

const (
	// defaultClientID is Connection's default.
	defaultClientID = "holdfast"

	// dialTimeout bounds Dial.
	dialTimeout = 3 * time.Second

	// connectTimeout bounds one connection for requests, with TLS and SASL, where Connection.DialTimeout says nothing. It is
	// kafka-go's.
	connectTimeout = 5 * time.Second

	// joinTimeout is connectTimeout for a connection to the group's coordinator.
	joinTimeout = 10 * time.Second
)

// hidden are the SASL mechanisms that send neither a password nor anything that could be used in its place.
var hidden = []string{"SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI"}

// Connection says how to reach the brokers. Every Publisher and every Group makes connections of its own.
type Connection struct {
	// Brokers are addresses, host:port. One of them must answer; the others are found through it. Required.
	Brokers []string

	// TLS encrypts the connections. Its ServerName is the host of each broker's address if it is empty; Certificates or
	// GetClientCertificate identify this program to brokers that ask for it. InsecureSkipVerify is refused without a
	// VerifyConnection or VerifyPeerCertificate that does the verifying, and so are versions before TLS 1.2.
	// Defaults to nil, no encryption.
	TLS *tls.Config

	// SASL authenticates this program: a mechanism of kafka-go's packages sasl/plain and sasl/scram, of package
	// kafkago/oauthbearer, or one of your own. It is started for each connection, and again before the broker ends the
	// session (connections.max.reauth.ms), at most DialTimeout each time. Rotating makes one whose password may change.
	// Defaults to nil, no authentication.
	SASL sasl.Mechanism

	// AllowPlaintextCredentials allows a SASL mechanism that sends a password or a token (any but SCRAM and GSSAPI) without
	// TLS: anybody who listens on the way can use them afterwards. There is no exception for loopback: a broker says itself
	// under which address it is reached. Defaults to false, which refuses it.
	AllowPlaintextCredentials bool

	// ClientID names this program in the brokers' logs, metrics and quotas. Each connection of a Group to its coordinator has
	// a few random letters and a number after it: the group shows which member is which. Defaults to "holdfast".
	ClientID string

	// Dial makes the connections, say through a proxy or a tunnel. It must return soon after ctx is done. TLS and SASL come
	// on top of it. Defaults to Dial for a Publisher, and to net.Dialer's DialContext for a Group.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// DialTimeout bounds one attempt to connect, with TLS and SASL. Defaults to kafka-go's own, 5 s; a Group joins with 10 s.
	DialTimeout time.Duration

	// Wrap takes the transport made of the fields above and returns the one to use: for a trace of each request, say. TLS and
	// SASL are part of its Dial. It may return quite another transport, which is its owner's to close then. What a Group sends
	// to be a member of its group (join, heartbeat, commit) does not go through it, as kafka-go makes connections of its own for that.
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
	if c.SASL != nil && c.TLS == nil && !c.AllowPlaintextCredentials && !slices.Contains(hidden, strings.ToUpper(c.SASL.Name())) {
		found = append(found, fmt.Errorf("sasl is %s, without tls: it must have tls, because it sends a password or a token for anybody on the way to read; "+
			"or set allow plaintext credentials", excerpt(c.SASL.Name())))
	}
	if t := c.TLS; t != nil {
		if t.InsecureSkipVerify && t.VerifyConnection == nil && t.VerifyPeerCertificate == nil {
			found = append(found, errors.New("insecure skip verify of tls is true: it must be false, because anybody on the way could pass for the broker; "+
				"trust a certificate authority of your own by root cas, and name another host by server name"))
		}
		if t.MinVersion != 0 && t.MinVersion < tls.VersionTLS12 {
			found = append(found, fmt.Errorf("min version of tls is %s: it must be at least TLS 1.2, or 0 for Go's default", tls.VersionName(t.MinVersion)))
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
func (c Connection) transport(dial dialFunc, metadataTTL time.Duration) (own *kafka.Transport, use kafka.RoundTripper) {
	own = &kafka.Transport{
		Dial:        c.secured(dial, connectTimeout),
		DialTimeout: c.DialTimeout,
		ClientID:    c.clientID(),
		MetadataTTL: metadataTTL,
	}
	if c.Wrap == nil {
		return own, own
	}
	return own, c.Wrap(own)
}

func (c Connection) clientID() string { return cmp.Or(c.ClientID, defaultClientID) }

// dialer makes the connections of a member of a group, see dials for their client IDs.
func (c Connection) dialer() *kafka.Dialer {
	return &kafka.Dialer{DialFunc: c.secured((&net.Dialer{}).DialContext, joinTimeout), Timeout: cmp.Or(c.DialTimeout, joinTimeout)}
}

// excerpt quotes the beginning of a value for an error message.
func excerpt(value string) string {
	if len(value) > 64 {
		return strconv.QuoteToASCII(value[:64]) + "…"
	}
	return strconv.QuoteToASCII(value)
}
