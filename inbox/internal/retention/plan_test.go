package retention

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/plantest"
	"github.com/holdfast-go/holdfast/internal/test/rows"
)

func TestPlan_RetentionWorksInEveryModeOfPgx(t *testing.T) {
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			config := b.db.Config().Copy()
			switch mode {
			case "cache_describe":
				config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
			case "describe_exec":
				config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec
			case "exec":
				config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
			case "simple_protocol":
				config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
			}
			config.ConnConfig.RuntimeParams["timezone"] = "Asia/Kathmandu"
			pool, err := pgxpool.NewWithConfig(b.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			l := b.loop(func(c *Config) { c.Pool = pool })
			pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) values ('billing', 'orders', 0, 100)`)
			rows.Settled(t, b.db, "kafka-", 0, 250)
			rows.Settled(t, b.db, "http-", nil, 250)
			for range 2 {
				b.pass(l, 50)
			}
			if n := b.count("select count(*) from holdfast.inbox"); n != 150 {
				t.Errorf("%d rows are left, want 150", n)
			}
			if err := l.Forget(b.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPlan_RetentionReadsByItsIndexHoweverLittleThePlannerKnows(t *testing.T) {
	for _, state := range []string{"the table is empty", "it was never analyzed", "it was analyzed", "it was analyzed while it was empty"} {
		t.Run(state, func(t *testing.T) {
			b := setup(t)
			l := b.loop()
			pgtest.Exec(t, b.db, "alter table holdfast.inbox set (autovacuum_enabled = off)")
			if strings.HasSuffix(state, "while it was empty") {
				pgtest.Exec(t, b.db, "vacuum analyze")
			}
			if state != "the table is empty" {
				pgtest.Exec(t, b.db, `insert into holdfast.consumer_position (consumer, topic, partition, position) select 'billing', 'orders', p, 100000 from generate_series(0, 63) p`)
				rows.Settled(t, b.db, "http-", nil, 20_000)
				rows.Settled(t, b.db, "kafka-", 0, 20_000)
				pgtest.Exec(t, b.db, `insert into holdfast.inbox_step (consumer, source, event_id, hash, name, key, result, done_at)
					select case when n % 2 = 0 then 'billing' else 'consumer ' || n % 10 end, 'shop', 'http-' || n, '', 'charge', '', '1', now() - n * interval '1 hour' from generate_series(1, 20000) n`)
				pgtest.Exec(t, b.db, `insert into holdfast.start (consumer, source, event_id, last_at)
					select 'consumer ' || n % 10, '', n::text, now() - n * interval '1 hour' from generate_series(1, 5000) n`)
			}
			if state == "it was analyzed" {
				pgtest.Exec(t, b.db, "vacuum analyze")
			}
			for _, cache := range []string{"force_generic_plan", "force_custom_plan"} {
				conn, err := b.db.Acquire(b.Context())
				if err != nil {
					t.Fatal(err)
				}
				plan := func(statement, literals string) string {
					tx, err := conn.BeginTx(b.Context(), pgx.TxOptions{BeginQuery: l.sql.begin})
					if err != nil {
						t.Fatal(err)
					}
					defer func() { _ = tx.Rollback(context.Background()) }()
					for _, sql := range []string{"set local plan_cache_mode = " + cache, "prepare explained as " + statement} {
						if _, err := tx.Exec(b.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
							t.Fatal(err)
						}
					}
					rows, err := tx.Query(b.Context(), "explain execute explained ("+literals+")", pgx.QueryExecModeSimpleProtocol)
					if err != nil {
						t.Fatal(err)
					}
					lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
					if err != nil {
						t.Fatal(err)
					}
					_, err = tx.Exec(b.Context(), "deallocate explained", pgx.QueryExecModeSimpleProtocol)
					if err != nil {
						t.Fatal(err)
					}
					return strings.Join(lines, "\n")
				}
				sweep := plan(l.sql.sweep, "'billing', now() - interval '30 days', 604800000000, 1000, '{stripe}', false")
				starts := plan(l.sql.starts, "'billing', 604800000000")
				steps := plan(l.sql.steps, "'billing', 604800000000, 10000")
				conn.Release()
				for _, want := range []string{"Index Scan using inbox_settled on inbox", "consumer_position_pkey", "letter_event", "Tid Scan on inbox f", "Tid Scan on inbox i", "Tid Scan on inbox_step s"} {
					if !strings.Contains(sweep, want) {
						t.Errorf("%s: the plan has no %q:\n%s", cache, want, sweep)
					}
				}
				if !regexp.MustCompile(`Index Scan using inbox_step_pkey on inbox_step t[^\n]*\n\s+Index Cond: .*\(source = [^\n]*\(event_id = `).MatchString(sweep) {
					t.Errorf("%s: the steps of an event are not found by their key:\n%s", cache, sweep)
				}
				if !strings.Contains(steps, "using inbox_step_done on inbox_step t") || !strings.Contains(steps, "Tid Scan on inbox_step s") || strings.Contains(steps, "Seq Scan") {
					t.Errorf("%s: old steps are not found by inbox_step_done and removed by their places:\n%s", cache, steps)
				}
				for _, bad := range []string{"Seq Scan", "Sort", "Bitmap", "inbox_pkey", "JIT"} {
					if strings.Contains(sweep, bad) {
						t.Errorf("%s: the plan has a %q:\n%s", cache, bad, sweep)
					}
				}
				if !strings.Contains(starts, "Index Scan using start_pkey on start f") || !strings.Contains(starts, "Tid Scan on start s") || strings.Contains(starts, "Seq Scan") {
					t.Errorf("%s: starts are not found by start_pkey and removed by their places:\n%s", cache, starts)
				}
			}
		})
	}
}

func TestPlan_EveryStatementIsAskedForItsPlanOrCountedElsewhere(t *testing.T) {
	t.Parallel()
	const aRow, above = "a row of a consumer, by its key", "TestPlan_RetentionReadsByItsIndexHoweverLittleThePlannerKnows asks for its plan"
	plantest.EveryStatement(t, nil, map[string]string{
		"inbox.retention_row": aRow, "inbox.retention_take": aRow, "inbox.retention_save": aRow, "inbox.retention_sweep": above, "inbox.retention_starts": above, "inbox.retention_steps": above,
	})
}
