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

	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// restoreFaults let the database go back in time while all parts stay up: what they remember is ahead of it, and it gives
// transaction ids out again that they call ended. What was committed in between is undone (undone.go).
func restoreFaults() []fault {
	return []fault{
		{name: "cold-copy", what: "Postgres is stopped, and the files of some seconds ago are put back", hold: seconds(2, 5), begin: coldCopy, alone: true, alarms: databaseAway,
			impossible: func(*ground) string { return missingCommand("cp") }},
		{name: "unlogged-survives", what: "a crash of a Postgres whose unlogged tables survive, right after transactions that wrote nothing", hold: seconds(0.2, 2), begin: crashKeepingUnlogged, alone: true, alarms: databaseAway},
		{name: "promote-behind", what: "the primary dies, and a standby takes over that lost it some seconds before", hold: seconds(2, 5), begin: promoteBehind, alone: true, alarms: databaseAway,
			impossible: func(g *ground) string { return g.missingProgram("pg_basebackup") }},
	}
}

func missingCommand(name string) string {
	if _, err := exec.LookPath(name); err != nil {
		return "there is no " + name
	}
	return ""
}

// coldCopy stops Postgres, copies its files, and starts it again. The heal stops it again and puts them back.
func coldCopy(ctx context.Context, s *stage) (func(context.Context) error, error) {
	var data string
	if err := s.admin.QueryRow(ctx, "show data_directory").Scan(&data); err != nil {
		return nil, err
	}
	kept, err := os.MkdirTemp(filepath.Dir(data), "copy")
	if err != nil {
		return nil, err
	}
	files := filepath.Join(kept, "data")
	if err := s.primary.StopFast(); err != nil {
		return nil, err
	}
	since := time.Now()
	if err := errors.Join(copyFiles(ctx, data, files), s.primary.Restart(ctx)); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		defer os.RemoveAll(kept)
		return s.goBack(ctx, since, func(ctx context.Context) error {
			if err := s.primary.StopFast(); err != nil {
				return err
			}
			if err := errors.Join(os.RemoveAll(data), copyFiles(ctx, files, data)); err != nil {
				return err
			}
			return s.primary.Restart(ctx)
		})
	}, s.awaitPostgres(ctx)
}

// copyFiles keeps owners and modes, without which Postgres does not start.
func copyFiles(ctx context.Context, from, to string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the files of Postgres: %w: %.500s", err, out)
	}
	return nil
}

// crashKeepingUnlogged is what a crash of Aurora is, whose unlogged tables are documented to survive it.
func crashKeepingUnlogged(ctx context.Context, s *stage) (func(context.Context) error, error) {
	for _, sql := range []string{
		"alter table holdfast.incarnation set logged",
		// Their ids are in nobody's log: the server gives them out again.
		"do $$ begin for i in 1..40 loop perform pg_current_xact_id(); rollback; end loop; end $$",
	} {
		if _, err := s.admin.Exec(ctx, sql); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) error {
		if err := s.primary.Restart(ctx); err != nil {
			return err
		}
		if err := s.awaitPostgres(ctx); err != nil {
			return err
		}
		_, err := s.admin.Exec(ctx, "alter table holdfast.incarnation set unlogged")
		return err
	}, s.primary.Kill()
}

// promoteBehind makes a standby, cuts it off, and promotes it when the primary has gone on for a while.
func promoteBehind(ctx context.Context, s *stage) (func(context.Context) error, error) {
	standby, err := pgserver.InitStandby(ctx, s.primary, pgserver.Options{Dir: s.small.postgres()})
	if err != nil {
		return nil, err
	}
	since, err := stopFollowing(ctx, standby)
	if err != nil {
		standby.Stop()
		return nil, err
	}
	return func(ctx context.Context) error {
		old := s.primary
		return s.goBack(ctx, since, func(ctx context.Context) error {
			if err := old.Kill(); err != nil {
				return err
			}
			if err := standby.Promote(ctx); err != nil {
				return err
			}
			old.Stop()
			return s.moveAdminTo(ctx, standby)
		})
	}, nil
}
