package main

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// audit holds what the service cannot know: what the shop asked for, and what the gateway has done.
const audit = `
create table asked (charge text not null, cents bigint not null);
create table statement (id text not null, kind text not null, reference text not null, cents bigint not null);
`

// promises are what the service is for. Each query counts the exceptions; SCHEMA is that of holdfast's tables.
var promises = []struct{ text, exceptions string }{
	{"each refund that was asked for was made once, and has arrived", `
		select count(*) from (
			(select charge, cents from asked except all select charge, cents from refunds where state = 'succeeded')
			union all
			(select charge, cents from refunds where state <> 'declined' except all select charge, cents from asked)
		) difference`},
	{"each is paid out once, and nothing else is", `
		select count(*) from refunds r full join (select * from statement where kind = 'payouts') p on p.reference = r.id and p.cents = r.cents
		 where (r.state is distinct from 'declined') and (r.id is null or p.id is null or 1 <> (select count(*) from statement t where t.kind = 'payouts' and t.reference = r.id))`},
	{"each has one entry in the ledger", `
		select count(*) from refunds r where (r.state = 'succeeded')::int <> (select count(*) from ledger l where l.reference = r.id)`},
	{"the ledger adds up to the gateway's statement of account", `
		select abs((select sum(cents) from ledger) - (select sum(case kind when 'charges' then cents else -cents end) from statement))`},
	{"each change is told of once, in the transaction that made it", `
		select count(*) from (
			select id, 'payment.captured' as type from payments
			union all select id, 'payment.voided' from payments where state = 'voided'
			union all select id, 'refund.requested' from refunds where state <> 'declined'
			union all select id, 'refund.' || state from refunds
		) change where 1 <> (select count(*) from SCHEMA.event e where e.key = change.id and e.type = change.type)`},
	{"no request is left half done, and nothing was given up", `
		select (select count(*) from SCHEMA.idempotency where state not in ('complete', 'omitted')) + (select count(*) from SCHEMA.letter)`},
}

func (s *story) check(ctx context.Context) error {
	s.say("8. What must be true, asked in SQL")
	if err := s.audit(ctx); err != nil {
		return err
	}
	err := s.verdicts(ctx, s.Pool)
	counted, failed := s.counted(ctx)
	if failed == nil {
		s.say("   The service has counted idempotent.created %d, idempotent.replays %d, idempotent.conflicts %d.",
			counted["idempotent.created"], counted["idempotent.replays"], counted["idempotent.conflicts"])
	}
	return errors.Join(err, failed)
}

// database is one that can be asked.
type database interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// verdicts says of each promise whether it held.
func (s *story) verdicts(ctx context.Context, db database) error {
	var failed []error
	for _, p := range promises {
		query := strings.ReplaceAll(p.exceptions, "SCHEMA", pgx.Identifier{s.Schema}.Sanitize())
		var exceptions int
		if err := db.QueryRow(ctx, query).Scan(&exceptions); err != nil {
			return err
		}
		if exceptions == 0 {
			s.say("    ok      %s", p.text)
			continue
		}
		s.say("    BROKEN  %s: %d exceptions", p.text, exceptions)
		failed = append(failed, broken("%s: %d exceptions", p.text, exceptions))
	}
	return errors.Join(failed...)
}

// audit puts what the shop asked for and what the gateway has done beside the service's tables.
func (s *story) audit(ctx context.Context) error {
	if _, err := s.Pool.Exec(ctx, audit); err != nil {
		return err
	}
	for _, f := range s.asked {
		if _, err := s.Pool.Exec(ctx, "insert into asked values ($1, $2)", f.Charge, f.Cents); err != nil {
			return err
		}
	}
	for _, m := range s.gateway.statement() {
		if _, err := s.Pool.Exec(ctx, "insert into statement values ($1, $2, $3, $4)", m.ID, m.Kind, m.Reference, m.Cents); err != nil {
			return err
		}
	}
	return nil
}

// counted reads the service's counters.
func (s *story) counted(ctx context.Context) (map[string]int64, error) {
	var all metricdata.ResourceMetrics
	if err := s.metrics.Collect(ctx, &all); err != nil {
		return nil, err
	}
	counts := map[string]int64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
				for _, point := range sum.DataPoints {
					counts[m.Name] += point.Value
				}
			}
		}
	}
	return counts, nil
}
