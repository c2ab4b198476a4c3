package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
)

// Inbox takes events in for one consumer. It is safe for use by many goroutines at once, once its handlers are
// registered.
type Inbox struct {
	*env
	registry     *registry
	receiver     *receiver
	declarations *declarations
	claims       *claims
	backlog      *backlog
	sweeper      *sweeper
	retention    *retention
	consumer     *consumer
}

// New checks the configuration, all of it, and makes an Inbox. It does not touch the database.
func New(pool *pgxpool.Pool, c Config) (*Inbox, error) {
	c = c.withDefaults()
	err := c.validate()
	if pool == nil {
		err = errors.Join(errors.New("pool is nil: pass the *pgxpool.Pool of the database that the handlers write to"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox config: %w", err)
	}
	return newInbox(pool, c), nil
}

// newInbox puts the parts together. Each is given those that it uses, and no part knows the Inbox.
func newInbox(pool *pgxpool.Pool, c Config) *Inbox {
	env := newEnv(pool, c)
	registry := newRegistry()
	runner := &runner{env: env}
	ledger := &ledger{env: env, starts: &starts{env: env}, letters: &letters{env: env}}
	queues := &queues{env: env, ledger: ledger, quota: &quota{env: env}}
	declarations := &declarations{env: env, registry: registry}
	receiver := &receiver{env: env, registry: registry, admission: &admission{env: env, runner: runner, ledger: ledger, queues: queues}, runner: runner, ledger: ledger, queues: queues, declarations: declarations}
	claims := &claims{env: env, registry: registry}
	return &Inbox{
		env: env, registry: registry, receiver: receiver, declarations: declarations, claims: claims,
		backlog:   &backlog{env: env, registry: registry, runner: runner, ledger: ledger, claims: claims},
		sweeper:   &sweeper{env: env, runner: runner},
		retention: &retention{env: env},
		consumer:  &consumer{env: env, fences: &fences{env: env, runner: runner}, declarations: declarations, receiver: receiver},
	}
}

// Handle registers the handler of a type. It panics when the type is empty or has a handler, and when the inbox has
// started: what is registered late would already have missed events.
func (in *Inbox) Handle(eventType string, h Handler) {
	if h == nil {
		panic(fmt.Sprintf("inbox: handle %q: the handler is nil", eventType))
	}
	in.registry.register(eventType, func(ctx context.Context, tx pgx.Tx, events []holdfast.Event) error {
		for _, e := range events {
			if err := h(ctx, tx, e); err != nil {
				return err
			}
		}
		return nil
	})
}

// HandleBatch registers the handler of a type that takes up to Config.BatchSize events of a partition in one transaction, as
// many as have come by then. When a batch fails, for any reason, it is rolled back and its events come again one by one,
// so that the others do not suffer for the one that is to blame; the failure of the batch costs no attempt. Events that
// do not come from Kafka, and those tried again, come alone. It panics as Handle does.
func (in *Inbox) HandleBatch(eventType string, h BatchHandler) {
	if h == nil {
		panic(fmt.Sprintf("inbox: handle %q: the handler is nil", eventType))
	}
	in.registry.register(eventType, h)
	in.registry.batched[eventType] = true
}

// Config returns a copy of the inbox's configuration, with its defaults filled in.
func (in *Inbox) Config() Config { return in.c }
