package inbox

import (
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
)

// Option changes what holds for the events of one registration (Handle, HandleBatch, On). What an option says of a type goes before
// what Config says of all of them, wherever the event comes from: Consume, Receive, the table `stored`, a replayed dead letter. A value
// that cannot be is an error that wraps ErrConfiguration, with type, field, value and rule, of the first Receive, Store, Run or
// Consume. It says the problems of all registrations at once.
//
// All nodes of a consumer should register a type with the same options. The node that has the event decides.
type Option func(*registration)

// WithRetry says how often an event of the type that fails is tried, and how far apart: see Config.Retry. Fields that are zero are
// those of Config.Retry. Config.ImmediateRetries stays what it is.
func WithRetry(p retry.Policy) Option { return func(r *registration) { r.retry = p } }

// WithTimeout is how long a handler of the type may run: see Config.Timeout. It is also how long its transaction waits for a lock. 0
// is Config.Timeout. The longest time of all types is part of the lease on stored events: after a crash of a node they wait that much
// longer. A connection that swallows what is sent on it is given up within twice the longest time, also for events of other types. So
// what Config.Timeout says of nodes that differ holds for the longest time of each.
func WithTimeout(d time.Duration) Option { return func(r *registration) { r.timeout = d } }

// WithHoldKey says whether the later events of a key wait when an event of this type has become a dead letter: see Config.HoldKey. The
// type of the dead letter decides, not that of the events that wait: a letter of a type that holds holds all later events of its
// topic and key, and one of a type that does not hold none. A letter keeps what was said when it was written, also if it is replayed
// and given up again.
func WithHoldKey(holds bool) Option { return func(r *registration) { r.holds = &holds } }

// WithConcurrency is how many handlers of the type run at once in this process, for example because they share a service that takes no
// more: those of Consume, of Run and of Receive together. A batch counts once. At most 1,000. 0 and -1 mean none of its
// own: Config.Workers then bounds Consume and Run, and nothing bounds Receive.
//
// An event that has to wait for its turn takes no worker and no connection, so other types go on. It keeps its key, and counts as
// read ahead: when 1,024 events of a partition are in progress, those that wait included, the partition is read no further. Its
// handlers run in transactions of their own, not in groups. Receive and TryReceive wait until their context ends. ReceiveTx does not
// wait, because its caller's transaction may hold what a running handler waits for: without a free turn the event is stored for Run
// (Stored). A handler that was abandoned because it hangs counts no more. A handler must not call Receive for an event of its own
// type: it would wait for itself.
func WithConcurrency(handlers int) Option { return func(r *registration) { r.limit = handlers } }

// maxConcurrency is the most that WithConcurrency takes, which is as many as there can be workers.
const maxConcurrency = 1000

// WithGroup says that the handler may share a transaction with others: while many events wait, one transaction takes in up to n, each
// with its own handler. A backlog is then handled several times as fast, since they share BEGIN, COMMIT and its flush to disk. Without
// it each handler has a transaction of its own. Between 1 and 1,000; 1 is none but its own; 0 is Config.Group. It is for Handle and On,
// and not beside WithConcurrency, whose handlers run alone.
//
// Use it for a handler that only reads and writes its own rows by the transaction that it gets. It gives up this:
//
//   - Settings. What a function sets in SQL for the transaction (a tenant for row security, a role, search_path) holds for the handlers
//     after it.
//   - Temporary tables. One with "on commit drop" is still there, with its rows, for the handlers after it.
//   - What is committed. Another connection, also of the handler itself through the pool, does not see what the events before of its key
//     wrote. If the handler writes to such a row through the pool, it waits for its own transaction until its time is over.
//   - now(), txid_current() and the rest of the snapshot's identity, which are the group's.
//   - NOTIFY. Equal ones of a group are delivered once.
//   - Errors that SQL catches. A handler waits for a lock for 100 ms at most. A function that catches every error goes on without what
//     it then did not write, and the event counts as handled.
//   - Locks. What a handler locks stays locked until those after it are done: 100 ms, and one handler more.
//   - Clean reads. A handler sees what the ones before wrote, and that may be rolled back with it. What it then tells others (a mail, a
//     call) was never true. It runs again, so it tells twice.
//
// What it keeps: its own attempts, and its own outcome. A group that fails, for any reason, is rolled back, and its events run again one by
// one: that spends no attempt, but a handler may run once more than its attempts say. In the table inbox a handler finds as handled
// what it would find alone: the events before it, and not those after it in its group. When a group has taken 100 ms, it commits what is
// done, and the rest waits again. Events of a type run alone for a while after one took longer than 100 ms or failed in a group of two,
// and always if the handler's own statements show that it cannot share: SET, RESET, set_config, several statements in one text, or
// tx.Conn(). That is a net for mistakes. It does not see what a function does.
//
// A group has as many events as take some 5 ms together. Types may be mixed in it, if each may share. The smallest n of its types is its
// limit.
func WithGroup(n int) Option { return func(r *registration) { r.group = n } }

