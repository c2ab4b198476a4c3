//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/history"
	"github.com/holdfast-go/holdfast/internal/test/oracle"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// undoing is a time whose transactions the database has lost: an older state of it took its place.
type undoing struct {
	since, until time.Time
	ids          []string // of events that were committed meanwhile
}

// nowhere is an address that nobody listens on.
const nowhere = "127.0.0.1:1"

// goBack puts an older state of the database in its place, and remembers what that undoes. Meanwhile no part reaches it, so
// that what is read of it last is what was committed last.
func (s *stage) goBack(ctx context.Context, since time.Time, replace func(context.Context) error) error {
	s.entry.SetTarget(nowhere)
	s.entry.Reset()
	before, err := s.committedIDs(ctx)
	if err != nil {
		return err
	}
	if err := replace(ctx); err != nil {
		return err
	}
	if err := s.awaitPostgres(ctx); err != nil {
		return err
	}
	after, err := s.committedIDs(ctx)
	if err != nil {
		return err
	}
	s.undone = append(s.undone, undoing{since, time.Now(), slices.DeleteFunc(before, func(id string) bool {
		_, there := slices.BinarySearch(after, id)
		return there
	})})
	s.entry.SetTarget(hostOf(s.primary.DSN))
	return nil
}

// committedIDs are all events that the database has, in order, when every transaction of a part has ended.
func (g *ground) committedIDs(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		busy, err := g.endSessions(ctx)
		if err == nil && busy == 0 {
			break
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return nil, errors.Join(errors.New("parts still reach the database"), err)
		}
	}
	ids, err := texts(ctx, g.admin, `select id from written order by id collate "C"`)
	if err != nil {
		return nil, fmt.Errorf("read what is committed: %w", err)
	}
	return ids, nil
}

// endSessions ends all sessions but those of the suite itself, and says how many there were.
func (g *ground) endSessions(ctx context.Context) (n int, err error) {
	err = g.admin.QueryRow(ctx, `select count(pg_terminate_backend(pid)) from pg_stat_activity where backend_type = 'client backend' and application_name <> 'torture'`).Scan(&n)
	return n, err
}

// stopFollowing cuts a standby off from its primary for good. It returns when the last transaction was committed that the
// standby has. On a busy machine that may be a while ago.
func stopFollowing(ctx context.Context, standby *pgserver.Server) (last time.Time, err error) {
	conn, err := pgx.Connect(ctx, standby.DSN)
	if err != nil {
		return last, err
	}
	defer conn.Close(ctx)
	for _, sql := range []string{"alter system set primary_conninfo = ''", "select pg_reload_conf()"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return last, fmt.Errorf("cut the standby off: %w", err)
		}
	}
	for {
		var receives, behind bool
		err := conn.QueryRow(ctx, `select exists (select from pg_stat_wal_receiver), coalesce(pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn(), false),
			coalesce(pg_last_xact_replay_timestamp(), now())`).Scan(&receives, &behind, &last)
		if err != nil {
			return last, fmt.Errorf("cut the standby off: %w", err)
		}
		if !receives && !behind {
			return last, nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return last, ctx.Err()
		}
	}
}

// forget takes out of what is known of a run what the database has lost: events that were committed and undone, wherever they
// went, and what parts said of transactions that were undone. What is sent to Kafka stays sent. An event whose effect was
// undone is done again, after later ones of its key it may be.
func forget(known *oracle.Run, undone []undoing) {
	gone := map[string]bool{}
	for _, u := range undone {
		for _, id := range u.ids {
			gone[id] = true
		}
		known.Undone = append(known.Undone, oracle.Span{From: u.since, Until: u.until})
	}
	without(known, gone)
	lost := func(at time.Time) bool {
		return slices.ContainsFunc(undone, func(u undoing) bool { return at.After(u.since) && at.Before(u.until) })
	}
	entries := known.Entries[:0:0]
	for _, e := range known.Entries {
		switch e.Op {
		case history.Receive, history.Effect, history.Letter:
			if lost(e.At) {
				if e.Op == history.Receive && strings.HasPrefix(e.Actor, roleConsumer) {
					known.Redone = append(known.Redone, e.IDs...)
				}
				continue
			}
		}
		entries = append(entries, e)
	}
	known.Entries = entries
}

// without takes events out of what is known, wherever they went.
func without(known *oracle.Run, gone map[string]bool) {
	known.Records = slices.DeleteFunc(known.Records, func(r oracle.Record) bool { return gone[r.ID] })
	known.Effects = slices.DeleteFunc(known.Effects, func(e oracle.Effect) bool { return gone[e.ID] })
	known.Letters = slices.DeleteFunc(known.Letters, func(l oracle.Letter) bool { return gone[l.EventID] })
	entries := slices.Clone(known.Entries)
	for i, e := range entries {
		if slices.ContainsFunc(e.IDs, func(id string) bool { return gone[id] }) {
			entries[i].IDs = slices.DeleteFunc(slices.Clone(e.IDs), func(id string) bool { return gone[id] })
		}
	}
	known.Entries = entries
}
