package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/nodes"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/terminal"
)

// This file decides what doctor says of what it has seen. It knows no database, no broker and no clock.

// xminHolder is what keeps Postgres from removing dead rows.
type xminHolder struct {
	kind    string // session, prepared, slot or standby
	name    string
	pid     int64
	seconds int64 // how long it has been open; -1 if that is hidden or not known
	age     int64 // in transactions
}

// The ages from which what holds xmin is worth a warning.
const (
	xminSeconds      = 300
	xminTransactions = 1_000_000
)

// judgeXmin warns of each that has held it for longer than patience, in seconds, or for behind transactions.
func judgeXmin(holders []xminHolder, patience, behind int64) (found []Finding) {
	for _, h := range holders {
		if h.seconds < patience && h.age < behind {
			continue
		}
		lasts := fmt.Sprintf("for %s and %d transactions", state.Span(max(h.seconds, 0)), h.age)
		if h.seconds < 0 {
			lasts = fmt.Sprintf("for %d transactions", h.age)
		}
		name := "'" + strings.ReplaceAll(h.name, "'", "''") + "'"
		switch h.kind {
		case "prepared":
			found = append(found, warn("xmin", "psql -c "+terminal.Quote("rollback prepared "+name), "prepared transaction %s has held xmin %s: dead rows stay, and saving cursors gets slower", name, lasts))
		case "slot":
			found = append(found, warn("xmin", "psql -c "+terminal.Quote("select pg_drop_replication_slot("+name+")"), "replication slot %s has held xmin %s: start what reads it, or drop it", name, lasts))
		case "standby":
			found = append(found, warn("xmin", "psql -h STANDBY -c \"alter system set hot_standby_feedback = off\"", "standby %s holds xmin %s, for a query there", name, lasts))
		default:
			found = append(found, warn("xmin", fmt.Sprintf("psql -c 'select pg_terminate_backend(%d)'", h.pid), "process %d (%s) has held xmin %s: dead rows stay, and saving cursors gets slower", h.pid, state.Dash(h.name), lasts))
		}
	}
	if len(found) == 0 {
		return []Finding{ok("xmin", "no transaction, slot or standby has held xmin for %s", state.Span(patience))}
	}
	return found
}

// judgeLog says what has kept segments of the log from being emptied for longer than patience, in seconds. holders are sorted by age, the oldest first.
func judgeLog(holders []state.Holder, patience int64) Finding {
	if len(holders) == 0 || holders[0].Seconds < patience {
		return ok("log", "no transaction has held a segment of the log for %s", state.Span(patience))
	}
	blame := holders[0].Blame("it")
	return warn("log", blame.Command, "a segment of the log cannot be emptied: %s", blame.Says)
}

// judgePool compares the pool of a service with its workers, as docs/operations.md counts them. It sees no service: both are what
// somebody said, or what pgxpool makes of the connection string. workers is 0 if nobody said.
func judgePool(workers, size int, said bool) Finding {
	if workers <= 0 {
		return notMade("pool", "holdfast doctor --workers N --pool-size N", "not looked at: doctor sees no service's pool, pass --workers and --pool-size of one")
	}
	of := "a pool of this connection string, without --pool-size, has %d connections"
	if said {
		of = "a pool of %d connections"
	}
	if needs := 2*workers + 2; size < needs {
		return warn("pool", fmt.Sprintf("add pool_max_conns=%d to the connection string", needs), of+", too few: %s use up to %d, and wait for each other", size, terminal.Count(workers, "worker"), needs)
	}
	return ok("pool", of+", enough for %s", size, terminal.Count(workers, "worker"))
}

// judgeConnections says whether the server has connections left.
func judgeConnections(used, most int) Finding {
	if 10*used >= 9*most {
		return warn("connections", "psql -c \"alter system set max_connections = "+fmt.Sprint(2*most)+"\"", "%d of the server's %d connections are used", used, most)
	}
	return ok("connections", "%d of the server's %d connections are used", used, most)
}

// poolerSeen is what a few statements show of what lies between us and Postgres.
type poolerSeen struct {
	between    bool // the server sees another address than ours
	statement  bool // it refuses transactions
	shared     bool // another client got our connection of the server while we had no transaction
	standalone bool // our statements are prepared by name
}

func judgePooler(s poolerSeen) Finding {
	const page = "set pool_mode = transaction in pgbouncer.ini, and run RELOAD on its console"
	switch {
	case s.statement:
		return fail("pooler", page, "a pooler in statement mode is before Postgres: it refuses transactions, which everything needs")
	case s.shared && s.standalone:
		return warn("pooler", "add default_query_exec_mode=exec to the connection string", "a pooler in transaction mode is before Postgres, and pgx prepares statements by name: that fails unless the pooler keeps them (max_prepared_statements of PgBouncer 1.21)")
	case s.shared:
		return ok("pooler", "a pooler in transaction mode is before Postgres, and pgx prepares no statement by name")
	case s.between:
		return ok("pooler", "something is between this program and Postgres, such as a pooler in session mode or a port mapping, and it keeps sessions apart")
	}
	return ok("pooler", "no pooler is before Postgres")
}

// clockLimit is how far clocks may differ: leases and due times go by the database's, and logs are read side by side.
const clockLimit = time.Second

