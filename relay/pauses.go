package relay

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A topic that a person has paused (waiting.Room.Pause, holdfast pause) is held, as one that is missing is: its events are parked in order, and
// all others go on. But none of its events is tried until it is resumed. A claim finds its rows as those of any topic that is held (load), and
// the first look at the pauses (applyPauses) keeps it from being tried.

// pausesEvery is how often a relay looks what is paused.
const pausesEvery = time.Second

// pausedTopics are the topics that are paused. Nobody changes one that others have.
type pausedTopics map[string]bool

// watchPauses looks again and again what is paused, until ctx ends. The first look is manage's, before any lane is claimed.
func (r *Relay) watchPauses(ctx context.Context) {
	for {
		timer := time.NewTimer(pausesEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		if r.paused.Load() == nil {
			continue
		}
		if err := r.readPauses(ctx); err != nil && ctx.Err() == nil {
			r.giveUpIfFatal(err) // else the loops that meet the same log it, and what was paused stays so
		}
	}
}

// readPauses reads what is paused, and tells every lane if that has changed.
func (r *Relay) readPauses(ctx context.Context) error {
	ctx, cancel := r.env.limit(ctx, max(r.c.Lease, 2*time.Second))
	defer cancel()
	rows, err := r.pool.Query(ctx, r.sql.In(readPaused))
	if err != nil {
		return fmt.Errorf("look what is paused: %w", explain(err))
	}
	topics, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look what is paused: %w", explain(err))
	}
	now := pausedTopics{}
	for _, topic := range topics {
		now[topic] = true
	}
	r.notePauses(now)
	return nil
}

// notePauses records what is paused.
func (r *Relay) notePauses(now pausedTopics) {
	var before pausedTopics
	if last := r.paused.Load(); last != nil {
		if before = *last; maps.Equal(before, now) {
			return
		}
	}
	r.paused.Store(&now)
	begun, ended := pauseChanges(before, now)
	for _, topic := range begun {
		r.c.Logger.Info("topic paused: its events are parked until it is resumed", "topic", topic)
	}
	for _, topic := range ended {
		r.c.Logger.Info("topic resumed", "topic", topic)
	}
	for _, l := range r.owned() {
		signal(l.tasksDue)
	}
}

// pauseChanges are the topics that are paused now and were not before, and those that were and are not.
func pauseChanges(before, now pausedTopics) (begun, ended []string) {
	for topic := range now {
		if !before[topic] {
			begun = append(begun, topic)
		}
	}
	for topic := range before {
		if !now[topic] {
			ended = append(ended, topic)
		}
	}
	slices.Sort(begun)
	slices.Sort(ended)
	return begun, ended
}

// applyPauses holds what was paused since the last call, and ends the holds of what was resumed.
func (l *lane) applyPauses() {
	last := l.r.paused.Load()
	if last == l.pauses {
		return
	}
	var before, now pausedTopics
	if l.pauses != nil {
		before = *l.pauses
	}
	if last != nil {
		now = *last
	}
	l.pauses = last
	begun, ended := pauseChanges(before, now)
	for _, topic := range begun {
		l.pauseTopic(topic)
	}
	for _, topic := range ended {
		l.resumeTopic(topic)
	}
}

// pauseTopic parks what waits for a topic, and all its later events, until resumeTopic.
func (l *lane) pauseTopic(topic string) {
	at := spot{topic, wholeTopic}
	h := l.holds[at]
	if h == nil {
		h = &hold{at: l.r.env.now()}
		l.holds[at] = h
	}
	h.paused, h.takes, h.resuming = true, false, false
	l.holdQueued(topic)
}
