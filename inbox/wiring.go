package inbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"

	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/poolneed"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// This file explains what waiting cannot cure: a database that is not prepared for this consumer, a pool that was closed. It warns of what
// keeps a node from working though nothing fails: topics that are missing, a pool that is too small.

// poolClosed reports that no statement of ours can be made any more.
func poolClosed(err error) bool { return errors.Is(err, puddle.ErrClosedPool) }

// miswired is an error of our own statements together with what an operator has to do. It is nil if the database only has to be
// waited for. A missing right is looked for: a handler, or another service behind the same pooler, may have left a connection with
// another role, which is put right.
func (env *env) miswired(ctx context.Context, err error) error {
	if poolClosed(err) {
		return fmt.Errorf("%w: close the pool after Run and Consume have returned", err)
	}
	explained := sqlschema.Explain(err, "docs/operations.md lists what to grant to a consumer")
	switch {
	case errors.Is(explained, sqlschema.ErrMissing):
		// A table that is missing may be one of a later version.
		if fits := sqlschema.Fits(ctx, env.pool, env.c.Schema); errors.Is(fits, sqlschema.ErrVersion) {
			return fits
		}
		return explained
	case errors.Is(explained, sqlschema.ErrVersion):
		return explained
	case !errors.Is(explained, sqlschema.ErrNoRights):
		return nil
	}
	if lacking, unknown := env.rights.Lacking(ctx); unknown == nil && len(lacking) > 0 {
		return fmt.Errorf("%w; it lacks: %s", explained, strings.Join(lacking, ", "))
	}
	return nil
}

// doubt has watchWiring look at an error that is waited out. What somebody's trigger says of its own tables and rights is none of ours.
func (env *env) doubt(err error) {
	var server *pgconn.PgError
	if !poolClosed(err) && (!errors.As(err, &server) || server.Where != "") {
		return
	}
	select {
	case env.doubts <- err:
	default: // One is looked at already.
	}
}

// watchWiring ends Run and Consume if waiting for the database is in vain, whichever statement has met that.
func (env *env) watchWiring(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-env.doubts:
			if fix := env.miswired(ctx, err); fix != nil {
				return fix
			}
		}
	}
}

// sayMissing warns of topics that do not exist.
func (env *env) sayMissing(gen source.Generation) {
	known, ok := gen.(source.Incomplete)
	if !ok {
		return
	}
	missing := known.MissingTopics()
	if len(missing) == 0 {
		return
	}
	names := strings.Join(missing, ", ")
	if suppressed, say := env.limiter.Allow("missing: "+names, sayEvery, time.Now()); say {
		env.c.Logger.Warn("topics are missing: nothing is read of them until they are created", leftOut(suppressed, "consumer", env.c.Consumer, "topics", names)...)
	}
}

// needed is how many connections a node uses: one for each worker of Consume and of Run, and two for the loops.
func needed(c Config, consuming bool) int {
	if consuming {
		return 2*c.Workers + 2
	}
	return c.Workers + 2
}

// usePool says what the inbox needs of its pool, until leave is called.
func (env *env) usePool(consuming bool) (leave func()) {
	return poolneed.Enter(env.pool, "consumer "+env.c.Consumer, needed(env.c, consuming), env.c.Logger)
}
