//go:build unix

package redistest

import (
	"strconv"

	"github.com/holdfast-go/holdfast/internal/test/lifeline"
)

// attach has a server killed should this process end without having done so. release calls that off.
func attach(pid int) (release func(), err error) {
	line, err := lifeline.Attach(nil, nil, `kill -9 "$1"`, strconv.Itoa(pid))
	return line.Release, err
}
