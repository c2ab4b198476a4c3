// Package correlation finds the name by which other logs know a request or an event.
package correlation

import (
	"regexp"
	"strings"
)

// longest is how long such a name may be, in bytes.
const longest = 128

var (
	traceParent = regexp.MustCompile(`^[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}`)
	noTrace     = strings.Repeat("0", 32)
)

// ID returns the value of the header called name if that is safe to log, else the trace id of traceparent (W3C Trace Context),
// else "". get returns the value of a header, "" if there is none. Safe are 1 to 128 visible ASCII characters.
func ID(get func(name string) string, name string) string {
	id := get(name)
	if id != "" && len(id) <= longest && strings.IndexFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) < 0 {
		return id
	}
	if m := traceParent.FindStringSubmatch(get("traceparent")); m != nil && m[1] != noTrace {
		return m[1]
	}
	return ""
}
