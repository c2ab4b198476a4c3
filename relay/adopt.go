package relay

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// What Adopt did.
const (
	adoptedNothing    = "nothing to adopt"
	adoptedIdentifier = "identifier replaced"
	adoptedEvents     = "events adopted"
)

// Adopt makes a database usable for relays again after it was restored from a dump or moved. The transaction ids in the
// cursors mean nothing there, and a relay refuses to run with ErrRestored.
//
// After a restore every event that is still in the log is published again, because nobody can know which of them were
// published. That is at most what the segments hold, and the inboxes of consumers recognise the repeats. Events are never
// deleted. Stop all relays first; producers may go on. Adopt needs the rights of the schema's owner.
//
// did says what it did: "nothing to adopt", because the cursors speak of this database's own history; "identifier replaced", because
// the files live on under another system identifier, as after pg_upgrade, and the cursors hold; or "events adopted".
func Adopt(ctx context.Context, pool *pgxpool.Pool, c holdfast.SchemaConfig) (did string, err error) {
	if err := sqlschema.Validate(c.Schema); err != nil {
		return "", fmt.Errorf("adopt: %w", err)
	}
	sql := sqlschema.For(c.Schema)
	did = adoptedNothing
	err = pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: "begin isolation level read committed; set local lock_timeout = '30s'"}, func(tx pgx.Tx) error {
		// 1. The snapshot comes before any lock: a lock can give us a transaction id, and ours must come after the
		//    snapshot's end, because the events will carry it.
		var snapshot string
		if err := tx.QueryRow(ctx, sql.In(adoptSnapshot)).Scan(&snapshot); err != nil {
			return fmt.Errorf("take a snapshot: %w", explain(err))
		}
		var s server
		if err := tx.QueryRow(ctx, sql.In(readBirth)).Scan(&s.adopted, &s.identifier, &s.born, &s.bornXmin); err != nil {
			return fmt.Errorf("read the birth: %w", explain(err))
		}
		switch {
		case s.identifier == s.adopted && s.sameHistory():
			return nil
		case s.sameHistory():
			did = adoptedIdentifier
			return exec(ctx, tx, sql.In(replaceCluster), s.identifier)
		}
		did = adoptedEvents
		// 2. From here on no event can be written until the end. 3. All events get one new transaction id, ours: seq keeps
		//    their order. 4. The cursors begin at the snapshot, so every event comes after them, those written since the
		//    restore included. 5. New numbers, a new token (running relays drop what they remember), and a birth of this history.
		if err := exec(ctx, tx, sql.In(adoptLock)); err != nil {
			return err
		}
		if err := exec(ctx, tx, sql.In(adoptEvents)); err != nil {
			return err
		}
		if err := exec(ctx, tx, sql.In(adoptLanes), snapshot); err != nil {
			return err
		}
		for _, statement := range []string{sql.In(adoptSequence), sql.In(adoptIncarnation), sql.In(adoptBirthGone), sql.In(adoptBirth)} {
			if err := exec(ctx, tx, statement); err != nil {
				return err
			}
		}
		return exec(ctx, tx, sql.In(replaceCluster), s.identifier)
	})
	if err != nil {
		return "", fmt.Errorf("adopt: %w", err)
	}
	return did, nil
}

func exec(ctx context.Context, tx pgx.Tx, statement string, args ...any) error {
	_, err := tx.Exec(ctx, statement, args...)
	return explain(err)
}
