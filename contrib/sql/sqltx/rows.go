package sqltx

import (
	"database/sql/driver"
	"fmt"
	"io"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// formats asks for binary values of the types that reader knows, and so for text of all others: whatever a type is, its text is a
// string that a sql.Scanner can read.
var formats = pgx.QueryResultFormatsByOID{
	pgtype.BoolOID: 1, pgtype.ByteaOID: 1, pgtype.Int2OID: 1, pgtype.Int4OID: 1, pgtype.Int8OID: 1, pgtype.Float4OID: 1, pgtype.Float8OID: 1,
	pgtype.OIDOID: 1, pgtype.XIDOID: 1, pgtype.CIDOID: 1, pgtype.DateOID: 1, pgtype.TimestampOID: 1, pgtype.TimestamptzOID: 1,
}

// rows are the rows of a query. They have to be closed before the next statement, as with every driver of Postgres.
type rows struct {
	rows    pgx.Rows
	done    func() // releases the query's context
	readers []reader
	ahead   bool // the first Next of rows has been called, and returned more
	more    bool
}

var _ driver.RowsColumnTypeDatabaseTypeName = (*rows)(nil)

func (r *rows) Columns() []string {
	names := make([]string, len(r.rows.FieldDescriptions()))
	for i, f := range r.rows.FieldDescriptions() {
		names[i] = f.Name
	}
	return names
}

// ColumnTypeDatabaseTypeName is the name of a column's type in upper case, as database/sql wants it, or its OID.
func (r *rows) ColumnTypeDatabaseTypeName(i int) string {
	oid := r.rows.FieldDescriptions()[i].DataTypeOID
	if t, known := r.rows.Conn().TypeMap().TypeForOID(oid); known {
		return upper(t.Name)
	}
	return fmt.Sprint(oid)
}

func upper(name string) string {
	b := []byte(name)
	for i, c := range b {
		if c >= 'a' && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
	}
	return string(b)
}

func (r *rows) Close() error {
	r.rows.Close()
	r.done()
	return r.rows.Err()
}

func (r *rows) Next(dest []driver.Value) error {
	more := r.more
	if !r.ahead {
		more = r.rows.Next()
	}
	r.ahead = false
	if !more {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return io.EOF
	}
	if r.readers == nil {
		m := r.rows.Conn().TypeMap()
		for _, f := range r.rows.FieldDescriptions() {
			r.readers = append(r.readers, readerOf(m, f))
		}
	}
	for i, raw := range r.rows.RawValues() {
		dest[i] = nil
		if raw == nil {
			continue
		}
		var err error
		if dest[i], err = r.readers[i](raw); err != nil {
			return fmt.Errorf("read column %d: %w", i, err)
		}
	}
	return nil
}

// reader makes a value of database/sql of one that is not NULL.
type reader func(raw []byte) (driver.Value, error)

// readerOf chooses the value of a column by its type, as pgx's own driver for database/sql does.
func readerOf(m *pgtype.Map, f pgconn.FieldDescription) reader {
	switch f.DataTypeOID {
	case pgtype.BoolOID:
		return read(m, f, func(v bool) (driver.Value, error) { return v, nil })
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		return read(m, f, func(v int64) (driver.Value, error) { return v, nil })
	case pgtype.Float4OID:
		return read(m, f, func(v float32) (driver.Value, error) { return float64(v), nil })
	case pgtype.Float8OID:
		return read(m, f, func(v float64) (driver.Value, error) { return v, nil })
	case pgtype.OIDOID, pgtype.XIDOID, pgtype.CIDOID:
		return read(m, f, pgtype.Uint32.Value)
	case pgtype.DateOID: // these three may be infinite, which is a string
		return read(m, f, pgtype.Date.Value)
	case pgtype.TimestampOID:
		return read(m, f, pgtype.Timestamp.Value)
	case pgtype.TimestamptzOID:
		return read(m, f, pgtype.Timestamptz.Value)
	case pgtype.ByteaOID:
		return read(m, f, func(v []byte) (driver.Value, error) { return v, nil })
	case pgtype.JSONOID, pgtype.JSONBOID, pgtype.XMLOID:
		if f.Format == pgtype.TextFormatCode {
			return func(raw []byte) (driver.Value, error) { return slices.Clone(raw), nil }
		}
		return read(m, f, func(v []byte) (driver.Value, error) { return v, nil })
	}
	if f.Format == pgtype.TextFormatCode {
		return func(raw []byte) (driver.Value, error) { return string(raw), nil }
	}
	return read(m, f, func(v string) (driver.Value, error) { return v, nil })
}

func read[T any](m *pgtype.Map, f pgconn.FieldDescription, value func(T) (driver.Value, error)) reader {
	plan := m.PlanScan(f.DataTypeOID, f.Format, new(T))
	return func(raw []byte) (driver.Value, error) {
		var v T
		if err := plan.Scan(raw, &v); err != nil {
			return nil, err
		}
		return value(v)
	}
}
