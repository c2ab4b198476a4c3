package main

import (
	"fmt"
	"sync"
)

// started are servers that were started, until all are stopped. The zero value has none.
type started struct {
	mu      sync.Mutex
	servers map[int]any // by ID
	stops   []func()
	stopped bool

	stopping sync.Once
}

// add keeps a server that was started, and returns its ID. Where all were stopped meanwhile it is stopped too.
func (s *started) add(server any, stop func()) (id int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		stop()
		return 0
	}
	if s.servers == nil {
		s.servers = map[int]any{}
	}
	id = len(s.servers) + 1
	s.servers[id] = server
	s.stops = append(s.stops, stop)
	return id
}

func get[S any](s *started, id int) (S, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	server, ok := s.servers[id].(S)
	if !ok {
		return server, fmt.Errorf("%d is no such server", id)
	}
	return server, nil
}

// stopAll stops every server, once, and returns when all have stopped.
func (s *started) stopAll() {
	s.stopping.Do(func() {
		s.mu.Lock()
		s.stopped = true
		stops := s.stops
		s.mu.Unlock()
		var all sync.WaitGroup
		for _, stop := range stops {
			all.Go(stop)
		}
		all.Wait()
	})
}
