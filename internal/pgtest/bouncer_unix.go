//go:build unix

package pgtest

import (
	"fmt"

	"github.com/holdfast-go/holdfast/internal/pgserver/lifeline"
)

// attachLifeline has a bouncer ended and its folder removed if this process ends without having done so.
func attachLifeline(pid int, dir string) (*lifeline.Line, error) {
	return lifeline.Attach(nil, nil, `kill -KILL "$1"; rm -rf "$2"`, fmt.Sprint(pid), dir)
}
