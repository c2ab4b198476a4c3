package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Watermark reports whether version is newer than every version of the entity that this consumer has seen, and if so remembers it.
// It is for handlers that write state and must not go back although events arrive out of order. That happens to events of one
// entity with two keys or topics, over HTTP beside a topic, or late, such as the replay of a dead letter.
//
//	fresh, err := in.Watermark(ctx, tx, "product/"+p.SKU, p.Version)
//	if err != nil || !fresh {
//		return err // stale: a newer version is in the table already, and this event is done
//	}
//
// True means fresh: go on. False means stale: the same version or a higher one came before, and the handler must leave the state as
// it is. An entity's first version is fresh, whatever its number. entity is a name of your choice of 1 to 1,024 bytes. It is
// shared by all event types of the consumer, so let it say what kind of thing it names. version is a number that the producer
// increases with each change of the entity, not a time. Give a deletion a version too: older changes that arrive after it
// are then stale.
//
// Pass the handler's transaction: its commit raises the watermark together with the state, and a rollback raises nothing. Ask before
// you read or write the state. From then on, another transaction that asks for the same entity waits until this one ends, and
// then compares with the result. If you ask for several entities in one transaction, ask in the order of their names.
// Otherwise two handlers can block each other; then Postgres ends one of them, which runs again and spends no attempt. In an
// isolation level above READ COMMITTED, which only ReceiveTx can meet, the one that waited gets a serialization error.
//
// After an error nothing is known: return it. The transaction can then only be rolled back, except after an entity that is refused.
// Many goroutines may call Watermark at once, each with its own transaction. Its rows stay until you delete them: see
// docs/operations/consumers.md.
func (in *Inbox) Watermark(ctx context.Context, tx pgx.Tx, entity string, version int64) (fresh bool, err error) {
	if tx == nil {
		return false, errors.New("raise watermark: tx is nil: it must be the transaction that the handler was given")
	}
	if err := checkText("entity", entity, 1, 1024); err != nil {
		return false, fmt.Errorf("raise watermark: %w", err)
	}
	tag, err := tx.Exec(ctx, in.sql.watermark, in.c.Consumer, entity, version)
	if err != nil {
		return false, fmt.Errorf("raise watermark: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// WatermarkTies is Watermark for versions that several changes can share, such as a time in whole seconds: the same version again is
// fresh too. The handler must bear to write the same state twice. Of two changes with one version, the one that arrives later
// stays.
func (in *Inbox) WatermarkTies(ctx context.Context, tx pgx.Tx, entity string, version int64) (fresh bool, err error) {
	fresh, err = in.Watermark(ctx, tx, entity, version)
	if err != nil || fresh {
		return fresh, err
	}
	// Watermark has locked the row: this reads what it compared with.
	if err := tx.QueryRow(ctx, in.sql.watermarkIs, in.c.Consumer, entity, version).Scan(&fresh); err != nil {
		return false, fmt.Errorf("read watermark: %w", err)
	}
	return fresh, nil
}
