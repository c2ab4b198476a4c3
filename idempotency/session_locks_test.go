package idempotency

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// What a handler left locked on its session does not stay there for whoever gets the connection next.
func TestSessionLocks_WhatAFailedRequestLeftLockedIsGivenUp(t *testing.T) {
	lock := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "select pg_advisory_lock(42)")
		return err
	}
	answers := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if err := lock(r.Context(), Tx(r.Context())); err != nil {
				panic(err)
			}
			if status > 0 {
				w.WriteHeader(status)
			}
		}
	}
	for name, row := range map[string]struct {
		handler http.HandlerFunc
		route   Route
	}{
		"an answer that is not kept": {answers(500), Route{}},
		"an answer that is kept":     {answers(402), Route{}},
		"no answer":                  {answers(0), Route{}},
		"a statement that failed": {func(w http.ResponseWriter, r *http.Request) {
			answers(0)(w, r)
			_, _ = Tx(r.Context()).Exec(r.Context(), "select 1/0")
			w.WriteHeader(402)
		}, Route{}},
		"a panic": {func(w http.ResponseWriter, r *http.Request) { answers(0)(w, r); panic(http.ErrAbortHandler) }, Route{}},
		"what it wrote is refused by COMMIT": {func(w http.ResponseWriter, r *http.Request) {
			answers(0)(w, r)
			if _, err := Tx(r.Context()).Exec(r.Context(), "insert into checked values (1)"); err != nil {
				panic(err)
			}
			w.WriteHeader(201)
		}, Route{}},
		"a step under a lease": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = Step(r.Context(), "charge", func(ctx context.Context, tx pgx.Tx) (int, error) {
				return 0, errors.Join(lock(ctx, tx), errors.New("not yet"))
			})
			w.WriteHeader(500)
		}, Route{Lease: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			pgtest.Exec(t, b.db, "create table parent (id int primary key)")
			pgtest.Exec(t, b.db, "create table checked (id int references parent deferrable initially deferred)")
			h := b.service(b.guard(), row.handler, row.route)
			func() {
				defer func() { _ = recover() }()
				b.send(h, sent{key: "k"})
			}()
			wait.Until(t, "no session holds a lock that the handler left", func() bool {
				return pgtest.Count(t, b.server, "select count(*) from pg_locks where locktype = 'advisory' and objid = 42 and database = (select oid from pg_database where datname = current_database())") == 0
			})
		})
	}
}
