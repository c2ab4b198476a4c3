package drivers_test

import (
	"database/sql"
	"encoding/json"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/outbox"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// ways are the drivers, and the modes in which they send arguments otherwise.
var ways = map[string]func(t *testing.T, db *pgtest.DB) *sql.DB{
	"pgx":                           func(t *testing.T, db *pgtest.DB) *sql.DB { return open(t, "pgx", with(t, db.DSN)) },
	"pgx describing each statement": func(t *testing.T, db *pgtest.DB) *sql.DB { return inMode(t, db, pgx.QueryExecModeDescribeExec) },
	"pgx with types it guesses":     func(t *testing.T, db *pgtest.DB) *sql.DB { return inMode(t, db, pgx.QueryExecModeExec) },
	"pgx in the simple protocol":    func(t *testing.T, db *pgtest.DB) *sql.DB { return inMode(t, db, pgx.QueryExecModeSimpleProtocol) },
	"pgx over a pool":               func(t *testing.T, db *pgtest.DB) *sql.DB { return closed(t, stdlib.OpenDBFromPool(db.Pool)) },
	"lib/pq": func(t *testing.T, db *pgtest.DB) *sql.DB {
		return open(t, "postgres", with(t, db.DSN, "sslmode", "disable"))
	},
	"lib/pq with binary parameters": func(t *testing.T, db *pgtest.DB) *sql.DB {
		return open(t, "postgres", with(t, db.DSN, "sslmode", "disable", "binary_parameters", "yes"))
	},
	"lib/pq with another style for dates": func(t *testing.T, db *pgtest.DB) *sql.DB {
		return open(t, "postgres", with(t, db.DSN, "sslmode", "disable", "timezone", "Asia/Kolkata", "bytea_output", "escape"))
	},
}

func inMode(t *testing.T, db *pgtest.DB, mode pgx.QueryExecMode) *sql.DB {
	c, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	c.DefaultQueryExecMode = mode
	return closed(t, stdlib.OpenDB(*c))
}

// with is a DSN with more parameters.
func with(t *testing.T, dsn string, more ...string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for i := 0; i < len(more); i += 2 {
		q.Set(more[i], more[i+1])
	}
	u.RawQuery = q.Encode()
	return u.String()
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	return closed(t, db)
}

func closed(t *testing.T, db *sql.DB) *sql.DB {
	t.Cleanup(func() { db.Close() })
	return db
}

// bundle is what a test has: a database with the schema, and a way to it.
type bundle struct {
	*testing.T
	db  *sql.DB
	own *pgtest.DB
}

// onEach runs a test on each driver, each with a database of its own.
func onEach(t *testing.T, test func(b bundle)) {
	t.Parallel()
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := migrated.New(t)
			test(bundle{t, way(t, own), own})
		})
	}
}

// begin begins a transaction that is rolled back at the end of the test, unless it has ended.
func (b bundle) begin(options *sql.TxOptions) *sql.Tx {
	b.Helper()
	tx, err := b.db.BeginTx(b.Context(), options)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

func (b bundle) commit(tx *sql.Tx) {
	b.Helper()
	if err := tx.Commit(); err != nil {
		b.Fatal(err)
	}
}

func (b bundle) exec(tx *sql.Tx, statement string) {
	b.Helper()
	if _, err := tx.ExecContext(b.Context(), statement); err != nil {
		b.Fatal(err)
	}
}

// in runs f in a transaction and commits it.
func (b bundle) in(f func(tx *sql.Tx)) {
	b.Helper()
	tx := b.begin(nil)
	f(tx)
	b.commit(tx)
}

func (b bundle) write(tx sqloutbox.Tx, events ...holdfast.Event) {
	b.Helper()
	if err := sqloutbox.Write(b.Context(), tx, events...); err != nil {
		b.Fatal(err)
	}
}

// count is how many events are in the log, or scheduled.
func (b bundle) count() int64 {
	b.Helper()
	return pgtest.Count(b, b.own.Pool, "select (select count(*) from holdfast.event) + (select count(*) from holdfast.scheduled)")
}

func good() holdfast.Event {
	return holdfast.Event{Topic: "orders", Type: "order.placed", Key: "k", Payload: []byte("{}")}
}

// written are all events of the log in their order, without times, which the database chooses, unless an event has one.
func (b bundle) written() (events []holdfast.Event) {
	b.Helper()
	rows, err := b.own.Query(b.Context(), `select id, source, type, topic, key, time, null::timestamptz, coalesce(headers::text, ''), payload, seq from holdfast.event
		union all select id, source, type, topic, key, time, due_at, coalesce(headers::text, ''), payload, seq from holdfast.scheduled order by seq`)
	if err != nil {
		b.Fatal(err)
	}
	events, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e holdfast.Event, err error) {
		var headers string
		var due *time.Time
		var seq int64
		if err := row.Scan(&e.ID, &e.Source, &e.Type, &e.Topic, &e.Key, &e.Time, &due, &headers, &e.Payload, &seq); err != nil {
			return e, err
		}
		e.Time = e.Time.UTC()
		if due != nil {
			e.NotBefore = due.UTC()
		}
		if headers != "" {
			err = json.Unmarshal([]byte(headers), &e.Headers)
		}
		return e, err
	})
	if err != nil {
		b.Fatal(err)
	}
	return events
}

// byPgx writes the events with package outbox, for comparison.
func (b bundle) byPgx(events ...holdfast.Event) {
	b.Helper()
	err := pgx.BeginFunc(b.Context(), b.own.Pool, func(tx pgx.Tx) error { return outbox.Write(b.Context(), tx, events...) })
	if err != nil {
		b.Fatal(err)
	}
}
