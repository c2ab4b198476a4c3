package orms_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"testing"

	entdialect "entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/pgdialect"
	"gorm.io/driver/postgres"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/holdfast-go/holdfast"
	sqloutbox "github.com/holdfast-go/holdfast/contrib/sql"
	"github.com/holdfast-go/holdfast/contrib/sql/sqltx"
	"github.com/holdfast-go/holdfast/examples/orms/bunshop"
	"github.com/holdfast-go/holdfast/examples/orms/entshop"
	"github.com/holdfast-go/holdfast/examples/orms/entshop/ent"
	"github.com/holdfast-go/holdfast/examples/orms/gormshop"
	"github.com/holdfast-go/holdfast/examples/orms/sqlcshop"
	"github.com/holdfast-go/holdfast/examples/orms/sqlcshop/orders"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// place places an order in a shop.
type place func(ctx context.Context, id string, event holdfast.Event) error

const cents = 1200

// shops are the ways to place an order.
var shops = map[string]func(t *testing.T, db *sql.DB) place{
	"sqlc": func(_ *testing.T, db *sql.DB) place {
		return func(ctx context.Context, id string, event holdfast.Event) error {
			return sqlcshop.PlaceOrder(ctx, db, orders.InsertOrderParams{ID: id, Cents: cents}, event)
		}
	},
	"sqlc behind its DBTX": func(_ *testing.T, db *sql.DB) place {
		return func(ctx context.Context, id string, event holdfast.Event) error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback()
			if err := (sqlcshop.Repository{DB: tx}).Place(ctx, orders.InsertOrderParams{ID: id, Cents: cents}, event); err != nil {
				return err
			}
			return tx.Commit()
		}
	},
	"GORM": func(t *testing.T, db *sql.DB) place {
		shop := openGORM(t, db, &gorm.Config{})
		return func(ctx context.Context, id string, event holdfast.Event) error {
			return gormshop.PlaceOrder(ctx, shop, gormshop.Order{ID: id, Cents: cents}, event)
		}
	},
	"GORM with prepared statements": func(t *testing.T, db *sql.DB) place {
		shop := openGORM(t, db, &gorm.Config{PrepareStmt: true})
		return func(ctx context.Context, id string, event holdfast.Event) error {
			return gormshop.PlaceOrder(ctx, shop, gormshop.Order{ID: id, Cents: cents}, event)
		}
	},
	"ent": func(_ *testing.T, db *sql.DB) place {
		client := ent.NewClient(ent.Driver(entsql.OpenDB(entdialect.Postgres, db)))
		return func(ctx context.Context, id string, event holdfast.Event) error {
			return entshop.PlaceOrder(ctx, client, id, cents, event)
		}
	},
	"Bun": func(_ *testing.T, db *sql.DB) place {
		shop := bun.NewDB(db, pgdialect.New())
		return func(ctx context.Context, id string, event holdfast.Event) error {
			return bunshop.PlaceOrder(ctx, shop, bunshop.Order{ID: id, Cents: cents}, event)
		}
	},
}

