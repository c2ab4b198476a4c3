package tenant

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/dlq"
)

// EraseOptions say how Erase works.
type EraseOptions struct {
	// DryRun counts what would be erased, and changes nothing. Defaults to false.
	DryRun bool

	// Inbox also deletes the rows by which consumers recognise repeats, of settled events whose id or source says that they are the
	// tenant's. A repeat that comes later is handled again. Defaults to false: they go after inbox.Config.Retention.
	Inbox bool

	// By is who does it. Required without DryRun.
	By string

	// Reason says why. Required without DryRun. It is kept with the tenant's name.
	Reason string

	// ProgressFunc is called inline after each transaction, with the table and the rows erased there so far. Defaults to none.
	ProgressFunc func(place string, erased int64)
}

// Erase erases everything that this database has of a tenant, and reports what remains and why. Stop the tenant's writers first.
//
// Events in the log, parked and stored become tombstones: what is not published yet is published without its payload and headers, so
// that every key keeps its order. All else is deleted. Open dead letters are discarded before. A pause of a tenant's key ends. What steps (inbox.Step) returned is
// deleted, also of events that wait: a handler that calls for the tombstone calls again, with the same key. Each part is one short
// transaction, so it may run while relays and consumers do, and you may cancel it: the same call continues with the rest. By, Reason
// and the tenant's name are kept in letter_action, signed by the database, under letter 0: it has all erasures.
//
// Many processes may run it at once.
func (t *Tenants) Erase(ctx context.Context, name string, o EraseOptions) (Report, error) {
	report := Report{Tenant: name, DryRun: o.DryRun, Beyond: beyond}
	problems := []error{t.checkName(name)}
	if !o.DryRun && o.By == "" {
		problems = append(problems, errors.New("by is empty: it must say who does it"))
	}
	if !o.DryRun && o.Reason == "" {
		problems = append(problems, errors.New("reason is empty: it must say why"))
	}
	if err := errors.Join(problems...); err != nil {
		return report, fmt.Errorf("erase tenant: %w", err)
	}
	needs := eraseRights
	if o.DryRun {
		needs = exportRights
	}
	if err := t.mayWork(ctx, needs); err != nil {
		return report, fmt.Errorf("erase tenant %s: %w", name, err)
	}
	if err := t.erase(ctx, &report, o); err != nil {
		return report, fmt.Errorf("erase tenant %s: %w", name, err)
	}
	return report, nil
}

// passes is how often Erase goes through a table: a row that is changed meanwhile moves, maybe to where it has been already.
const passes = 3

func (t *Tenants) erase(ctx context.Context, report *Report, o EraseOptions) error {
	for _, p := range places {
		found, unattributed, err := t.counts(ctx, p, report.Tenant)
		if err != nil {
			return err
		}
		report.Places = append(report.Places, Place{
			Name:         p.name,
			Found:        found,
			Remains:      found,
			Unattributed: unattributed,
		})
	}
	if o.DryRun {
		t.why(report, o)
		return nil
	}
	if _, err := t.pool.Exec(ctx, t.sql.In(signErasure), o.By, "tenant "+report.Tenant+" erased: "+o.Reason); err != nil {
		return fmt.Errorf("record the action: %w", explain(err))
	}
	if err := t.discard(ctx, report.Tenant, o); err != nil {
		return err
	}
	for i, p := range places {
		if p.erase == "" || p.name == "inbox" && !o.Inbox {
			continue
		}
		for pass := 0; pass < passes; pass++ {
			if err := t.erasePlace(ctx, p, report.Tenant, &report.Places[i], o); err != nil {
				return err
			}
			left, _, err := t.counts(ctx, p, report.Tenant)
			if err != nil {
				return err
			}
			if report.Places[i].Remains = left; left == 0 {
				break
			}
		}
	}
	for i, p := range places {
		if p.erase != "" {
			continue
		}
		left, _, err := t.counts(ctx, p, report.Tenant)
		if err != nil {
			return err
		}
		report.Places[i].Remains = left
		report.Places[i].Erased = max(0, report.Places[i].Found-left)
	}
	t.why(report, o)
	return nil
}

// why says what keeps what remains; in a dry run, what would be kept for certain.
func (t *Tenants) why(report *Report, o EraseOptions) {
	for i, p := range places {
		at := &report.Places[i]
		if o.DryRun && (p.name != "inbox" || o.Inbox) && p.name != "start" {
			at.Remains = 0
		}
		if at.Remains > 0 {
			at.Why = p.why
		}
		if at.Remains > 0 && p.name == "inbox" && o.Inbox {
			at.Why = "their events are stored or dead letters, or a transaction has them locked: repeat the erasure when those are settled"
		}
	}
}

// discard discards the tenant's open dead letters, so that none holds its key, or is replayed, while it is erased.
func (t *Tenants) discard(ctx context.Context, name string, o EraseOptions) error {
	return t.walk(ctx, "letter", name, func(args []any) error {
		rows, err := t.pool.Query(ctx, t.sql.In(openLetters), args...)
		if err != nil {
			return fmt.Errorf("read open dead letters: %w", explain(err))
		}
		open, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return fmt.Errorf("read open dead letters: %w", explain(err))
		}
		for _, id := range open {
			err := t.letters.Discard(ctx, id, o.By, o.Reason)
			if err != nil && !errors.Is(err, dlq.ErrNotOpen) && !errors.Is(err, dlq.ErrNotFound) {
				return err
			}
		}
		return nil
	})
}

// erasePlace goes through a table once.
func (t *Tenants) erasePlace(ctx context.Context, p place, name string, at *Place, o EraseOptions) error {
	err := t.walk(ctx, p.name, name, func(args []any) error {
		var erased int64
		err := t.transact(ctx, func(tx pgx.Tx) error {
			if p.counts {
				return tx.QueryRow(ctx, t.sql.In(p.erase), args...).Scan(&erased)
			}
			tag, err := tx.Exec(ctx, t.sql.In(p.erase), args...)
			erased = tag.RowsAffected()
			return err
		})
		if err != nil {
			return err
		}
		if at.Erased += erased; o.ProgressFunc != nil {
			o.ProgressFunc(p.name, at.Erased)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("erase from %s: %w", p.name, explain(err))
	}
	return nil
}
