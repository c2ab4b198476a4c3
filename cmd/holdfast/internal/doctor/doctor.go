// Package doctor looks for what is set up wrong. The facts are looked at in facts.go and kafka.go; what is said of them is decided in
// findings.go, which knows no database, no broker and no clock.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

// Doctor examines one schema. Its methods may be called one at a time.
type Doctor struct {
	Pool   *pgxpool.Pool
	Schema holdfast.SchemaConfig

	patience int64 // with transactions, in seconds; 0 is the default of each check
	behind   int64 // how many transactions old xmin may be; 0 is the default
}

// Options say what is examined beside the schema and the server.
type Options struct {
	Role     string        // the part whose rights the user must have; "" for none
	Workers  int           // of a consumer whose pool is judged; 0 if nobody said
	PoolSize int           // of that pool
	Said     bool          // somebody said PoolSize
	Pause    time.Duration // between two looks at who owns lanes and partitions
	Kafka    *Kafka        // nil: Kafka is not asked
	Topics   []string      // to check beside those that consumers read and relays wait for
}

// The states of a finding.
const (
	OK      = "ok"
	NotMade = "skip" // it was not looked at
	Warn    = "warn" // it works, and may not for long
	Fail    = "fail" // something does not work
)

// Finding is what a check says: one sentence, and the command that helps.
type Finding struct {
	Check   string `json:"check"`
	State   string `json:"state"`
	Says    string `json:"says"`
	Command string `json:"command"` // "" if it is ok
}

func ok(check, format string, args ...any) Finding {
	return Finding{Check: check, State: OK, Says: fmt.Sprintf(format, args...)}
}

// notMade says of a check that was not made which command makes it.
func notMade(check, command, format string, args ...any) Finding {
	return Finding{check, NotMade, fmt.Sprintf(format, args...), command}
}

func warn(check, command, format string, args ...any) Finding {
	return Finding{check, Warn, fmt.Sprintf(format, args...), command}
}

func fail(check, command, format string, args ...any) Finding {
	return Finding{check, Fail, fmt.Sprintf(format, args...), command}
}

// Examine makes all checks. A check that cannot be made is one that fails, and the others are made all the same. One for which the user
// has no right is not made: the user of a service needs none of them.
func (d *Doctor) Examine(ctx context.Context, o Options) (findings []Finding) {
	for _, c := range []struct {
		name string
		make func(context.Context) ([]Finding, error)
	}{
		{"schema", d.drift},
		{"rights", func(ctx context.Context) ([]Finding, error) { return d.rights(ctx, o.Role) }},
		{"xmin", d.xmin},
		{"log", d.log},
		{"connections", func(ctx context.Context) ([]Finding, error) { return d.connections(ctx, o.Workers, o.PoolSize, o.Said) }},
		{"pooler", d.pooler},
		{"clock", d.clock},
		{"relay names and groups", func(ctx context.Context) ([]Finding, error) { return d.twice(ctx, o.Pause) }},
		{"consumers", d.consumers},
		{"kafka", func(ctx context.Context) ([]Finding, error) { return d.kafka(ctx, o.Kafka, o.Topics) }},
	} {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second+o.Pause)
		found, err := c.make(ctx)
		cancel()
		switch {
		case denied(err):
			found = append(found, notMade(c.name, "holdfast doctor, as a member of holdfast_reader too", "this user may not look at it: %s", terminal.Clean(oneLine(err))))
		case err != nil:
			found = append(found, fail(c.name, "holdfast check", "this could not be looked at: %s", terminal.Clean(err.Error())))
		}
		findings = append(findings, found...)
	}
	return findings
}
