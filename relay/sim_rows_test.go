package relay

import (
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// Rows for which statements fail: each of these says which statements, and how.
var badRows = map[string]struct{ statements, code string }{
	"malformed": {"", ""},                                                                      // a page says so
	"read":      {"page planned_page sized_page sized_planned_page", "22003"},                  // no page can have it
	"park":      {"park", "23514"},                                                             // Postgres refuses to park it
	"drain":     {"due due_of probe_held", "22003"},                                            // it cannot be read where it is parked
	"damaged":   {"due due_of probe_held dead_letter", "XX001"},                                // nor copied from there
	"change":    {"delay hold resume_held resume_queues fix_head", "23514"},                    // it stays as it was parked
	"trigger":   {"delay hold resume_held resume_queues fix_head", "P0001"},                    // for a reason that may be one of all rows
	"stays":     {"unpark dead_letter", "23503"},                                               // it cannot leave
	"stuck":     {"unpark dead_letter delay hold resume_held resume_queues fix_head", "P0001"}, // nor be changed
	"move":      {"move_scheduled", "22003"},
}

var kindsOfBadRows = []string{"malformed", "read", "park", "drain", "damaged", "change", "trigger", "stays", "stuck"}

// spoil decides whether the row of an event is bad.
func (s *sim) spoil(id string, scheduled bool) {
	switch {
	case !s.plan.bad || s.badRng.IntN(6) > 0:
	case scheduled:
		s.bad[id] = "move"
	default:
		s.bad[id] = kindsOfBadRows[s.badRng.IntN(len(kindsOfBadRows))]
	}
}

// refuse is why a statement fails for a row. In the end somebody has repaired all.
func (s *sim) refuse(statement, id string) error {
	bad := badRows[s.bad[id]]
	for name := range strings.FieldsSeq(bad.statements) {
		if s.chaos && name == statement {
			s.log("%s fails for %s", statement, id)
			return &pgconn.PgError{Severity: "ERROR", Code: bad.code, Message: "scripted: " + s.bad[id]}
		}
	}
	return nil
}

func (s *sim) malformed(id string) string {
	if s.chaos && s.bad[id] == "malformed" {
		return "scripted: it is malformed"
	}
	return ""
}
