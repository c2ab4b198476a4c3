package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file lets a replay that has a name go on after an interruption: a row of letter_replay holds the filter and the
// bound that it began with, and every letter that it moves carries its id in letter_action.

// bounds are what a call of Replay works within.
type bounds struct {
	id     int64 // of letter_replay; 0 without a name, or where a dry run found none
	name   string
	filter Filter
	upTo   int64 // letters that are written later are left for the next replay
	moved  int   // by the calls before
}

// begin finds the replay that was interrupted under the name, or begins one. A dry run only looks.
func (d *DLQ) begin(ctx context.Context, f Filter, o ReplayOptions) (bounds, error) {
	b := bounds{name: o.Name, filter: f}
	if o.Name == "" || o.DryRun && o.Anew {
		return b, d.bound(ctx, &b)
	}
	if o.Anew {
		if _, err := d.pool.Exec(ctx, d.sql.endReplay, o.Name, int64(0)); err != nil {
			return b, fmt.Errorf("end the replay %q: %w", o.Name, explain(err))
		}
	}
	f.NoPayloads = false // it changes nothing here
	mine, err := json.Marshal(f)
	if err != nil {
		return b, fmt.Errorf("remember the filter: %w", err)
	}
	for {
		var text, by string
		var began time.Time
		err := d.pool.QueryRow(ctx, d.sql.findReplay, o.Name).Scan(&b.id, &text, &b.upTo, &by, &began, &b.moved)
		switch {
		case err == nil:
			var first Filter
			if err := json.Unmarshal([]byte(text), &first); err != nil {
				return b, fmt.Errorf("read the filter of the replay %q: %w", o.Name, err)
			}
			if !first.alike(f) {
				return b, fmt.Errorf("a replay named %q, begun by %s at %s, was interrupted and had another filter: "+
					"give the same one to go on, or another name, or set Anew", o.Name, by, began.UTC().Format(time.RFC3339))
			}
			b.filter = first
			return b, nil
		case !errors.Is(err, pgx.ErrNoRows):
			return b, fmt.Errorf("look for the replay %q: %w", o.Name, explain(err))
		case o.DryRun:
			return b, d.bound(ctx, &b)
		}
		if _, err := d.pool.Exec(ctx, d.sql.beginReplay, o.Name, string(mine), o.By, o.Reason); err != nil {
			return b, fmt.Errorf("begin the replay %q: %w", o.Name, explain(err))
		}
	}
}

// bound leaves out the letters that are not there yet.
func (d *DLQ) bound(ctx context.Context, b *bounds) error {
	if err := d.pool.QueryRow(ctx, d.sql.last).Scan(&b.upTo); err != nil {
		return fmt.Errorf("bound the replay: %w", explain(err))
	}
	return nil
}

// end frees the name of a replay that has met its last letter, also when the context ended with it.
func (d *DLQ) end(ctx context.Context, b bounds) error {
	if b.id == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, err := d.pool.Exec(ctx, d.sql.endReplay, b.name, b.id); err != nil {
		return fmt.Errorf("every letter is on its way, but the replay %q could not be ended: %w", b.name, explain(err))
	}
	return nil
}

// alike says whether two filters were given alike. Since and Until may be reckoned from now, so they may differ.
func (f Filter) alike(g Filter) bool {
	if f.Since.IsZero() != g.Since.IsZero() || f.Until.IsZero() != g.Until.IsZero() {
		return false
	}
	f.Since, f.Until = g.Since, g.Until
	one, err1 := json.Marshal(f)
	two, err2 := json.Marshal(g)
	return err1 == nil && err2 == nil && string(one) == string(two)
}