// maxGroup is the most that WithGroup and Config.Group take.
const maxGroup = 1000

// registration is what the options of one registration say. Zero fields leave Config's.
type registration struct {
	retry   retry.Policy
	timeout time.Duration
	holds   *bool
	limit   int
	needs   []string
	group   int
	batch   bool // HandleBatch or OnBatch

	typed   reflect.Type // what On and OnBatch decode; nil for Handle and HandleBatch
	types   []string     // the type of On or OnBatch, and those of its older versions
	codec   holdfast.Codec
	upcasts []upcast
}

// registrationOf applies the options.
func registrationOf(options []Option) (r registration) {
	for _, o := range options {
		if o != nil {
			o(&r)
		}
	}
	return r
}

// applied is the configuration of an inbox with what the registration says.
func (r registration) applied(c Config) Config {
	c.Retry = r.retry.Or(c.Retry)
	c.Timeout = or(r.timeout, c.Timeout)
	c.Group = or(r.group, c.Group)
	if r.holds != nil {
		c.HoldKey = *r.holds
	}
	return c
}

// problems is what is wrong with a registration that makes c of the inbox's configuration. It is pure.
func (r registration) problems(c Config) (problems []error) {
	if err := r.retry.Validate("retry"); err != nil {
		problems = append(problems, err)
	}
	if r.timeout != 0 {
		problems = append(problems, c.timeoutProblems()...)
	}
	if r.limit < -1 || r.limit > maxConcurrency {
		problems = append(problems, fmt.Errorf("concurrency is %d: it must be between 1 and %d, or 0 or -1 for no limit", r.limit, maxConcurrency))
	}
	switch {
	case r.group < 0 || r.group > maxGroup:
		problems = append(problems, fmt.Errorf("group is %d: it must be between 1 and %d, or 0 for that of Config", r.group, maxGroup))
	case r.group != 0 && r.batch:
		problems = append(problems, fmt.Errorf("group is %d: it must be 0 for HandleBatch and OnBatch: Config.BatchSize says how many events they take in one transaction", r.group))
	case r.group > 1 && r.limit > 0:
		problems = append(problems, fmt.Errorf("group is %d and concurrency is %d: it must be one of them: handlers with a concurrency have transactions of their own", r.group, r.limit))
	}
	for _, name := range r.needs {
		if err := checkNeed(name); err != nil {
			problems = append(problems, err)
		}
	}
	switch {
	case r.typed != nil:
		problems = append(problems, upcastProblems(r.upcasts, r.typed)...)
	case r.codec != nil || len(r.upcasts) > 0:
		problems = append(problems, errors.New("WithCodec and WithUpcast are for On and OnBatch: Handle and HandleBatch get payloads as they come"))
	}
	return problems
}
