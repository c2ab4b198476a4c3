// Package rights tells a role that lacks a right from a connection that somebody left with another role.
//
// A session's role outlives the transaction that set it (set role). In a pool of one service a handler may leave it so;
// behind a pooler such as PgBouncer, a service leaves it to all others that use the pooler, and they are refused what they
// have every right to. Nothing but time, or a reset of the role, cures that.
package rights

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// restoreRoles is how many connections of a pooler get their own role back at once.
const restoreRoles = 8

// Checks of one pool. Make one for each; many goroutines may use it at once.
type Checks struct {
	Pool   *pgxpool.Pool
	Schema string
	Rights []Right
	Logger *slog.Logger

	// Consumer is the consumer whose rows are needed. Defaults to "", none.
	Consumer string

	mu         sync.Mutex
	last, said time.Time
	lack       []string
	err        error
}

// Lacking gives the pool's connections their own role back, and returns the rights that this role lacks: nothing, if only a
// connection had another role. It is called after the server has refused something for a missing right. Calls within a second of
// the last one get its result. An error means that nobody knows.
func (c *Checks) Lacking(ctx context.Context) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.IsZero() || time.Since(c.last) > time.Second {
		c.lack, c.err = c.lacking(ctx)
		c.last = time.Now()
		if c.err == nil && len(c.lack) == 0 && (c.said.IsZero() || time.Since(c.said) > time.Minute) {
			c.said = c.last
			c.Logger.Warn("connection had lost its role, which was restored: something that uses it, or the same pooler, sets a role and leaves it")
		}
	}
	return c.lack, c.err
}

func (c *Checks) lacking(ctx context.Context) (lack []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	c.Pool.Reset() // Those in use are closed when they are given back.
	var open []*pgx.Conn
	defer func() {
		for _, conn := range open {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for i := range restoreRoles {
		conn, own, err := c.own(ctx, i == 0)
		if err != nil && conn != nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		switch {
		case err != nil && i == 0:
			return nil, err
		case err != nil: // The pooler has no more.
			return lack, commitAll(ctx, open)
		case i == 0:
			lack = own
		}
		open = append(open, conn)
	}
	return lack, commitAll(ctx, open)
}

// commitAll ends the transactions; a rollback would undo the reset.
func commitAll(ctx context.Context, open []*pgx.Conn) error {
	for _, conn := range open {
		if _, err := conn.Exec(ctx, "commit"); err != nil {
			return fmt.Errorf("restore the role of connections: %w", err)
		}
	}
	return nil
}

// own begins a transaction on a new connection, whose role is the one it would have had at its start. Behind a pooler it
// holds a connection of the server that others may have left with another role. asks also asks which rights the role lacks.
func (c *Checks) own(ctx context.Context, asks bool) (conn *pgx.Conn, lack []string, err error) {
	if !asks {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
	}
	config := c.Pool.Config()
	if config.BeforeConnect != nil {
		if err := config.BeforeConnect(ctx, config.ConnConfig); err != nil {
			return nil, nil, err
		}
	}
	if conn, err = pgx.ConnectConfig(ctx, config.ConnConfig); err != nil {
		return nil, nil, err
	}
	for _, sql := range []string{"begin", "reset session authorization", "reset role"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return conn, nil, fmt.Errorf("restore the role of a connection: %w", err)
		}
	}
	if !asks {
		return conn, nil, nil
	}
	if config.AfterConnect != nil { // It may choose the role.
		if err := config.AfterConnect(ctx, conn); err != nil {
			return conn, nil, err
		}
	}
	// Without usage of the schema nobody can be asked for more.
	if lack, err = Lack(ctx, conn, c.Schema, c.Rights); err != nil || len(lack) > 0 || c.Consumer == "" {
		return conn, lack, err
	}
	user, err := UserOf(ctx, conn, c.Schema)
	if unbound := user.lacksConsumer(c.Consumer); unbound != "" {
		lack = append(lack, unbound)
	}
	return conn, lack, err
}
