// Package cutoff makes Postgres notice a client that was cut off.
//
// A client that vanishes without a word leaves its transaction open, with all its locks. Once the server waits for the next
// statement, idle_in_transaction_session_timeout ends that. It does not while the server waits for the rest of a pipeline, or
// writes a long answer: only TCP tells then that nobody is there. Its defaults take two hours.
package cutoff

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Set is the statement that makes a server end a connection whose client has not been heard of for bound. Every role may set
// these parameters. They do nothing on a Unix socket. bound is taken as at least 6 s: a network may lose a few packets.
func Set(bound time.Duration) string { return fmt.Sprintf(set, values(bound)...) }

// SetLocal is Set until the transaction ends, for a transaction that has begun.
func SetLocal(bound time.Duration) string { return fmt.Sprintf(setLocal, values(bound)...) }

const (
	set = "set tcp_keepalives_idle = %d; set tcp_keepalives_interval = %d; set tcp_keepalives_count = 4; set tcp_user_timeout = %d"

	setLocal = "set local tcp_keepalives_idle = %d; set local tcp_keepalives_interval = %d; set local tcp_keepalives_count = 4; set local tcp_user_timeout = %d"
)

// values are the idle time and the interval in seconds, and the user time-out in milliseconds.
//
// Linux ends a silent connection at the first probe after the user time-out, however many probes have gone unanswered. So the
// time-out and one interval make the bound. Other systems count the probes: a third of the bound, and four times a sixth.
func values(bound time.Duration) []any {
	seconds := max(int64(bound/time.Second), 6)
	idle, interval := seconds/3, seconds/6
	return []any{idle, interval, (seconds - interval) * 1000}
}

// marker is the key of what Notice has set, in a connection's custom data.
const marker = "holdfast.cutoff"

// Notice sets the parameters on a connection, once for as long as it lasts. Users of one connection that want different bounds
// get the shortest. An error means that the connection is lost. A server or a pooler that refuses the parameters is not asked
// again: the connection works without them.
func Notice(ctx context.Context, conn *pgx.Conn, bound time.Duration) error {
	data := conn.PgConn().CustomData()
	if has, ok := data[marker].(time.Duration); ok && has <= bound {
		return nil
	}
	if conn.PgConn().Conn().RemoteAddr().Network() != "unix" {
		if _, err := conn.Exec(ctx, Set(bound)); err != nil && conn.IsClosed() {
			return fmt.Errorf("set tcp_keepalives_idle: %w", err)
		}
	}
	data[marker] = bound
	return nil
}
