package tenant

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Record is one row of a tenant.
type Record struct {
	Place string          // the table
	Row   json.RawMessage // its columns, without Body
	Body  []byte          // the payload of an event, the body of a request or of an answer, as it is stored: encrypted, if it was; nil for none
}

// MarshalJSON writes {"place", "row", "body"}. A body that is no UTF-8 is "body_base64" in its place.
func (r Record) MarshalJSON() ([]byte, error) {
	line := struct {
		Place  string          `json:"place"`
		Row    json.RawMessage `json:"row"`
		Body   *string         `json:"body,omitempty"`
		Base64 []byte          `json:"body_base64,omitempty"`
	}{Place: r.Place, Row: r.Row}
	switch {
	case r.Body == nil:
	case utf8.Valid(r.Body):
		text := string(r.Body)
		line.Body = &text
	default:
		line.Base64 = r.Body
	}
	return json.Marshal(line)
}

// Export calls each for everything that this database has of a tenant, a row at a time, and returns how many rows of each table there
// were. It stops at the first error of each, and returns it. It changes nothing.
//
// It reads one part of a table after the other, and each as it is then: it is no snapshot of the whole. While events are on their way,
// one may be in two places, or in none that is still to be read: stop the tenant's writers first, or export twice.
func (t *Tenants) Export(ctx context.Context, name string, each func(Record) error) (Report, error) {
	report := Report{Tenant: name, Beyond: beyond}
	if err := t.checkName(name); err != nil {
		return report, fmt.Errorf("export tenant: %w", err)
	}
	if each == nil {
		return report, errors.New("export tenant: each is nil: it must take the records")
	}
	if err := t.mayWork(ctx, exportRights); err != nil {
		return report, fmt.Errorf("export tenant %s: %w", name, err)
	}
	for _, p := range places {
		found := Place{Name: p.name}
		if _, unattributed, err := t.counts(ctx, p, name); err != nil {
			return report, fmt.Errorf("export tenant %s: %w", name, err)
		} else {
			found.Unattributed = unattributed
		}
		err := t.walk(ctx, p.name, name, func(args []any) error {
			return t.exportPart(ctx, p, args, func(r Record) error {
				found.Found++
				return each(r)
			})
		})
		report.Places = append(report.Places, found)
		if err != nil {
			return report, fmt.Errorf("export tenant %s from %s: %w", name, p.name, err)
		}
	}
	return report, nil
}

func (t *Tenants) exportPart(ctx context.Context, p place, args []any, each func(Record) error) error {
	rows, err := t.pool.Query(ctx, t.sql.In(p.read), args...)
	if err != nil {
		return explain(err)
	}
	defer rows.Close()
	for rows.Next() {
		var row string
		r := Record{Place: p.name}
		if err := rows.Scan(&row, &r.Body); err != nil {
			return fmt.Errorf("read a row: %w", err)
		}
		r.Row = json.RawMessage(row)
		if err := each(r); err != nil {
			return err
		}
	}
	return explain(rows.Err())
}

// counts counts what a table has of a tenant that an erasure would take, and what it has of nobody.
func (t *Tenants) counts(ctx context.Context, p place, name string) (found, unattributed int64, err error) {
	err = t.walk(ctx, p.name, name, func(args []any) error {
		var here, nobodys int64
		if err := t.pool.QueryRow(ctx, t.sql.In(p.count), args...).Scan(&here, &nobodys); err != nil {
			return fmt.Errorf("count %s: %w", p.name, explain(err))
		}
		found, unattributed = found+here, unattributed+nobodys
		return nil
	})
	return found, unattributed, err
}