func openGORM(t *testing.T, conn gorm.ConnPool, c *gorm.Config) *gorm.DB {
	t.Helper()
	c.Logger = logger.Discard
	db, err := gorm.Open(postgres.New(postgres.Config{Conn: conn}), c)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// setup makes a database with the schema and the shop's table. An order "late" fails at COMMIT.
func setup(t *testing.T) *pgtest.DB {
	t.Helper()
	schema, err := os.ReadFile("sqlcshop/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	db := migrated.New(t)
	pgtest.Exec(t, db.Pool, string(schema))
	pgtest.Exec(t, db.Pool, "create function too_late() returns trigger language plpgsql as $$ begin raise exception 'too late'; end $$")
	pgtest.Exec(t, db.Pool, "create constraint trigger too_late after insert on orders deferrable initially deferred for each row when (new.id = 'late') execute function too_late()")
	return db
}

// drivers open a database.
var drivers = map[string]func(t *testing.T, dsn string) *sql.DB{
	"pgx": func(t *testing.T, dsn string) *sql.DB { return open(t, "pgx", dsn) },
	"lib/pq": func(t *testing.T, dsn string) *sql.DB {
		u, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		q.Set("sslmode", "disable")
		u.RawQuery = q.Encode()
		return open(t, "postgres", u.String())
	},
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func placed(id string) holdfast.Event {
	return holdfast.Event{Topic: "orders", Type: "order.placed", Key: id, Payload: []byte(`{"cents": 1200}`)}
}

func TestORMs_AnOrderAndItsEventCommitTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	for driver, open := range drivers {
		for name, shop := range shops {
			t.Run(name+" on "+driver, func(t *testing.T) {
				t.Parallel()
				own := setup(t)
				place := shop(t, open(t, own.DSN))
				start := holdfasttest.Now(t, own.Pool)
				if err := place(t.Context(), "kept", placed("kept")); err != nil {
					t.Fatal(err)
				}
				refused := placed("refused")
				refused.Topic = ""
				for want, err := range map[string]error{
					"topic is empty: it must be 1 to 249 bytes": place(t.Context(), "refused", refused),
					"duplicate key": place(t.Context(), "kept", placed("again")),
					"too late":      place(t.Context(), "late", placed("late")),
				} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("got %v, want it to say %q", err, want)
					}
				}
				events := holdfasttest.WrittenSince(t, own.Pool, start)
				if len(events) != 1 {
					t.Errorf("%d events are committed, want 1", len(events))
				}
				holdfasttest.RequireEvents(t, events, placed("kept"))
				if all, kept := pgtest.Count(t, own.Pool, "select count(*) from orders"), pgtest.Count(t, own.Pool, "select count(*) from orders where id = 'kept' and cents = 1200"); all != 1 || kept != 1 {
					t.Errorf("%d orders are committed, %d of them as placed, want one", all, kept)
				}
			})
		}
	}
}

// What is no transaction is found out before anything is written.
func TestORMs_WithoutATransactionNothingIsWritten(t *testing.T) {
	t.Parallel()
	own := setup(t)
	db := drivers["pgx"](t, own.DSN)
	repository := sqlcshop.Repository{DB: db}
	if err := repository.Place(t.Context(), orders.InsertOrderParams{ID: "1", Cents: cents}, placed("1")); err == nil || !strings.Contains(err.Error(), "*sql.DB is none: begin one") {
		t.Errorf("sqlc: got %v", err)
	}
	for name, pool := range map[string]sqloutbox.Execer{
		"GORM":                          openGORM(t, db, &gorm.Config{}).Statement.ConnPool,
		"GORM with prepared statements": openGORM(t, db, &gorm.Config{PrepareStmt: true}).Statement.ConnPool,
		"ent":                           ent.NewClient(ent.Driver(entsql.OpenDB(entdialect.Postgres, db))),
		"Bun":                           bun.NewDB(db, pgdialect.New()),
	} {
		if tx, err := sqloutbox.From(pool); err == nil {
			t.Errorf("%s: %T is taken for a transaction: %v", name, pool, tx)
		}
	}
	if n := pgtest.Count(t, own.Pool, "select (select count(*) from orders) + (select count(*) from holdfast.event)"); n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

// Bun's own transaction puts arguments into the text, in the place of question marks. The error says what to pass.
func TestORMs_ATransactionOfBunIsTakenByItsSQLTx(t *testing.T) {
	t.Parallel()
	own := setup(t)
	db := bun.NewDB(drivers["pgx"](t, own.DSN), pgdialect.New())
	err := db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error { return sqloutbox.Write(ctx, tx, placed("1")) })
	if err == nil || !strings.Contains(err.Error(), "bun.Tx does not pass arguments on to the driver: pass the *sql.Tx inside it") {
		t.Errorf("got %v", err)
	}
}

