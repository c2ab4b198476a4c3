// Package pause waits between two tries.
package pause

import (
	"context"
	"time"
)

// For waits for d. It returns false if the context ended first.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
