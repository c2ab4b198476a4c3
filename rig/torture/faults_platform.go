//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/relay"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// platformFaults are faults of what is around the servers: a primary that is gone for good, a database that moves, a
// pooler.
func platformFaults() []fault {
	return []fault{
		{name: "failover", what: "the primary dies, and its synchronous standby takes over", begin: failover, alone: true, alarms: databaseAway,
			impossible: func(g *ground) string { return g.missingProgram("pg_basebackup") }},
		{name: "dump-restore", what: "all parts stop, and the database moves to another cluster by dump and restore", begin: moveByDump, alone: true,
			impossible: func(g *ground) string { return g.missingProgram("pg_dump") }},
		{name: "kill-pgbouncer", what: "kill -9 of PgBouncer", hold: seconds(0.2, 2), alarms: databaseAway, impossible: noBouncer,
			begin: func(_ context.Context, s *stage) (func(context.Context) error, error) {
				return s.bouncer.Restart, s.bouncer.Kill()
			}},
		{name: "freeze-pgbouncer", what: "PgBouncer stands still", hold: seconds(3, 5), alarms: databaseStill, impossible: noBouncer,
			begin: func(_ context.Context, s *stage) (func(context.Context) error, error) {
				return func(context.Context) error { return s.bouncer.Unpause() }, s.bouncer.Pause()
			}},
	}
}

func noBouncer(g *ground) string {
	if g.bouncer == nil {
		return "there is no PgBouncer between: -pgbouncer puts one there"
	}
	return ""
}

func (g *ground) missingProgram(name string) string {
	if _, err := os.Stat(filepath.Join(g.primary.BinDir(), name)); err != nil {
		return "this PostgreSQL has no " + name
	}
	return ""
}

// failover makes a standby, lets COMMIT wait for it, and kills the primary: every answered COMMIT is on the standby.
func failover(ctx context.Context, s *stage) (func(context.Context) error, error) {
	standby, err := pgserver.InitStandby(ctx, s.primary, pgserver.Options{Dir: s.small.postgres()})
	if err != nil {
		return nil, err
	}
	old := s.primary
	if err := s.followSynchronously(ctx); err != nil {
		standby.Stop()
		return nil, err
	}
	sleep(ctx, between(s.rng, 500*time.Millisecond, 2*time.Second))
	if err := old.Kill(); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := standby.Promote(ctx); err != nil {
			return err
		}
		old.Stop()
		return s.moveTo(ctx, standby)
	}, nil
}

// followSynchronously returns when every COMMIT waits for the standby.
func (g *ground) followSynchronously(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, sql := range []string{"alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"} {
		if _, err := g.admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("ask for synchronous replication: %w", err)
		}
	}
	for {
		var synchronous bool
		err := g.admin.QueryRow(ctx, `select exists (select from pg_stat_replication where sync_state = 'sync' and state = 'streaming')
			and current_setting('synchronous_standby_names') = '*'`).Scan(&synchronous)
		if err == nil && synchronous {
			// Sessions take a new setting between two statements, and earlier commits still travel to the standby.
			var written string
			if err = g.admin.QueryRow(ctx, "select pg_current_wal_lsn()").Scan(&written); err == nil {
				err = g.awaitReplay(ctx, written)
			}
			return err
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return errors.Join(errors.New("the standby does not follow"), err)
		}
	}
}

func (g *ground) awaitReplay(ctx context.Context, written string) error {
	for {
		var there bool
		err := g.admin.QueryRow(ctx, "select coalesce(bool_and(flush_lsn >= $1::pg_lsn), false) from pg_stat_replication", written).Scan(&there)
		if err == nil && there {
			sleep(ctx, time.Second) // every session has run a statement since
			return nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return errors.Join(errors.New("the standby stays behind"), err)
		}
	}
}

// moveTo makes another server the primary.
func (g *ground) moveTo(ctx context.Context, server *pgserver.Server) error {
	g.entry.SetTarget(hostOf(server.DSN))
	return g.moveAdminTo(ctx, server)
}

// moveAdminTo makes another server the primary, but no part reaches it yet.
func (g *ground) moveAdminTo(ctx context.Context, server *pgserver.Server) error {
	g.primary = server
	if err := g.openAdmin(ctx); err != nil {
		return err
	}
	return g.awaitPostgres(ctx)
}

// moveByDump is a planned move: everything stops, the database is dumped and restored into a new cluster, holdfast adopt
// makes it usable for relays, and everything starts again.
func moveByDump(ctx context.Context, s *stage) (func(context.Context) error, error) {
	var stopped [][2]string
	for _, role := range []string{roleProducer, rolePerson, roleRelay, roleConsumer} {
		for _, actor := range s.of(role) {
			stopped = append(stopped, [2]string{role, actor})
		}
		if err := s.quitAll(role); err != nil {
			return nil, err
		}
	}
	// The pooler knows one password: that of the first server.
	next, err := pgserver.Start(ctx, pgserver.Options{
		BinDir:   s.primary.BinDir(),
		Settings: settings,
		Dir:      s.small.postgres(),
		Password: s.password(),
	})
	if err != nil {
		return nil, err
	}
	if err := s.dump(ctx, next); err != nil {
		next.Stop()
		return nil, err
	}
	old := s.primary
	return func(ctx context.Context) error {
		if err := s.moveTo(ctx, next); err != nil {
			return err
		}
		old.Stop()
		if _, err := relay.Adopt(ctx, s.admin, holdfast.SchemaConfig{}); err != nil {
			return err
		}
		for _, who := range stopped {
			if err := s.start(who[0], who[1]); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// dump copies the database into next.
func (g *ground) dump(ctx context.Context, next *pgserver.Server) error {
	file := filepath.Join(g.dir, "dump")
	for _, c := range []*exec.Cmd{
		exec.CommandContext(ctx, filepath.Join(g.primary.BinDir(), "pg_dump"), "--format=custom", "--file", file, "--dbname", g.primary.DSN),
		exec.CommandContext(ctx, filepath.Join(g.primary.BinDir(), "pg_restore"), "--exit-on-error", "--dbname", next.DSN, file),
	} {
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %.500s", filepath.Base(c.Path), err, out)
		}
	}
	return os.Remove(file)
}
