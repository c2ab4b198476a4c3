package redisstore_test

import (
	"context"
	"log/slog"

	"github.com/redis/go-redis/v9"

	redisstore "github.com/holdfast-go/holdfast/contrib/redis"
)

func Example() {
	_ = func(ctx context.Context, address string, log *slog.Logger) error {
		// snippet: store
		client := redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true})
		store, err := redisstore.New(client, redisstore.Config{})
		if err != nil {
			return err
		}
		if err := store.Check(ctx); err != nil {
			log.Warn("this Redis may forget keys", "error", err)
		}
		// end snippet
		_ = store
		return nil
	}
}