// inHandler are ways to insert an order in a handler's transaction.
var inHandler = map[string]func(t *testing.T, ctx context.Context, tx *sql.Tx, id string) error{
	"sqlc": func(_ *testing.T, ctx context.Context, tx *sql.Tx, id string) error {
		// snippet: sqlc-in-a-handler
		return orders.New(tx).InsertOrder(ctx, orders.InsertOrderParams{ID: id, Cents: cents})
		// end snippet
	},
	"GORM": func(_ *testing.T, ctx context.Context, tx *sql.Tx, id string) error {
		// snippet: gorm-in-a-handler
		db, err := gorm.Open(postgres.New(postgres.Config{Conn: tx}), &gorm.Config{Logger: logger.Discard})
		if err != nil {
			return err
		}
		return db.WithContext(ctx).Create(&gormshop.Order{ID: id, Cents: cents}).Error
		// end snippet
	},
	"GORM, with a nested transaction that is undone": func(t *testing.T, ctx context.Context, tx *sql.Tx, id string) error {
		db := openGORM(t, tx, &gorm.Config{})
		if err := db.WithContext(ctx).Transaction(func(nested *gorm.DB) error {
			if err := nested.Create(&gormshop.Order{ID: "undone", Cents: cents}).Error; err != nil {
				return err
			}
			return context.Canceled
		}); err != context.Canceled {
			return fmt.Errorf("the nested transaction: %w", err)
		}
		return db.WithContext(ctx).Create(&gormshop.Order{ID: id, Cents: cents}).Error
	},
	"ent": func(_ *testing.T, ctx context.Context, tx *sql.Tx, id string) error {
		// snippet: ent-in-a-handler
		client := ent.NewClient(ent.Driver(entsql.NewDriver(entdialect.Postgres, entsql.Conn{ExecQuerier: tx})))
		return client.Order.Create().SetID(id).SetCents(cents).Exec(ctx)
		// end snippet
	},
	"Bun": func(_ *testing.T, ctx context.Context, tx *sql.Tx, id string) error {
		// snippet: bun-in-a-handler
		_, err := bunDB.NewInsert().Conn(tx).Model(&bunshop.Order{ID: id, Cents: cents}).Exec(ctx)
		return err
		// end snippet
	},
}

// bunDB makes the statements of Bun, which run on the connection that they are given, and not on this one.
var bunDB = func() *bun.DB {
	nowhere, err := sql.Open("pgx", "postgres://nowhere.invalid")
	if err != nil {
		panic(err)
	}
	return bun.NewDB(nowhere, pgdialect.New())
}()

func TestORMs_AHandlerWorksThroughAnORM(t *testing.T) {
	t.Parallel()
	for name, insert := range inHandler {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := setup(t)
			shop, err := inbox.New(own.Pool, inbox.Config{Consumer: "shop", ImmediateRetries: -1, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			shop.Handle("order.placed", sqltx.Handler(func(ctx context.Context, tx *sql.Tx, e holdfast.Event) error {
				if err := insert(t, ctx, tx, e.ID); err != nil {
					return err
				}
				if e.Key == "fails" {
					return context.Canceled
				}
				return sqloutbox.Write(ctx, tx, holdfast.Event{Topic: "invoices", Type: "invoice.sent", Key: e.Key})
			}))
			for id, want := range map[string]inbox.Outcome{"works": inbox.Handled, "fails": inbox.Retrying} {
				event := placed(id)
				event.ID = id
				if out, err := shop.Receive(t.Context(), event); out != want || err != nil {
					t.Errorf("%s: %s, %v", id, out, err)
				}
			}
			if all, kept, events := pgtest.Count(t, own.Pool, "select count(*) from orders"), pgtest.Count(t, own.Pool, "select count(*) from orders where id = 'works'"),
				pgtest.Count(t, own.Pool, "select count(*) from holdfast.event where key = 'works'"); all != 1 || kept != 1 || events != 1 {
				t.Errorf("%d orders, %d of them right, and %d events, want one of each", all, kept, events)
			}
		})
	}
}
