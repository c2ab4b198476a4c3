package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// timedStatements times the statements of a pool by their names. A batch has the name of its second statement: the first takes a lock.
// A claim counts if it found something.
type timedStatements struct {
	mu sync.Mutex
	of map[string][]time.Duration
}

type timedStatement struct {
	name  string
	began time.Time
	empty bool // a claim that found nothing
}

type statementKey struct{}

func statementName(sql string) string {
	if name, found := strings.CutPrefix(strings.SplitN(sql, "\n", 2)[0], "-- "); found {
		return name
	}
	return ""
}

func (s *timedStatements) start(ctx context.Context, sql string) context.Context {
	return context.WithValue(ctx, statementKey{}, &timedStatement{name: statementName(sql), began: time.Now()})
}

func (s *timedStatements) end(ctx context.Context) {
	t, ok := ctx.Value(statementKey{}).(*timedStatement)
	if !ok || t.name == "" || t.empty {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[string][]time.Duration{}
	}
	s.of[t.name] = append(s.of[t.name], time.Since(t.began))
}

func (s *timedStatements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return s.start(ctx, data.SQL)
}

func (s *timedStatements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	s.end(ctx)
}

func (s *timedStatements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	queries := data.Batch.QueuedQueries
	return s.start(ctx, queries[min(1, len(queries)-1)].SQL)
}

func (s *timedStatements) TraceBatchQuery(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	if t, ok := ctx.Value(statementKey{}).(*timedStatement); ok && t.name == "inbox.claim" && statementName(data.SQL) == t.name {
		t.empty = data.CommandTag.RowsAffected() == 0
	}
}

func (s *timedStatements) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) {
	s.end(ctx)
}

// forget leaves out what was timed so far.
func (s *timedStatements) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of = nil
}

// names are the statements of the way of a stored event, as far as they were made.
func (s *timedStatements) names() (names []string) {
	for _, name := range []string{"inbox.claim", "inbox.is_head", "inbox.take", "inbox.retry", "inbox.sweep"} {
		if len(s.of[name]) > 0 {
			names = append(names, name)
		}
	}
	return names
}

func (s *timedStatements) spans(name string) (p50, p99, most time.Duration) {
	all := slices.Sorted(slices.Values(s.of[name]))
	if len(all) == 0 {
		return 0, 0, 0
	}
	return all[len(all)/2], all[len(all)*99/100], all[len(all)-1]
}

func (s *timedStatements) String() string {
	var parts []string
	for _, name := range s.names() {
		p50, p99, most := s.spans(name)
		parts = append(parts, fmt.Sprintf("%s %d times, %s, %s and %s ms", name, len(s.of[name]), number(milliseconds(p50)), number(milliseconds(p99)), number(milliseconds(most))))
	}
	return strings.Join(parts, "; ")
}