// judgeClock compares a time of the database with the middle of the question. trip is how long that took.
func judgeClock(difference, trip time.Duration) Finding {
	if difference.Abs() > clockLimit+trip/2 {
		return warn("clock", "chronyc tracking", "the clock of this machine is %s away from the database's: events that it dates are wrong by that much", difference.Round(time.Millisecond))
	}
	return ok("clock", "the clock of this machine agrees with the database's within %s", (difference.Abs() + trip/2).Round(time.Millisecond))
}

// judgeNames compares two looks at the lanes, some seconds apart. A lane that its owner claims again was lost meanwhile.
func judgeNames(before, after state.Owners) Finding {
	if relay, lanes := state.SameName(before, after); relay != "" {
		need := state.SameNameNeed(relay, lanes)
		return fail("relay names", need.Command, "%s", need.Says)
	}
	return ok("relay names", "no relay claims its own lanes again")
}

// groupLook is a group that a partition of the consumer had when it was looked at.
type groupLook struct{ consumer, group string }

// judgeGroups has all looks at all partitions.
func judgeGroups(looks []groupLook) Finding {
	groups := map[string][]string{}
	for _, l := range looks {
		if !slices.Contains(groups[l.consumer], l.group) {
			groups[l.consumer] = append(groups[l.consumer], l.group)
		}
	}
	var names []string
	for consumer, of := range groups {
		if slices.Sort(of); len(of) > 1 {
			names = append(names, consumer)
		}
	}
	if len(names) == 0 {
		return ok("groups", "each consumer has one consumer group")
	}
	slices.Sort(names)
	return fail("groups", "give each group an inbox.Config.Consumer of its own; for a group that is gone: kafka-consumer-groups.sh --delete --group GROUP",
		"groups %s share consumer %s: each takes the partitions from the other, and handles some events only", terminal.Clean(strings.Join(groups[names[0]], ", ")), terminal.Clean(names[0]))
}

// topicSeen is what Kafka says of a topic.
type topicSeen struct {
	name             string
	err              error // of its metadata
	replicas         int   // of its partition with the fewest
	minInsync        int   // 0: not known
	maxMessage       int   // 0: not known
	largest          int   // payload that may be written here
	configsForbidden bool
}

// overhead is what a record has beside its payload, at most: headers and names (SchemaConfig.MaxPayload says so).
const overhead = 16 << 10

func judgeTopic(t topicSeen) (found []Finding) {
	check, name := "topic "+terminal.Clean(t.name), terminal.Clean(t.name)
	switch {
	case errors.Is(t.err, kafka.UnknownTopicOrPartition):
		return []Finding{fail(check, "kafka-topics.sh --create --topic "+name+" --partitions 8 --replication-factor 3", "the topic is missing, or this user may neither see nor create it")}
	case errors.Is(t.err, kafka.TopicAuthorizationFailed):
		return []Finding{fail(check, "kafka-acls.sh --add --topic "+name+" --allow-principal User:NAME --operation Read --operation Write --operation Describe", "this user may not use the topic")}
	case t.err != nil:
		return []Finding{fail(check, "kafka-topics.sh --describe --topic "+name, "Kafka says of the topic: %s", terminal.Clean(t.err.Error()))}
	}
	change := func(what string) string {
		return "kafka-configs.sh --alter --entity-type topics --entity-name " + name + " --add-config " + what
	}
	if needs := t.largest + overhead; t.maxMessage > 0 && t.maxMessage < needs {
		found = append(found, fail(check, change(fmt.Sprint("max.message.bytes=", needs)), "max.message.bytes is %d: an event of the largest size that may be written (%d, and %d for headers) becomes a dead letter", t.maxMessage, t.largest, overhead))
	}
	switch {
	case t.replicas == 1:
		found = append(found, warn(check, "kafka-reassign-partitions.sh --execute, with three replicas", "a partition has one replica: its events are lost with its broker"))
	case t.minInsync == 1:
		found = append(found, warn(check, change("min.insync.replicas=2"), "min.insync.replicas is 1: an acknowledged event may be on one broker only"))
	case t.minInsync >= t.replicas:
		found = append(found, warn(check, change(fmt.Sprint("min.insync.replicas=", t.replicas-1)), "min.insync.replicas is %d of %d replicas: one broker that restarts stops all writing", t.minInsync, t.replicas))
	}
	if t.configsForbidden {
		found = append(found, warn(check, "kafka-acls.sh --add --topic "+name+" --allow-principal User:NAME --operation DescribeConfigs", "this user may not read the topic's configuration, so it was not checked"))
	}
	if len(found) == 0 {
		found = append(found, ok(check, "%s, min.insync.replicas %d, max.message.bytes %d", terminal.Count(t.replicas, "replica"), t.minInsync, t.maxMessage))
	}
	return found
}

// judgeNodes says which consumers have no node.
func judgeNodes(all []nodes.Row) (findings []Finding) {
	for _, n := range all {
		if n.Gone() {
			need := state.NoNodeNeed(n, 0)
			findings = append(findings, fail("consumers", need.Command, "%s", need.Says))
		}
	}
	if findings == nil {
		findings = append(findings, ok("consumers", "%s announced, and each has a node that lives", terminal.Count(len(all), "consumer")))
	}
	return findings
}
