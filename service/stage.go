package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"
)

// warnEvery is how often parts are named that take long to stop.
const warnEvery = 10 * time.Second

// stage is parts that stop together. Its methods are called by one goroutine.
type stage struct {
	ctx   context.Context // of the parts
	stop  context.CancelFunc
	parts []string
	ended chan ending
}

// ending is how a part ended.
type ending struct {
	part string
	err  error
}

func newStage(ctx context.Context) *stage {
	s := &stage{ended: make(chan ending)}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// start runs a part, and calls ended after it. That its context has ended is no error.
func (s *stage) start(name string, run func(context.Context) error, ended func(name string, err error)) {
	s.parts = append(s.parts, name)
	go func() {
		err := run(s.ctx)
		if s.ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = nil
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		ended(name, err)
		s.ended <- ending{name, err}
	}()
}

// await waits until all parts have ended, says so of each, and returns their errors.
func (s *stage) await(log *slog.Logger) (err error) {
	began, ticker := time.Now(), time.NewTicker(warnEvery)
	defer ticker.Stop()
	left := slices.Clone(s.parts)
	for len(left) > 0 {
		select {
		case e := <-s.ended:
			log.Info("part stopped", "part", e.part, "after", time.Since(began).Round(time.Millisecond))
			err = errors.Join(err, e.err)
			i := slices.Index(left, e.part)
			left = slices.Delete(left, i, i+1)
		case <-ticker.C:
			log.Warn("parts take long to stop", "parts", strings.Join(left, ", "), "after", time.Since(began).Round(time.Second))
		}
	}
	return err
}
