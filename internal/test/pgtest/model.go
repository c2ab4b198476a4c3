package pgtest

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/servers"
)

// Model says what the databases of many tests have in common when they begin. It is made once for a test binary, and each
// test gets a copy, which costs a third of making it anew. A Model is a variable of its package, and a binary that has one
// calls Main.
type Model struct {
	// Fill makes it, in an empty database.
	Fill func(ctx context.Context, pool *pgxpool.Pool) error
}

// New is the package's New with what Fill has made in it. It may be called from many tests at once.
func (m *Model) New(t testing.TB) *DB {
	t.Helper()
	dsn, err := best.Get(startBest)
	need(t, err)
	once, _ := models.LoadOrStore(m, new(servers.Once[model]))
	made, err := once.(*servers.Once[model]).Get(func() (model, error) { return m.make(dsn) })
	if err != nil {
		t.Fatalf("make the model of the tests' databases: %v", err)
	}
	return copyOf(t, dsn, made.name)
}

// model is a database that others are copied from.
type model struct {
	name string
	drop func()
}

func (m *Model) make(dsn string) (model, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	name := "model_" + strings.ToLower(rand.Text())
	own, err := withDatabase(dsn, name)
	if err != nil {
		return model{}, err
	}
	quoted := pgx.Identifier{name}.Sanitize()
	if err := onServer(dsn, "create database "+quoted); err != nil {
		return model{}, fmt.Errorf("create database: %w", err)
	}
	drop := func() { _ = onServer(dsn, "drop database if exists "+quoted+" with (force)") }
	pool, err := pgxpool.New(ctx, own)
	if err == nil {
		err = m.Fill(ctx, pool)
		pool.Close() // Nobody may be connected to what is copied.
	}
	if err != nil {
		drop()
		return model{}, err
	}
	return model{name, drop}, nil
}
