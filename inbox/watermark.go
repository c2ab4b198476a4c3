package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Watermark says whether version is newer than every version of the entity that this consumer has seen, and remembers
// it if so. It is for handlers that write state and must not go back where events can overtake each other: those of one
// entity that come under two keys or topics, over HTTP beside Kafka, or late, as the replay of a dead letter.
//
//	fresh, err := in.Watermark(ctx, tx, "product/"+p.SKU, p.Version)
//	if err != nil || !fresh {
//		return err // stale: a newer version is in the table already, and this event is done
//	}
//
// True means fresh: go on. False means stale: a version as high or higher was here before, so the handler must leave the
// state as it is; the same version again is stale too. The first version of an entity is fresh, whatever its number.
// entity is a name of 1 to 1,024 bytes of your choice, which holds for all event types of the consumer: say what kind of
// thing it names. version is what the producer counts with the entity's changes, not a clock. Tell of a deletion with a
// version as well, and an older change that comes after it stays without effect.
//
// Pass the handler's transaction: the watermark is raised by its commit, together with the state, and not at all if it
// rolls back. Ask before the state is read or written: from then on another transaction that asks for the same entity
// waits until this one ends, and then compares with what it left. A caller that asks for several entities in one transaction
// should ask in the order of their names, else two handlers can block each other; Postgres ends one of them then, and it
// is run again without counting as an attempt. In an isolation higher than READ COMMITTED, which only ReceiveTx can meet,
// the one that waited gets a serialization error instead of an answer.
//
// An error means that nothing is known: return it. Except for an entity that is refused, the transaction is then good
// for nothing but a rollback. Watermark may be called from many goroutines at once, with a transaction each. Its rows
// stay until you delete them: see docs/operations.md.
func (in *Inbox) Watermark(ctx context.Context, tx pgx.Tx, entity string, version int64) (fresh bool, err error) {
	if tx == nil {
		return false, errors.New("raise watermark: tx is nil: pass the transaction that the handler was given")
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

// WatermarkTies is Watermark for versions that several changes can share, such as a time in whole seconds: the same
// version again is fresh too. Its handler must be fit to write the same state twice, and of two changes with one version
// the one that comes later stays.
func (in *Inbox) WatermarkTies(ctx context.Context, tx pgx.Tx, entity string, version int64) (fresh bool, err error) {
	fresh, err = in.Watermark(ctx, tx, entity, version)
	if err != nil || fresh {
		return fresh, err
	}
	// Watermark has locked the row: what is read now is what it compared with.
	if err := tx.QueryRow(ctx, in.sql.watermarkIs, in.c.Consumer, entity, version).Scan(&fresh); err != nil {
		return false, fmt.Errorf("read watermark: %w", err)
	}
	return fresh, nil
}
