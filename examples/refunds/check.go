package main

import (
	"context"
	"errors"

	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/holdfast-go/holdfast/examples/internal/stories"
)

// audit holds what the service cannot know: what the shop asked for, and what the gateway has done.
const audit = `
create table asked (charge text not null, cents bigint not null);
create table statement (id text not null, kind text not null, reference text not null, cents bigint not null);
`

// promises are what the service is for. Each query counts the exceptions; SCHEMA is that of holdfast's tables.
var promises = []stories.Promise{
	{Text: "each refund that was asked for was made once, and has arrived", Exceptions: `
		select count(*) from (
			(select charge, cents from asked except all select charge, cents from refunds where state = 'succeeded')
			union all
			(select charge, cents from refunds where state <> 'declined' except all select charge, cents from asked)
		) difference`},
	{Text: "each is paid out once, and nothing else is", Exceptions: `
		select count(*) from refunds r full join (select * from statement where kind = 'payouts') p on p.reference = r.id and p.cents = r.cents
		 where (r.state is distinct from 'declined') and (r.id is null or p.id is null or 1 <> (select count(*) from statement t where t.kind = 'payouts' and t.reference = r.id))`},
	{Text: "each has one entry in the ledger", Exceptions: `
		select count(*) from refunds r where (r.state = 'succeeded')::int <> (select count(*) from ledger l where l.reference = r.id)`},
	{Text: "the ledger adds up to the gateway's statement of account", Exceptions: `
		select abs((select sum(cents) from ledger) - (select sum(case kind when 'charges' then cents else -cents end) from statement))`},
	{Text: "each change has one event, in the transaction that made it", Exceptions: `
		select count(*) from (
			select id, 'payment.captured' as type from payments
			union all select id, 'payment.voided' from payments where state = 'voided'
			union all select id, 'refund.requested' from refunds where state <> 'declined'
			union all select id, 'refund.' || state from refunds
		) change where 1 <> (select count(*) from SCHEMA.event e where e.key = change.id and e.type = change.type)`},
	{Text: "no request is left half done, and nothing was given up", Exceptions: `
		select (select count(*) from SCHEMA.idempotency where state not in ('complete', 'omitted')) + (select count(*) from SCHEMA.letter)`},
}

func (s *story) check(ctx context.Context) error {
	s.Say("8. What must be true, asked in SQL")
	if err := s.audit(ctx); err != nil {
		return err
	}
	err := s.Check(ctx, s.Pool, promises)
	counted, failed := counters(ctx, s.metrics)
	if failed == nil {
		s.Say("   The service has counted idempotent.created %d, idempotent.replayed %d, idempotent.conflict %d.",
			counted["idempotent.created"], counted["idempotent.replayed"], counted["idempotent.conflict"])
	}
	return errors.Join(err, failed)
}

// audit puts what the shop asked for and what the gateway has done next to the service's tables.
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

// counters reads the service's counters.
func counters(ctx context.Context, reader *sdkmetric.ManualReader) (map[string]int64, error) {
	var all metricdata.ResourceMetrics
	if err := reader.Collect(ctx, &all); err != nil {
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
