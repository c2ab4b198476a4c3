package main

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/inbox/source"
)

// startLine holds the members of consumer groups back until each has its share of the partitions, so that what is measured is
// not how a group forms. Safe for use by many goroutines.
type startLine struct {
	mu     sync.Mutex
	has    []int // partitions of each member
	share  int
	opened bool
	open   chan struct{}
}

func newStartLine(members, share int) *startLine {
	return &startLine{has: make([]int, members), share: share, open: make(chan struct{})}
}

// assigned notes how many partitions a member has now.
func (l *startLine) assigned(member, partitions int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.has[member] = partitions
	for _, n := range l.has {
		if n != l.share {
			return
		}
	}
	if !l.opened {
		l.opened = true
		close(l.open)
	}
}

// of is a source whose records a member gets once all have started.
func (l *startLine) of(s inbox.Source, member int) inbox.Source { return heldSource{s, l, member} }

type heldSource struct {
	inbox.Source
	line   *startLine
	member int
}

func (s heldSource) Open(ctx context.Context, handover time.Duration) (source.Session, error) {
	session, err := s.Source.Open(ctx, handover)
	if err != nil {
		return nil, err
	}
	return heldSession{session, s.line, s.member}, nil
}

type heldSession struct {
	source.Session
	line   *startLine
	member int
}

func (s heldSession) Next(ctx context.Context) (source.Generation, error) {
	s.line.assigned(s.member, 0)
	g, err := s.Session.Next(ctx)
	if err != nil {
		return nil, err
	}
	s.line.assigned(s.member, len(g.Assigned()))
	return heldGeneration{g, s.line}, nil
}

type heldGeneration struct {
	source.Generation
	line *startLine
}

// Fetch finds nothing until all have started.
func (g heldGeneration) Fetch(ctx context.Context, tp source.TopicPartition, offset, maxBytes int64) (source.Page, error) {
	select {
	case <-g.line.open:
		return g.Generation.Fetch(ctx, tp, offset, maxBytes)
	case <-time.After(500 * time.Millisecond):
		return source.Page{Next: offset}, nil
	case <-g.Over():
		return source.Page{Next: offset}, nil
	case <-ctx.Done():
		return source.Page{}, ctx.Err()
	}
}
