package main

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/state"
)

// patient is what doctor examines. Each method looks, and lets diagnosis.go decide.
type patient struct {
	pool   *pgxpool.Pool
	schema holdfast.SchemaConfig

	patience int64 // with transactions, in seconds; 0 is the default of each check
	behind   int64 // how many transactions old xmin may be; 0 is the default
}

// reader reads parts of the state that status shows too.
func (p *patient) reader() state.Reader { return state.Reader{DB: p.pool, Schema: p.schema.Schema} }

func (p *patient) in(sql string) string { return sqlschema.In(p.schema.Schema, sql) }

func (p *patient) drift(ctx context.Context) ([]finding, error) {
	there, built, err := holdfast.SchemaHashes(ctx, p.pool, p.schema)
	if err != nil && !errors.Is(err, holdfast.ErrSchemaMissing) {
		return nil, err
	}
	wrong := holdfast.Check(ctx, p.pool, p.schema)
	switch {
	case errors.Is(err, holdfast.ErrSchemaMissing), errors.Is(wrong, holdfast.ErrSchemaVersion):
		return []finding{fail("schema", "holdfast migrate", "%s", oneLine(wrong))}, nil
	case there != built:
		return []finding{fail("schema", "holdfast migrate --print", "the hash of the schema is %s, that of this build is %s: %s", there, built, oneLine(wrong))}, nil
	case wrong != nil:
		return []finding{fail("schema", "holdfast check", "%s", oneLine(wrong))}, nil
	}
	return []finding{ok("schema", "the schema has the hash of this build, %s", built)}, nil
}

// needs lists what status says that needs a person, by its defaults; nil if that cannot be read, which is a finding. The user of a service
// may have no right to it.
func (p *patient) needs(ctx context.Context) ([]state.Need, []finding) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s, err := state.Read(ctx, p.pool, state.Options{Schema: p.schema.Schema, Limits: state.DefaultLimits})
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == "42501": // insufficient_privilege
		return nil, []finding{notMade("needs", "holdfast status, as a member of holdfast_reader", "this user may not read what needs a person: %s", oneLine(err))}
	case err != nil:
		return nil, []finding{fail("needs", "holdfast status", "what needs a person could not be read: %s", oneLine(err))}
	}
	return s.Needs(state.DefaultLimits), nil
}

// oneLine is an error without line ends.
func oneLine(err error) string {
	if err == nil {
		return "holdfast check finds no difference"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func (p *patient) rights(ctx context.Context, role string) (found []finding, err error) {
	warnings, err := holdfast.CheckRights(ctx, p.pool, p.schema, role)
	if err != nil {
		return []finding{fail("rights", "holdfast roles", "%s", oneLine(err))}, nil
	}
	for _, text := range warnings {
		found = append(found, warn("rights", "holdfast roles", "%s", text))
	}
	if role == "" && len(found) == 0 {
		return []finding{ok("rights", "not compared with a part: pass --role")}, nil
	}
	if len(found) == 0 {
		found = append(found, ok("rights", "the user has the rights of a %s", role))
	}
	return found, nil
}

func (p *patient) xmin(ctx context.Context) ([]finding, error) {
	rows, err := p.pool.Query(ctx, doctorXmin)
	if err != nil {
		return nil, err
	}
	holders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h xminHolder, err error) {
		err = row.Scan(&h.kind, &h.name, &h.pid, &h.seconds, &h.age)
		return h, err
	})
	return judgeXmin(holders, cmp.Or(p.patience, xminSeconds), cmp.Or(p.behind, xminTransactions)), err
}

func (p *patient) log(ctx context.Context) ([]finding, error) {
	holders, err := p.reader().LogHolders(ctx)
	return []finding{judgeLog(holders, cmp.Or(p.patience, state.HeldLong))}, err
}

func (p *patient) connections(ctx context.Context, workers, size int, said bool) ([]finding, error) {
	var used, most int
	if err := p.pool.QueryRow(ctx, doctorConnections).Scan(&used, &most); err != nil {
		return nil, err
	}
	return []finding{judgePool(workers, size, said), judgeConnections(used, most)}, nil
}

// pooler finds out what a pooler does: in transaction mode a connection of the server is another client's as soon as the one
// before has no transaction. Other clients may take it meanwhile, so it looks a few times.
func (p *patient) pooler(ctx context.Context) ([]finding, error) {
	config := p.pool.Config().ConnConfig
	seen := poolerSeen{standalone: config.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	var pair [2]*pgx.Conn
	for i := range pair {
		conn, err := pgx.ConnectConfig(ctx, config)
		if err != nil {
			return nil, err
		}
		defer conn.Close(context.WithoutCancel(ctx))
		pair[i] = conn
	}
	for range 5 {
		var first, second uint32
		var port int
		if err := pair[0].QueryRow(ctx, doctorSession).Scan(&first, &port); err != nil {
			return nil, err
		}
		if local, tcp := pair[0].PgConn().Conn().LocalAddr().(*net.TCPAddr); tcp && local.Port != port {
			seen.between = true
		}
		tx, err := pair[1].Begin(ctx)
		if err != nil && strings.Contains(err.Error(), "statement pooling") {
			seen.statement = true
			break
		}
		if err == nil {
			err = errors.Join(tx.QueryRow(ctx, doctorSession).Scan(&second, &port), tx.Rollback(ctx))
		}
		if err != nil {
			return nil, err
		}
		seen.shared = seen.shared || first == second
	}
	return []finding{judgePooler(seen)}, nil
}

func (p *patient) clock(ctx context.Context) ([]finding, error) {
	var theirs time.Time
	if err := p.pool.Ping(ctx); err != nil { // a connection is not to be made while the time is taken
		return nil, err
	}
	asked := time.Now()
	if err := p.pool.QueryRow(ctx, doctorClock).Scan(&theirs); err != nil {
		return nil, err
	}
	trip := time.Since(asked)
	return []finding{judgeClock(theirs.Sub(asked.Add(trip/2)), trip)}, nil
}

// twice looks at the owners of lanes and partitions, and again after the pause: what is taken to and fro shows only by its changes.
func (p *patient) twice(ctx context.Context, pause time.Duration) ([]finding, error) {
	lanes, groups, err := p.owners(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(pause):
	}
	lanesThen, groupsThen, err := p.owners(ctx)
	return []finding{judgeNames(lanes, lanesThen), judgeGroups(append(groups, groupsThen...))}, err
}

func (p *patient) owners(ctx context.Context) (lanes state.Owners, groups []groupLook, err error) {
	if lanes, err = p.reader().Owners(ctx); err != nil {
		return nil, nil, err
	}
	rows, err := p.pool.Query(ctx, p.in(doctorGroups))
	if err != nil {
		return nil, nil, err
	}
	groups, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (g groupLook, err error) {
		err = row.Scan(&g.consumer, &g.group)
		return g, err
	})
	return lanes, groups, err
}

// consumers looks for consumers without a node.
func (p *patient) consumers(ctx context.Context) ([]finding, error) {
	found, err := p.reader().Nodes(ctx)
	return judgeNodes(found, p.schema.Schema), err
}
