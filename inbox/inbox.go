package inbox

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/inbox/internal/position"
	"github.com/holdfast-go/holdfast/inbox/internal/readahead"
	"github.com/holdfast-go/holdfast/inbox/internal/retention"
	"github.com/holdfast-go/holdfast/inbox/internal/turns"
)

// Inbox takes in the events of one consumer. Once its handlers are registered, many goroutines may use it at once.
type Inbox struct {
	*env
	registry     *registry
	receiver     *receiver
	declarations *declarations
	skips        *skips
	claims       *claims
	backlog      *backlog
	sweeper      *sweeper
	retention    *retention.Loop
	consumer     *consumer
	pauses       *pauses

	skipAsked bool // Config.UnknownType is UnknownSkip, and not by default
}

// New checks the whole configuration and makes an Inbox. It does not touch the database.
func New(pool *pgxpool.Pool, c Config) (*Inbox, error) {
	asked := c.UnknownType == UnknownSkip
	c = c.withDefaults()
	err := c.validate()
	if pool == nil {
		err = errors.Join(errors.New("pool is nil: it must be connected to the database that the handlers write to"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox config: %w", err)
	}
	in := newInbox(pool, c)
	in.skipAsked = asked
	return in, nil
}

// newInbox puts the parts together. Each part gets the parts that it uses. No part knows the Inbox.
func newInbox(pool *pgxpool.Pool, c Config) *Inbox {
	env := newEnv(pool, c)
	registry := newRegistry(&env.settings, env.decrypting)
	runner := &runner{env: env}
	dependencies := newDependencies(env, runner)
	runner.dependencies = dependencies
	pauses := newPauses(env)
	pauses.dependencies = dependencies
	positions := position.New(position.Config{
		Pool:     pool,
		Schema:   c.Schema,
		Consumer: c.Consumer,
		Node:     env.node,
		Random:   func() float64 { return env.random() },
		Transact: runner.transact,
	})
	ledger := &ledger{
		env:       env,
		positions: positions,
		starts:    &starts{env: env},
		letters:   &letters{env: env},
		pauses:    pauses,
	}
	quota := &quota{env: env, admits: dependencies.admits}
	queues := &queues{env: env, ledger: ledger, quota: quota}
	declarations := &declarations{env: env, registry: registry}
	skips := &skips{env: env, registry: registry}
	receiver := &receiver{
		env:          env,
		registry:     registry,
		admission:    &admission{env: env, runner: runner, ledger: ledger, queues: queues},
		runner:       runner,
		ledger:       ledger,
		queues:       queues,
		declarations: declarations,
		skips:        skips,
		pauses:       pauses,
		dependencies: dependencies,
	}
	suspects := turns.New(1)
	claims := &claims{
		env:      env,
		registry: registry,
		memory:   newStoredMemory(c.MemoryBudget/8, c.Workers),
		suspects: suspects,

		dependencies: dependencies,
	}
	dependencies.opened = claims.passed
	return &Inbox{
		env:          env,
		registry:     registry,
		receiver:     receiver,
		declarations: declarations,
		skips:        skips,
		claims:       claims,
		backlog: &backlog{
			env:      env,
			registry: registry,
			runner:   runner,
			ledger:   ledger,
			claims:   claims,
			pauses:   pauses,

			dependencies: dependencies,
		},
		sweeper: &sweeper{env: env, runner: runner},
		retention: retention.New(retention.Config{
			Pool:     pool,
			Schema:   c.Schema,
			Consumer: c.Consumer,
			Window:   c.Retention,
			Own:      c.SourceRetention,
			Random:   func() float64 { return env.random() },
			Cleaned:  c.Observer.OnCleaned,
			Failed:   env.transient,
		}),
		consumer: &consumer{
			env:          env,
			positions:    positions,
			memory:       readahead.NewMemory(c.MemoryBudget),
			declarations: declarations,
			receiver:     receiver,
			pauses:       pauses,
			suspects:     suspects,
		},
		pauses: pauses,
	}
}

// Handle registers the handler of a type. Each event has a transaction of its own, unless WithGroup says that it may share one. Handle
// panics when the type is empty or has a handler already, or when the inbox has started: a handler that comes late would have missed
// events. The options hold for the events of this type: see Option.
func (in *Inbox) Handle(eventType string, h Handler, o ...Option) {
	if h == nil {
		panic(fmt.Sprintf("inbox: handle %q: the handler is nil", eventType))
	}
	in.registry.register([]string{eventType}, registrationOf(o), handler{one: h})
}

// HandleBatch registers a handler that takes up to Config.BatchSize events of a partition in one transaction: as many as have
// arrived. A batch that fails, for any reason, is rolled back, and its events come again one by one. So no event suffers for
// another, and the batch's failure spends no attempt. In the table inbox all events of a batch are handled before the handler is
// called. Events that do not come from Consume, and those that are retried, come alone. HandleBatch panics as Handle does.
func (in *Inbox) HandleBatch(eventType string, h BatchHandler, o ...Option) {
	if h == nil {
		panic(fmt.Sprintf("inbox: handle %q: the handler is nil", eventType))
	}
	in.registry.register([]string{eventType}, registrationOf(o), handler{batch: h})
}

// Use puts middleware around all handlers of Handle and On, whether these were registered before or after it. The first is outermost:
// Use(a, b) calls a, which calls b, which calls the handler. It runs in the handler's transaction and time, and its error, panic or
// hanging counts as the handler's. Payloads are decrypted before it, and decoded (On) after it.
//
// An event counts as handled if the middleware returns nil and the handler did. So nothing is lost by a mistake:
//
//   - A middleware that returns nil although the handler failed, or was not called, is a failure, which is retried like others.
//     Return ErrSettle to settle the event on purpose.
//   - A second call of next after the handler has returned nil is an error and runs nothing. After a failure it runs again: use a
//     savepoint then, since a failed statement leaves the transaction unusable.
//   - A call of next with an event of another ID or Source, with a context that was not made from the given one, at the same
//     time as another, or after the middleware has returned is an error and runs nothing.
//
// What next gets may have another payload or other headers than what came. Use panics when the inbox has started.
func (in *Inbox) Use(m ...func(next Handler) Handler) {
	in.registry.use(func() { in.registry.around = append(in.registry.around, m...) })
}

// UseBatch is Use for the handlers of HandleBatch and OnBatch. next may be called several times with parts of a batch. If the
// middleware returns nil, each event must have been in a call that succeeded.
func (in *Inbox) UseBatch(m ...func(next BatchHandler) BatchHandler) {
	in.registry.use(func() { in.registry.aroundBatch = append(in.registry.aroundBatch, m...) })
}

// Config returns a copy of the inbox's configuration with its defaults.
func (in *Inbox) Config() Config { return in.c }
