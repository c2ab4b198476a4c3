package servers

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// poolSize is enough for a relay, a consumer's workers and the requests of an example at once.
const poolSize = 24

func (s *Servers) startPostgres(ctx context.Context) error {
	s.url = s.config.DatabaseURL
	if s.url == "" {
		server, err := pgserver.Start(ctx, pgserver.Options{})
		if err != nil {
			return err // it says what to install
		}
		s.postgres, s.url = server, server.DSN
	}
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		// Not err itself: it repeats much of the address.
		return errors.New("DATABASE_URL cannot be read: it must look like postgres://user:password@host:5432/database")
	}
	config.MaxConns = max(config.MaxConns, poolSize)
	config.ConnConfig.ConnectTimeout = callTimeout
	config.ConnConfig.RuntimeParams["search_path"] = s.config.Name
	if s.Pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return fmt.Errorf("open the pool: %w", err)
	}
	return s.createSchema(ctx)
}

func (s *Servers) createSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var version string
	err := s.Pool.QueryRow(ctx, "select current_setting('server_version')").Scan(&version)
	if err != nil {
		return explain(err)
	}
	_, err = s.Pool.Exec(ctx, "create schema if not exists "+pgx.Identifier{s.config.Name}.Sanitize())
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "42501" { // insufficient_privilege
		return errors.New("the user in DATABASE_URL may not create schemas: grant it with GRANT CREATE ON DATABASE, or unset DATABASE_URL to have a server started")
	}
	if err != nil {
		return fmt.Errorf("create schema %s: %w", s.config.Name, err)
	}
	s.madeSchema = true
	if s.postgres != nil {
		s.AboutPostgres = fmt.Sprintf("PostgreSQL %s, started for this run (DATABASE_URL names another)", version)
	} else {
		s.AboutPostgres = fmt.Sprintf("PostgreSQL %s, schema %s", version, s.config.Name)
	}
	return nil
}

// explain turns the first answer of a server into what to do about it.
func explain(err error) error {
	const otherwise = "or unset DATABASE_URL to have a server started"
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		if refused.Code == "08P01" { // protocol_violation: what PgBouncer says to search_path
			return fmt.Errorf("the example connects to Postgres itself, not through a pooler: point DATABASE_URL past it, %s (%s)", otherwise, refused.Message)
		}
		return fmt.Errorf("DATABASE_URL is set, but its server refuses the connection (%s): correct it, %s", refused.Message, otherwise)
	}
	var dialed *net.OpError
	if errors.As(err, &dialed) {
		err = dialed // pgx says it once for each way it tried, a line each
	}
	return fmt.Errorf("DATABASE_URL is set, but its server cannot be reached: start it, correct the address, %s (%w)", otherwise, err)
}

// removeFromPostgres drops both schemas, on a connection of its own: the pool is closed.
func (s *Servers) removeFromPostgres() error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.url)
	if err == nil {
		defer conn.Close(ctx)
		_, err = conn.Exec(ctx, "drop schema if exists "+pgx.Identifier{s.config.Name}.Sanitize()+", "+pgx.Identifier{s.Schema}.Sanitize()+" cascade")
	}
	if err != nil {
		return fmt.Errorf("schemas %s and %s are left behind: %w", s.config.Name, s.Schema, err)
	}
	return nil
}
