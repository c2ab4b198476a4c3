package inbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/cutoff"
)

// This file takes connections from the pool, bounds what is waited for on them, and gets rid of those that are dead.
//
// A network may swallow what is sent on a connection and never say so: a firewall forgets it, a cable is pulled, a proxy hangs.
// pgx then waits for as long as the context lasts. So every wait of the inbox has a bound. The first that is exceeded has all
// idle connections of the pool tested, so that the next worker does not have to find out by itself.

const (
	// leastWait is the least bound of a wait for Postgres, however short Config.Timeout is.
	leastWait = 5 * time.Second

	// finishTimeout bounds what the inbox does after the caller's context has ended: roll back, commit, hand rows back.
	finishTimeout = 10 * time.Second
)

// rowQuerier is a pool or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// connectionTimeout bounds the wait for a connection, with the ping of one that was idle.
func connectionTimeout(c Config) time.Duration { return min(max(c.Timeout, leastWait), loop.Patience) }

// statementTimeout bounds the inbox's own statements before a handler, after it, and where none runs. Postgres ends a wait for a
// lock after Config.Timeout, so only a connection that is dead takes as long.
func statementTimeout(c Config) time.Duration { return max(c.Timeout, leastWait) * 5 / 4 }

// testEvery is how often the idle connections of the pool are tested, at most.
const testEvery = time.Second

// pongTimeout is how long an idle connection may take to answer when the pool is tested.
func pongTimeout(c Config) time.Duration { return min(connectionTimeout(c)/4, 2*time.Second) }

// acquire takes a connection from the pool. The error is a *failure.
func (env *env) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	return env.acquireFrom(ctx, env.pool, connectionTimeout(env.c))
}

// acquireBeside takes a second connection for a handler, until end is called. Where handlers have all connections of the pool, each would
// wait for another to end. So when the pool has given out all, and none comes back soon, one is opened beside it, for one handler at a time.
func (env *env) acquireBeside(ctx context.Context) (conn *pgxpool.Conn, end func(), err error) {
	bounded, cancel := context.WithTimeout(ctx, connectionTimeout(env.c))
	defer cancel()
	for {
		conn, err = env.acquireFrom(bounded, env.pool, freeSoon)
		if err == nil || bounded.Err() != nil || poolClosed(err) {
			return conn, func() {}, err
		}
		if s := env.pool.Stat(); s.AcquiredConns() == s.MaxConns() {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) { // It cannot connect.
			return nil, nil, err
		}
	}
	select {
	case env.beside <- struct{}{}:
	case <-bounded.Done():
		return nil, nil, err
	}
	config := env.pool.Config()
	config.MaxConns, config.MinConns, config.MinIdleConns = 1, 0, 0
	one, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err == nil {
		conn, err = env.acquireFrom(bounded, one, connectionTimeout(env.c))
	}
	end = func() {
		if one != nil {
			go one.Close() // It waits for the server to say goodbye.
		}
		<-env.beside
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	if suppressed, say := env.limiter.Allow("beside", sayEvery, time.Now()); say {
		env.c.Logger.Warn("no connection of the pool was free for a step: it opened one beside the pool; raise pool_max_conns", leftOut(suppressed, "consumer", env.c.Consumer, "connections", env.pool.Config().MaxConns)...)
	}
	return conn, end, nil
}

// freeSoon is how long a handler waits for a second connection of a pool that has given out all: longer than others need one for a step.
const freeSoon = 200 * time.Millisecond

// acquireFrom is acquire for a pool, within a time.
func (env *env) acquireFrom(ctx context.Context, pool *pgxpool.Pool, within time.Duration) (*pgxpool.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	conn, err := pool.Acquire(bounded)
	if err == nil {
		if err = cutoff.Notice(bounded, conn.Conn(), idleTimeout(env.c)); err == nil {
			return conn, nil
		}
		release(conn)
	}
	return nil, blame(ctx, fmt.Errorf("acquire connection: %w", err), failure.Facts{ConnLost: true})
}

// bounded is the context of our own statements.
func (env *env) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, statementTimeout(*env.longest()))
}

