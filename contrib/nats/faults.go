package natsjs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// meaning is what an error means.
type meaning struct {
	fault publish.Fault
	class retry.Class
}

var (
	ofRecord    = meaning{publish.FaultRecord, retry.Validation}
	ofTopic     = meaning{publish.FaultTopic, retry.Unavailable}
	ofPartition = meaning{publish.FaultPartition, retry.Unavailable}
	ofBroker    = meaning{publish.FaultBroker, retry.Unavailable}
	noEntry     = meaning{publish.FaultBroker, retry.Auth}
)

// codes is the table from JetStream's error codes to what the relay does. Numbers are those of the server's errors.json. A code that is
// not here holds the partition.
var codes = map[jetstream.ErrorCode]meaning{
	10054: ofRecord, // message size exceeds maximum allowed
	10097: ofRecord, // header size exceeds maximum allowed of 64k

	10059: ofTopic, // stream not found
	10060: ofTopic, // expected stream does not match: another stream took the subject
	10109: ofTopic, // sealed

	10077: ofPartition,                               // store failed: limits of a stream that discards new messages, a full disk
	10047: ofPartition,                               // insufficient storage
	10023: ofPartition,                               // insufficient resources
	10028: ofPartition,                               // insufficient memory
	10118: ofPartition,                               // stream is offline
	10158: {publish.FaultPartition, retry.Transient}, // a message of this id is being stored
	10167: {publish.FaultPartition, retry.RateLimit}, // too many requests

	10008: ofBroker, // JetStream temporarily unavailable
	10039: noEntry,  // JetStream not enabled for this account
	10076: noEntry,  // JetStream not enabled
}

// connectionErrors are those of a connection that is not there.
var connectionErrors = []error{nats.ErrConnectionClosed, nats.ErrConnectionReconnecting, nats.ErrConnectionDraining, nats.ErrDisconnected, nats.ErrNoServers,
	nats.ErrReconnectBufExceeded, nats.ErrStaleConnection, nats.ErrInvalidConnection}

// entryErrors are those of credentials.
var entryErrors = []error{nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, jetstream.ErrJetStreamNotEnabled,
	jetstream.ErrJetStreamNotEnabledForAccount}

// meaningOf says what an error of nats.go means for the relay. An unanswered request is for silence to judge.
func meaningOf(err error) meaning {
	is := func(target error) bool { return errors.Is(err, target) }
	var coded interface{ APIError() *jetstream.APIError }
	if errors.As(err, &coded) && coded.APIError() != nil {
		if m, known := codes[coded.APIError().ErrorCode]; known {
			return m
		}
		return ofPartition
	}
	for _, e := range entryErrors {
		if is(e) {
			return noEntry
		}
	}
	for _, e := range connectionErrors {
		if is(e) {
			return ofBroker
		}
	}
	switch {
	case is(nats.ErrMaxPayload), is(nats.ErrBadHeaderMsg), is(nats.ErrHeadersNotSupported):
		return ofRecord
	case is(nats.ErrPermissionViolation):
		return meaning{publish.FaultTopic, retry.Auth}
	case is(jetstream.ErrNoStreamResponse), is(nats.ErrNoResponders):
		return ofPartition
	case is(nats.ErrTimeout), is(context.DeadlineExceeded):
		return meaning{publish.FaultPartition, retry.Timeout}
	}
	return meaning{publish.FaultBroker, ""}
}

// silence judges a request without an answer. The server never answers one that it does not permit, and neither does a connection that
// is down, or a server that is frozen.
func silence(nc *nats.Conn, subject string, err error) (meaning, error) {
	denied := nc.LastError()
	if errors.Is(denied, nats.ErrPermissionViolation) && strings.Contains(strings.ToLower(denied.Error()), `"`+strings.ToLower(subject)+`"`) {
		return meaning{publish.FaultTopic, retry.Auth}, fmt.Errorf("%w: grant publish on %s", denied, subject)
	}
	if !nc.IsConnected() {
		return ofBroker, fmt.Errorf("no connection to a server (%s): %w", nc.Status(), err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()
	if ping := nc.FlushWithContext(ctx); ping != nil {
		return meaning{publish.FaultBroker, retry.Timeout}, fmt.Errorf("the server answers no ping: %w", err)
	}
	return meaning{publish.FaultPartition, retry.Timeout}, err
}

// pingTimeout is how long a server that has not answered may take for a ping.
const pingTimeout = time.Second

// unanswered says that nothing came back in time.
func unanswered(err error) bool {
	return errors.Is(err, nats.ErrTimeout) || errors.Is(err, context.DeadlineExceeded)
}
