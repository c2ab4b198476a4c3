package doctor

import (
	"cmp"
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/catalog"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/state"
)

// reader reads parts of the state that status shows too.
func (d *Doctor) reader() state.Reader { return state.Reader{DB: d.Pool, Schema: d.Schema.Schema} }

func (d *Doctor) in(sql string) string { return sqlschema.In(d.Schema.Schema, sql) }

func (d *Doctor) drift(ctx context.Context) ([]Finding, error) {
	there, built, err := catalog.Hashes(ctx, d.Pool, d.Schema.Schema)
	if err != nil && !errors.Is(err, holdfast.ErrSchemaMissing) {
		return nil, err
	}
	wrong := holdfast.Check(ctx, d.Pool, d.Schema)
	switch {
	case errors.Is(err, holdfast.ErrSchemaMissing), errors.Is(wrong, holdfast.ErrSchemaVersion):
		return []Finding{fail("schema", "holdfast migrate", "%s", oneLine(wrong))}, nil
	case there != built:
		return []Finding{fail("schema", "holdfast migrate --print", "the hash of the schema is %s, that of this build is %s: %s", there, built, oneLine(wrong))}, nil
	case wrong != nil:
		return []Finding{fail("schema", "holdfast check", "%s", oneLine(wrong))}, nil
	}
	return []Finding{ok("schema", "the schema has the hash of this build, %s", built)}, nil
}

// Needs lists what status says that needs a person, by its defaults; nil if that cannot be read, which is a finding. The user of a service
// may have no right to it.
func (d *Doctor) Needs(ctx context.Context) ([]state.Need, []Finding) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	s, err := state.Read(ctx, d.Pool, state.Options{Schema: d.Schema.Schema, Limits: state.DefaultLimits})
	switch {
	case denied(err):
		return nil, []Finding{notMade("needs", "holdfast status, as a member of holdfast_reader", "this user may not read what needs a person: %s", oneLine(err))}
	case err != nil:
		return nil, []Finding{fail("needs", "holdfast status", "what needs a person could not be read: %s", oneLine(err))}
	}
	return s.Needs(state.DefaultLimits), nil
}

// denied says that the user has no right to what was to be read.
func denied(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "42501" // insufficient_privilege
}

// oneLine is an error without line ends.
func oneLine(err error) string {
	if err == nil {
		return "holdfast check finds no difference"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func (d *Doctor) rights(ctx context.Context, role string) (found []Finding, err error) {
	warnings, err := holdfast.CheckRights(ctx, d.Pool, d.Schema, role)
	if err != nil {
		return []Finding{fail("rights", "holdfast roles", "%s", oneLine(err))}, nil
	}
	for _, text := range warnings {
		found = append(found, warn("rights", "holdfast roles", "%s", text))
	}
	if role == "" && len(found) == 0 {
		return []Finding{ok("rights", "not compared with a part: pass --role")}, nil
	}
	if len(found) == 0 {
		found = append(found, ok("rights", "the user has the rights of a %s", role))
	}
	return found, nil
}

func (d *Doctor) xmin(ctx context.Context) ([]Finding, error) {
	rows, err := d.Pool.Query(ctx, doctorXmin)
	if err != nil {
		return nil, err
	}
	holders, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (h xminHolder, err error) {
		err = row.Scan(&h.kind, &h.name, &h.pid, &h.seconds, &h.age)
		return h, err
	})
	return judgeXmin(holders, cmp.Or(d.patience, xminSeconds), cmp.Or(d.behind, xminTransactions)), err
}

func (d *Doctor) log(ctx context.Context) ([]Finding, error) {
	holders, err := d.reader().LogHolders(ctx)
	return []Finding{judgeLog(holders, cmp.Or(d.patience, state.HeldLong))}, err
}

func (d *Doctor) connections(ctx context.Context, workers, size int, said bool) ([]Finding, error) {
	var used, most int
	if err := d.Pool.QueryRow(ctx, doctorConnections).Scan(&used, &most); err != nil {
		return nil, err
	}
	return []Finding{judgePool(workers, size, said), judgeConnections(used, most)}, nil
}

// pooler finds out what a pooler does: in transaction mode a connection of the server is another client's as soon as the one
// before has no transaction. Other clients may take it meanwhile, so it looks a few times.
func (d *Doctor) pooler(ctx context.Context) ([]Finding, error) {
	config := d.Pool.Config().ConnConfig
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
	return []Finding{judgePooler(seen)}, nil
}

func (d *Doctor) clock(ctx context.Context) ([]Finding, error) {
	var theirs time.Time
	if err := d.Pool.Ping(ctx); err != nil { // a connection is not to be made while the time is taken
		return nil, err
	}
	asked := time.Now()
	if err := d.Pool.QueryRow(ctx, doctorClock).Scan(&theirs); err != nil {
		return nil, err
	}
	trip := time.Since(asked)
	return []Finding{judgeClock(theirs.Sub(asked.Add(trip/2)), trip)}, nil
}

// twice looks at the owners of lanes and partitions, and again after the pause: what is taken to and fro shows only by its changes.
func (d *Doctor) twice(ctx context.Context, pause time.Duration) ([]Finding, error) {
	lanes, groups, err := d.owners(ctx)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(pause):
	}
	lanesThen, groupsThen, err := d.owners(ctx)
	return []Finding{judgeNames(lanes, lanesThen), judgeGroups(append(groups, groupsThen...))}, err
}

func (d *Doctor) owners(ctx context.Context) (lanes state.Owners, groups []groupLook, err error) {
	if lanes, err = d.reader().Owners(ctx); err != nil {
		return nil, nil, err
	}
	rows, err := d.Pool.Query(ctx, d.in(doctorGroups))
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
func (d *Doctor) consumers(ctx context.Context) ([]Finding, error) {
	found, err := d.reader().Nodes(ctx)
	return judgeNodes(found), err
}
