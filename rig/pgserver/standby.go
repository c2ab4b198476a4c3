package pgserver

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// InitStandby copies a running server into a new one that follows it by streaming replication,
// and returns when the new one answers queries, read-only. It uses the primary's binaries and
// its settings; opts.Settings win over those. It fails when the binaries have no pg_basebackup.
func InitStandby(ctx context.Context, primary *Server, opts Options) (*Server, error) {
	opts = opts.withDefaults()
	settings := maps.Clone(primary.opts.Settings)
	maps.Copy(settings, opts.Settings)
	opts.Settings = settings
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if _, err := os.Stat(primary.bin("pg_basebackup")); err != nil {
		return nil, fmt.Errorf("make a standby: %s has no pg_basebackup, as downloaded binaries have none: install PostgreSQL 15 or newer", primary.binDir)
	}
	s, err := newServer(primary.account, primary.binDir, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, opts.StartTimeout)
	defer cancel()
	if err := s.follow(ctx, primary); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// follow copies the primary's data and starts on it. The copy comes with the primary's port in
// its settings, which startOnFreePort overwrites.
func (s *Server) follow(ctx context.Context, primary *Server) error {
	s.password = primary.password // users and their passwords are part of the copy
	// The password goes through the environment: arguments can be read by every user.
	_, err := s.account.output(ctx, s.dir, []string{"PGPASSWORD=" + primary.password}, s.bin("pg_basebackup"),
		"--pgdata", s.dataDir(), "--host", "127.0.0.1", "--port", strconv.Itoa(primary.port), "--username", "postgres",
		"--write-recovery-conf", "--wal-method", "stream", "--checkpoint", "fast", "--no-sync")
	if err != nil {
		return err
	}
	return s.startOnFreePort(ctx)
}

// Promote makes a standby a primary and returns when it accepts writes. It fails on a server that
// is not a standby.
func (s *Server) Promote(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, s.opts.StartTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	defer conn.Close(ctx)
	var promoted bool
	// It waits by itself, for at most as long as the second argument says, in seconds.
	err = conn.QueryRow(ctx, "select pg_promote(true, $1)", int(s.opts.StartTimeout.Seconds())).Scan(&promoted)
	if err != nil {
		return fmt.Errorf("promote: %w", err)
	}
	if !promoted {
		return fmt.Errorf("promote: the standby is not a primary after %s", s.opts.StartTimeout)
	}
	return nil
}
