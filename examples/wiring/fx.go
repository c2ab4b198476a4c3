package wiring

import (
	"context"
	"sync"

	"go.uber.org/fx"

	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/relay"
)

// snippet: fx
// Run starts a part with the application, and stops it with it. If the part fails, the application stops with exit code 1. The error is
// that of the stop. Fx stops in the reverse order: a relay that is started first stops last, and still publishes what others write.
func Run(lc fx.Lifecycle, app *Application, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background()) // that of OnStart ends with the start
	ended := make(chan error, 1)
	lc.Append(fx.Hook{
		OnStart: func(context.Context) error {
			go func() {
				err := run(ctx)
				ended <- err
				if err != nil {
					app.Fail()
				}
			}()
			return nil
		},
		OnStop: func(stopping context.Context) error {
			cancel()
			select {
			case err := <-ended:
				return err
			case <-stopping.Done(): // fx.StopTimeout
				return stopping.Err()
			}
		},
	})
}

// Application stops the application once: Fx does not take two calls of Shutdown at the same time.
type Application struct {
	once sync.Once
	fx   fx.Shutdowner
}

// NewApplication is for fx.Provide.
func NewApplication(s fx.Shutdowner) *Application { return &Application{fx: s} }

// Fail stops the application with exit code 1.
func (a *Application) Fail() {
	a.once.Do(func() { _ = a.fx.Shutdown(fx.ExitCode(1)) }) // it fails only if the application is stopping
}

// end snippet

// Module runs a relay, a consumer and a guard. The application provides the pool, a relay.Publisher, an inbox.Source, the consumer and
// the configurations.
var Module = fx.Module("holdfast",
	fx.Provide(NewApplication, relay.New, idempotency.New),
	fx.Invoke(
		func(lc fx.Lifecycle, app *Application, r *relay.Relay) { Run(lc, app, r.Run) },
		func(lc fx.Lifecycle, app *Application, guard *idempotency.Guard) { Run(lc, app, guard.Run) },
		func(lc fx.Lifecycle, app *Application, in *inbox.Inbox, source inbox.Source) {
			Run(lc, app, func(ctx context.Context) error { return in.Consume(ctx, source) })
		},
	),
)
