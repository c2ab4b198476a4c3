package endtoend

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestRetention_RetentionWorksThroughATransactionPooler(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	through := pgtest.Bouncer(t, db)
	for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol, pgx.QueryExecModeCacheDescribe} {
		t.Run(mode.String(), func(t *testing.T) {
			pgtest.Exec(t, db.Pool, `insert into holdfast.inbox (consumer, source, event_id, topic, hash, processed_at, result)
				select $1, '', n::text, 'orders', '', now() - interval '1 hour' * n, 'handled' from generate_series(0, 1099) n`, mode.String())
			config, err := pgxpool.ParseConfig(through)
			if err != nil {
				t.Fatal("the pooler's address cannot be parsed")
			}
			config.ConnConfig.DefaultQueryExecMode = mode
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute) // A slow turn is followed by a long pause.
			defer stop()
			removed := 0
			in, err := inbox.New(pool, inbox.Config{
				Consumer: mode.String(), Retention: 10*time.Hour + 30*time.Minute, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
				Observer: inbox.Observer{
					OnError: func(err error) { t.Errorf("trouble: %v", err) },
					OnCleaned: func(rows int, _ time.Duration) {
						if removed += rows; removed >= 1089 {
							stop()
						}
					},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if err := in.Run(ctx); err != nil {
				t.Fatal(err)
			}
			if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.inbox where consumer = $1", mode.String()); n != 11 || removed != 1089 {
				t.Errorf("%d rows are left and %d were removed, want 11 and 1089", n, removed)
			}
		})
	}
}
