package dlq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/manual"
)

// This file lets a named replay continue after an interruption. A row of letter_replay holds the filter and the bound
// it began with. Every letter that it moves has the replay's id in letter_action.

// bounds limit what a call of Replay moves.
type bounds struct {
	id     int64 // of letter_replay; 0 without a name, or if a dry run found none
	name   string
	filter Filter
	upTo   int64 // later letters are left for the next replay
	moved  int   // by the previous calls
}

// begin finds the interrupted replay of this name, or begins one. A dry run only looks.
func (d *DLQ) begin(ctx context.Context, f Filter, o ReplayOptions) (bounds, error) {
	b := bounds{name: o.Name, filter: f}
	if o.Name == "" || o.DryRun && o.Anew {
		return b, d.bound(ctx, &b)
	}
	if o.Anew {
		if _, err := d.pool.Exec(ctx, d.sql.endReplay, o.Name, int64(0)); err != nil {
			return b, fmt.Errorf("end the replay %q: %w", o.Name, manual.Explain(err))
		}
	}
	f.NoPayloads = false // irrelevant for a replay
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
					"give the same one to continue, or another name, or set Anew", o.Name, by, began.UTC().Format(time.RFC3339))
			}
			b.filter = first
			return b, nil
		case !errors.Is(err, pgx.ErrNoRows):
			return b, fmt.Errorf("look for the replay %q: %w", o.Name, manual.Explain(err))
		case o.DryRun:
			return b, d.bound(ctx, &b)
		}
		if _, err := d.pool.Exec(ctx, d.sql.beginReplay, o.Name, string(mine), o.By, o.Reason); err != nil {
			return b, fmt.Errorf("begin the replay %q: %w", o.Name, manual.Explain(err))
		}
	}
}

// bound excludes letters that are written from now on.
func (d *DLQ) bound(ctx context.Context, b *bounds) error {
	if err := d.pool.QueryRow(ctx, d.sql.last).Scan(&b.upTo); err != nil {
		return fmt.Errorf("bound the replay: %w", manual.Explain(err))
	}
	return nil
}

// end frees the name of a replay that has reached its last letter, even if the context has ended.
func (d *DLQ) end(ctx context.Context, b bounds) error {
	if b.id == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if _, err := d.pool.Exec(ctx, d.sql.endReplay, b.name, b.id); err != nil {
		return fmt.Errorf("every letter was moved, but the replay %q could not be ended: %w", b.name, manual.Explain(err))
	}
	return nil
}

// alike reports whether two filters are the same request. Since and Until may be relative to now, so they may differ.
func (f Filter) alike(g Filter) bool {
	if f.Since.IsZero() != g.Since.IsZero() || f.Until.IsZero() != g.Until.IsZero() {
		return false
	}
	f.Since, f.Until = g.Since, g.Until
	one, err1 := json.Marshal(f)
	two, err2 := json.Marshal(g)
	return err1 == nil && err2 == nil && string(one) == string(two)
}
