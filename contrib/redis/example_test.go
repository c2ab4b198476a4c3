package redisstore_test

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	redisstore "github.com/holdfast-go/holdfast/contrib/redis"
	"github.com/holdfast-go/holdfast/idempotency"
)

func Example() {
	_ = func(ctx context.Context, address string, log *slog.Logger, account func(*http.Request) (string, error), notify http.Handler, mux *http.ServeMux) error {
		// snippet: store
		client := redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})
		store, err := redisstore.New(client, redisstore.Config{})
		if err != nil {
			return err
		}
		if err := store.Check(ctx); err != nil {
			log.Warn("this Redis may forget keys", "error", err)
		}
		guard, err := idempotency.NewEphemeral(store, idempotency.Config{Principal: account})
		if err != nil {
			return err
		}
		mux.Handle("POST /notifications", guard.Route(idempotency.Route{Lease: 10 * time.Second})(notify))
		// end snippet
		return nil
	}
}