// release gives a connection back. pgx closes one whose context ended under a statement, and waits up to 15 s for the server to
// say goodbye; the pool has no room for another meanwhile. release does not wait.
func release(conn *pgxpool.Conn) {
	if conn.Conn().IsClosed() {
		_ = conn.Conn().PgConn().Conn().Close()
	}
	conn.Release()
}

// suspect tests the pool after an error that is waited out, if the error says something about the pool's other connections. One
// that did not answer in time may not be the only one. One on which our own statements have no right any more, or may only
// read, was left so by a handler (set role) or leads to a server that has become a standby.
func (env *env) suspect(err error) {
	var h *failure.HandlerError
	var server *pgconn.PgError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		if env.mayTest() {
			env.closeDead()
		}
	case errors.As(err, &h):
	case errors.As(err, &server) && server.Code == "42501":
		_, _ = env.rights.Lacking(context.Background()) // It gives the connections their role back.
	case errors.As(err, &server) && server.Code == "25006":
		if env.mayTest() {
			env.pool.Reset() // Those in use are closed when they are given back.
		}
	}
}

// mayTest keeps the tests of the pool a while apart.
func (env *env) mayTest() bool {
	_, now := env.tested.Allow("", testEvery, time.Now())
	return now
}

// closeDead closes the idle connections that do not answer.
func (env *env) closeDead() {
	ctx, cancel := context.WithTimeout(context.Background(), pongTimeout(env.c))
	defer cancel()
	var wg sync.WaitGroup
	for _, conn := range env.pool.AcquireAllIdle(ctx) {
		wg.Go(func() {
			_ = conn.Ping(ctx) // pgx closes it when the context ends first.
			release(conn)
		})
	}
	wg.Wait()
}

// question is whether a handler is cut off from Postgres. It has to be asked while the handler runs: once its time is over, pgx
// cancels its statement.
type question struct {
	asked time.Time
	cut   chan bool // the answer
}

// askFrom is the shortest Config.Timeout under which there is time to ask.
const askFrom = 2 * time.Second

// askAfter is how long a handler runs before the question is asked; 0 means never.
func askAfter(c Config) time.Duration {
	if c.Timeout < askFrom {
		return 0
	}
	return c.Timeout - min(c.Timeout/4, 2*time.Second)
}

// ask asks about the backend of a handler that runs under ctx.
func (env *env) ask(ctx context.Context, pid uint32) *question {
	q := &question{asked: time.Now(), cut: make(chan bool, 1)}
	go func() { q.cut <- env.awaitsClient(ctx, pid) }()
	return q
}

// cutOff reports that the server waited for the handler, although the handler waited for the answer to a statement that it had
// sent before. sent is zero if it sent none. The handler's context has ended.
func (q *question) cutOff(sent time.Time) bool {
	return q != nil && !sent.IsZero() && sent.Before(q.asked) && <-q.cut
}

// awaitsClient asks whether a backend waits for its client. It asks on a connection of its own: those of the pool may be cut off
// too, or all in use. One at a time is enough. A server that cannot be reached means yes.
func (env *env) awaitsClient(ctx context.Context, pid uint32) bool {
	select {
	case env.asking <- struct{}{}:
		defer func() { <-env.asking }()
	case <-ctx.Done():
		return false
	}
	config := env.pool.Config()
	if config.BeforeConnect != nil {
		if config.BeforeConnect(ctx, config.ConnConfig) != nil {
			return false
		}
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		var server *pgconn.PgError
		return !errors.As(err, &server)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var waits bool
	err = conn.QueryRow(ctx, env.sql.awaitsClient, int32(pid)).Scan(&waits)
	return err == nil && waits
}
