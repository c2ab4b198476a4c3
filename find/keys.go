package find

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// KeyQuery says which Idempotency-Key.
type KeyQuery struct {
	// Key is the key as the client sent it. Required. Several principals and operations may use one.
	Key string

	// Scope and Operation leave out others: a scope is "principal:" and whose key it is, "operation" or "global". "" matches any. With
	// both, the key is found by the primary key in place of a search of all.
	Scope, Operation string

	// Schema is the Postgres schema. Defaults to "holdfast".
	Schema string

	// Within is how long the search may take. At least a millisecond. Defaults to 2 s.
	Within time.Duration
}

// KeyUse is what is known of one use of an Idempotency-Key: never the answer's headers or body.
type KeyUse struct {
	Scope, Operation string

	// State is "running" (a node works on the request), "interrupted" (its handler did not end, and its lease has), "answered",
	// "omitted" (answered, and the body was too long to keep) or "expired" (the row is gone, and Config.KeepExpired kept this).
	State string

	Status    int    // of the answer; 0 for none
	ResultRef string // what the operation created
	Attempts  int    // starts of its handler; 0 if that is not known
	Steps     int    // of an unanswered request: those that are done
	CreatedAt time.Time
	ExpiresAt time.Time
	NextAt    time.Time // of an interrupted request: when it is run again; zero: not by itself

	Says string // all of this in one sentence
}

// Keys looks for an Idempotency-Key in one database. unsearched says what the uses may lack, and is "" if they lack nothing. It fails if
// the query is wrong, the database cannot be asked or the schema is missing.
//
// It may be called from many goroutines.
func Keys(ctx context.Context, pool *pgxpool.Pool, q KeyQuery) (uses []KeyUse, unsearched string, err error) {
	if q.Schema == "" {
		q.Schema = "holdfast"
	}
	if q.Within == 0 {
		q.Within = 2 * time.Second
	}
	if err := q.validate(pool); err != nil {
		return nil, "", fmt.Errorf("find key: %w", err)
	}
	statement, arguments := findKeys, []any{q.Key, most + 1, q.Scope, q.Operation}
	if q.Scope != "" && q.Operation != "" {
		statement = findKey
	}
	err = pgx.BeginTxFunc(ctx, plain.Of(pool), pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, limitSearch, fmt.Sprint(q.Within.Milliseconds())); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sqlschema.In(q.Schema, statement), arguments...)
		if err != nil {
			return err
		}
		uses, err = pgx.CollectRows(rows, keyUse)
		return err
	})
	if why := unanswered(err, q.Within, "name its scope and operation"); why != "" {
		return nil, why, nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("find key: %w", sqlschema.Explain(err, "docs/operations.md lists what to grant to an operator"))
	}
	if len(uses) > most {
		return uses[:most], fmt.Sprintf("it has more than %d uses: name its scope and operation", most), nil
	}
	return uses, "", nil
}

func (q KeyQuery) validate(pool *pgxpool.Pool) error {
	var problems []error
	if pool == nil {
		problems = append(problems, errors.New("pool is nil: it must be connected to the database to search"))
	}
	if q.Key == "" || len(q.Key) > 255 {
		problems = append(problems, fmt.Errorf("key has %d bytes: it must have 1 to 255", len(q.Key)))
	}
	if strings.ContainsRune(q.Key+q.Scope+q.Operation, 0) {
		problems = append(problems, errors.New("key, scope or operation has a NUL: no key has one"))
	}
	if q.Within < time.Millisecond {
		problems = append(problems, fmt.Errorf("within is %v: it must be at least 1ms", q.Within))
	}
	if err := sqlschema.Validate(q.Schema); err != nil {
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func keyUse(row pgx.CollectableRow) (u KeyUse, err error) {
	var created, expires, next pgtype.Timestamptz
	err = row.Scan(&u.Scope, &u.Operation, &u.State, &u.Status, &u.ResultRef, &u.Attempts, &u.Steps, &created, &expires, &next)
	u.CreatedAt, u.ExpiresAt, u.NextAt = moment(created), moment(expires), moment(next)
	u.Says = saysKey(u)
	return u, err
}
