package inbox

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/inbox/internal/turns"
)

// This file knows what holds for the events of one type: the inbox's Config, with what the registration of the type changed.

// settings are the inbox's Config and what the registrations say. They do not change after the inbox has started.
type settings struct {
	c       Config
	kinds   map[string]kind
	slowest atomic.Pointer[Config] // the one with the longest Timeout; nil until the inbox starts
}

// kind is what holds for events of one type.
type kind struct {
	c     *Config
	turns *turns.Turns // nil: Config.Workers alone is the limit
	needs []string     // the dependencies of its handler, each once
	said  registration

	wakeup chan struct{} // this node stored an event: the loop over stored events of the type looks at once (limited.go)
}

// of is the configuration for events of a type: the inbox's own if the type has no handler here.
func (s *settings) of(eventType string) *Config {
	if k, ok := s.kinds[eventType]; ok {
		return k.c
	}
	return &s.c
}

// turnsOf are the turns of a type; nil if it has no limit of its own.
func (s *settings) turnsOf(eventType string) *turns.Turns { return s.kinds[eventType].turns }

// longest is the configuration of the type whose handlers may run longest. It bounds what is the same for all types: a lease, and how
// long one of our statements may wait for another transaction.
func (s *settings) longest() *Config {
	if c := s.slowest.Load(); c != nil {
		return c
	}
	return &s.c
}

// note takes in what a registration says of its types. They share their turns. Each has a loop of its own, and so a wakeup.
func (s *settings) note(r registration, types ...string) {
	c := r.applied(s.c)
	var shared *turns.Turns
	if r.limit > 0 {
		shared = turns.New(r.limit)
	}
	needs := slices.Compact(slices.Sorted(slices.Values(r.needs)))
	for _, t := range types {
		s.kinds[t] = kind{
			c:      &c,
			turns:  shared,
			needs:  needs,
			said:   r,
			wakeup: make(chan struct{}, 1),
		}
		r = registration{} // Its problems are said once.
	}
}

// checked is every problem of the registrations, in one error that wraps ErrConfiguration. It also finds the longest Timeout.
func (s *settings) checked() error {
	slowest := &s.c
	var problems []error
	for _, t := range slices.Sorted(maps.Keys(s.kinds)) {
		k := s.kinds[t]
		for _, problem := range k.said.problems(*k.c) {
			problems = append(problems, fmt.Errorf("type %q: %w", t, problem))
		}
		if k.c.Timeout > slowest.Timeout {
			slowest = k.c
		}
	}
	s.slowest.Store(slowest)
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("inbox: %w: %w", ErrConfiguration, errors.Join(problems...))
}

// lease is how long a stored event belongs to the worker that claimed it: as long as its handler can take at most, and 30 s to get a
// connection first. One claim takes events of several types, so the slowest type decides.
func (s *settings) lease() time.Duration { return s.longest().lease() }
