package holdfast

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/catalog"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// migrations holds one file for each version after the first: what makes it of the version before.
//
//go:embed migrations/*.sql
var migrations embed.FS

// An upgrade waits this long for the lock of a table, unless the connection has a lock_timeout: every writer that comes later
// waits behind it. It is tried a few times, because the transaction that is in its way is mostly a short one.
const (
	upgradeLockTimeout = "5s"
	upgradeAttempts    = 4
	upgradePause       = time.Second
)

// Migrate creates the schema, or upgrades it to SchemaVersion, in one transaction. It may be called from many nodes at
// once: one does the work, the others wait for it. A schema that is up to date is left alone, and so is a newer one on which
// this build may run. It needs the right to create the schema, or to create objects in it when it is there; an upgrade
// needs the owner's rights.
//
// An upgrade locks the tables that it changes. It gives way to transactions that hold them, and is tried again a few times.
// docs/operations.md says what each upgrade locks.
func Migrate(ctx context.Context, pool *pgxpool.Pool, c SchemaConfig) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("schema config: %w", err)
	}
	c = c.withDefaults()
	err := migrate(ctx, pool, c)
	for attempt := 1; attempt < upgradeAttempts && blocked(err); attempt++ {
		timer := time.NewTimer(upgradePause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("migrate schema %s: %w", c.Schema, err)
		case <-timer.C:
		}
		err = migrate(ctx, pool, c)
	}
	if err != nil {
		return fmt.Errorf("migrate schema %s: %w", c.Schema, err)
	}
	return nil
}

// migrate is one attempt of Migrate.
func migrate(ctx context.Context, pool *pgxpool.Pool, c SchemaConfig) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{BeginQuery: beginMigration}, func(tx pgx.Tx) error {
		// A lock of the transaction, not of the session: it works through a pooler and ends with a crash.
		if _, err := tx.Exec(ctx, lockMigrations, c.Schema); err != nil {
			return fmt.Errorf("wait for other migrations: %w", err)
		}
		if err := checkServer(ctx, tx); err != nil {
			return err
		}
		there, lanes, err := catalog.Installed(ctx, tx, c.Schema)
		if errors.Is(err, ErrSchemaMissing) {
			return install(ctx, tx, c)
		}
		if err != nil {
			return err
		}
		if c.Lanes != 0 && c.Lanes != lanes {
			return fmt.Errorf("lanes is %d: it must be 0, or that of schema %s, which was created with %d: lanes are fixed for life", c.Lanes, c.Schema, lanes)
		}
		if there.Version > SchemaVersion {
			return there.Problem(c.Schema)
		}
		if there.Version < SchemaVersion {
			if err := upgrade(ctx, tx, c, there.Version); err != nil {
				return err
			}
		}
		if err := limitPayloads(ctx, tx, c); err != nil {
			return err
		}
		return complete(ctx, tx, c.Schema, lanes)
	})
}

// limitPayloads changes the installation's limit if another is configured.
func limitPayloads(ctx context.Context, tx pgx.Tx, c SchemaConfig) error {
	limit, err := installedMaxPayload(ctx, tx, c.Schema)
	if err != nil || c.MaxPayload == 0 || c.MaxPayload == limit {
		return err
	}
	if _, err := tx.Exec(ctx, sqlschema.In(c.Schema, fmt.Sprintf(setMaxPayload, c.MaxPayload))); err != nil {
		return fmt.Errorf("set max payload: %w", err)
	}
	return nil
}

// installedMaxPayload is the installation's limit, 0 if its function is missing or was changed.
func installedMaxPayload(ctx context.Context, tx pgx.Tx, schema string) (limit int, err error) {
	err = tx.QueryRow(ctx, readMaxPayload, quoted(schema)+".max_payload()").Scan(&limit)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("read max payload: %w", err)
	}
	return limit, nil
}

func install(ctx context.Context, tx pgx.Tx, c SchemaConfig) error {
	script := installSQL(c)
	var exists bool
	if err := tx.QueryRow(ctx, schemaExists, quoted(c.Schema)).Scan(&exists); err != nil {
		return fmt.Errorf("look for schema: %w", err)
	}
	if exists {
		// `create schema if not exists` asks for a right on the database even when the schema is there.
		script = strings.Replace(script, "create schema if not exists "+quoted(c.Schema)+";", "", 1)
	}
	if err := tx.Conn().PgConn().Exec(ctx, script).Close(); err != nil {
		return fmt.Errorf("create schema: %w", err)
	}
	return nil
}

func upgrade(ctx context.Context, tx pgx.Tx, c SchemaConfig, from int) error {
	if from < 1 {
		return fmt.Errorf("schema %s is at version %d: no release made that one: create the schema again", c.Schema, from)
	}
	err := tx.Conn().PgConn().Exec(ctx, upgradeSQL(c, from)).Close()
	if err == nil {
		return nil
	}
	what := fmt.Sprintf("upgrade schema %s from version %d to %d", c.Schema, from, SchemaVersion)
	var pgErr *pgconn.PgError
	switch {
	case blocked(err):
		return fmt.Errorf("%s: other transactions hold its tables: nothing was changed; stop relays and consumers, or end the transactions that pg_stat_activity shows as old, and run it again: %w", what, err)
	case errors.As(err, &pgErr) && pgErr.Code == "42501":
		return fmt.Errorf("%s: run it as the owner of the schema: %w", what, err)
	}
	return fmt.Errorf("%s: nothing was changed: %w", what, err)
}

// upgradeSQL is the script from one version to this build's, without its transaction. It fails on any other version.
func upgradeSQL(c SchemaConfig, from int) string {
	var script strings.Builder
	fmt.Fprintf(&script, "select set_config('lock_timeout', '%s', true) where current_setting('lock_timeout') = '0';\n\n", upgradeLockTimeout)
	for version := from + 1; version <= SchemaVersion; version++ {
		text, err := migrations.ReadFile(fmt.Sprintf("migrations/%d.sql", version))
		if err != nil {
			panic(err) // a test reads each
		}
		fmt.Fprintf(&script, `do $$ begin
    if (select version from holdfast.installation) <> %d then
        raise exception 'the schema is at version %%, this script upgrades version %d', (select version from holdfast.installation);
    end if;
end $$;

%s
update holdfast.installation set version = %d, migrated_at = now();

`, version-1, version-1, text, version)
	}
	return plainPath(sqlschema.In(c.Schema, withMaxPayload(script.String(), c)+grantsSQL))
}

// blocked says whether a transaction of others was in the way: lock_not_available, deadlock_detected.
func blocked(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && (pgErr.Code == "55P03" || pgErr.Code == "40P01")
}

func quoted(schema string) string { return `"` + schema + `"` }
