//go:build linux

package main

import (
	"context"
	"fmt"
	"time"
)

// processFaults are those of our own processes: killed, killed again while they recover, frozen for longer than what
// they hold, out of connections, coming and going.
func processFaults() (all []fault) {
	for _, role := range []string{roleProducer, roleRelay, roleConsumer} {
		all = append(all,
			fault{
				name: "kill-" + role,
				what: "kill -9 of a " + role,
				begin: func(_ context.Context, s *stage) (func(context.Context) error, error) {
					return killOne(s, role)
				},
			},
			fault{
				name: "kill-" + role + "-twice",
				what: "kill -9 of a " + role + ", and again while it recovers",
				begin: func(ctx context.Context, s *stage) (func(context.Context) error, error) {
					return killTwice(ctx, s, role)
				},
			},
			fault{
				name: "freeze-" + role,
				what: "a " + role + " stands still for longer than a lease or its session, and goes on",
				hold: outlasting(takeoverAfter(role)),
				begin: func(_ context.Context, s *stage) (func(context.Context) error, error) {
					p, err := s.one(role)
					if err != nil {
						return nil, err
					}
					return func(context.Context) error { return p.thaw() }, p.freeze()
				},
				alone: true,
				keeps: role == roleRelay,
			},
			fault{
				name: "exhaust-" + role,
				what: "all connections of a " + role + "'s pool are taken",
				hold: seconds(2, 4),
				begin: func(_ context.Context, s *stage) (func(context.Context) error, error) {
					p, err := s.one(role)
					if err != nil {
						return nil, err
					}
					return nil, p.command(fmt.Sprint("hog ", s.held))
				},
				alone: true,
				keeps: role == roleRelay,
			},
		)
	}
	return append(all,
		fault{
			name:  "rebalance-storm",
			what:  "a consumer joins and leaves, or dies, every second",
			hold:  seconds(4, 7),
			begin: rebalanceStorm,
			alone: true,
		},
		fault{
			name:  "relay-storm",
			what:  "a relay comes and goes, in order or not, every half second",
			hold:  seconds(3, 5),
			begin: relayStorm,
			alone: true,
			keeps: true,
		},
	)
}

// takeoverAfter is how long others wait for a sign of life of a role before they take over what it has. Nobody takes over
// from a producer: it stands still with its locks.
func takeoverAfter(role string) time.Duration {
	if role == roleConsumer {
		return session
	}
	return lease
}

func killOne(s *stage, role string) (func(context.Context) error, error) {
	p, err := s.one(role)
	if err != nil {
		return nil, err
	}
	if err := s.kill(p); err != nil {
		return nil, err
	}
	return nil, s.start(role, p.part.Actor)
}

func killTwice(ctx context.Context, s *stage, role string) (func(context.Context) error, error) {
	p, err := s.one(role)
	if err != nil {
		return nil, err
	}
	for range 3 {
		if err := s.kill(s.get(p.part.Actor)); err != nil {
			return nil, err
		}
		if err := s.start(role, p.part.Actor); err != nil {
			return nil, err
		}
		sleep(ctx, between(s.rng, 50*time.Millisecond, 700*time.Millisecond))
	}
	return nil, nil
}

// rebalanceStorm is an additional node that never stays.
func rebalanceStorm(ctx context.Context, s *stage) (func(context.Context) error, error) {
	return comeAndGo(ctx, s, roleConsumer, time.Second)
}

func relayStorm(ctx context.Context, s *stage) (func(context.Context) error, error) {
	return comeAndGo(ctx, s, roleRelay, 500*time.Millisecond)
}

// comeAndGo runs for as long as the fault is held, so there is nothing left to heal.
func comeAndGo(ctx context.Context, s *stage, role string, every time.Duration) (func(context.Context) error, error) {
	actor := role + "/guest"
	for end := time.Now().Add(s.held); time.Now().Before(end); {
		if err := s.start(role, actor); err != nil {
			return nil, err
		}
		sleep(ctx, between(s.rng, every/2, 2*every))
		p, leave := s.leave(actor), s.kill
		if s.rng.IntN(2) == 0 {
			leave = func(p *process) error { return p.quit() }
		}
		if err := leave(p); err != nil {
			return nil, err
		}
	}
	s.held = 0
	return nil, nil
}
