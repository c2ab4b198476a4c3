package relay

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// script is a database that answers each statement with what a test wrote down for its name, in order, and notes what it was
// asked. A statement without a reply gets no rows.
type script struct {
	answers map[string][]reply
	asked   []string // "page 3 5:5: nil 0": the name and the arguments
}

type reply struct {
	rows   [][]any
	raw    [][][]byte // in the binary format, in place of rows
	err    error      // of the call
	broken error      // after the rows
}

// because makes a script in which the statement name gets these answers.
func (s *script) because(name string, replies ...reply) *script {
	if s.answers == nil {
		s.answers = map[string][]reply{}
	}
	s.answers[name] = append(s.answers[name], replies...)
	return s
}

func (s *script) Query(_ context.Context, sql string, args ...any) (pgx.Rows, error) {
	name, _, _ := strings.Cut(strings.TrimPrefix(sql, "-- relay."), "\n")
	said := name
	for _, arg := range args {
		if v := reflect.ValueOf(arg); v.Kind() == reflect.Pointer && !v.IsNil() {
			arg = v.Elem().Interface()
		}
		if list, ok := arg.([]*string); ok {
			texts := make([]any, len(list))
			for i, text := range list {
				if text != nil {
					texts[i] = *text
				}
			}
			arg = texts
		}
		said += fmt.Sprint(" ", arg)
	}
	s.asked = append(s.asked, said)
	var a reply
	if left := s.answers[name]; len(left) > 0 {
		a, s.answers[name] = left[0], left[1:]
	}
	if a.err != nil {
		return &scripted{reply: reply{broken: a.err}}, a.err
	}
	return &scripted{reply: a}, nil
}

func (s *script) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, _ := s.Query(ctx, sql, args...)
	rows.Next()
	return rows
}

func (s *script) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	_, err := s.Query(ctx, sql, args...)
	return pgconn.CommandTag{}, err
}

func (s *script) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	return &scriptedTx{script: s}, nil
}

// scriptedTx is a transaction of batches.
type scriptedTx struct {
	pgx.Tx // what it does not have panics
	script *script
}

func (t *scriptedTx) Commit(context.Context) error {
	t.script.asked = append(t.script.asked, "commit")
	return nil
}
func (t *scriptedTx) Rollback(context.Context) error { return nil }
func (t *scriptedTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	r := &scriptedBatch{}
	for _, q := range b.QueuedQueries {
		rows, _ := t.script.Query(ctx, q.SQL, q.Arguments...)
		r.rows, r.queries = append(r.rows, rows), append(r.queries, q)
	}
	return r
}

type scriptedBatch struct {
	pgx.BatchResults
	rows    []pgx.Rows
	queries []*pgx.QueuedQuery
}

func (b *scriptedBatch) Query() (pgx.Rows, error) {
	rows := b.rows[0]
	b.rows, b.queries = b.rows[1:], b.queries[1:]
	return rows, rows.Err()
}

func (b *scriptedBatch) QueryRow() pgx.Row {
	rows, _ := b.Query()
	rows.Next()
	return rows
}

// Close reads what is left, as pgx does.
func (b *scriptedBatch) Close() error {
	for len(b.rows) > 0 {
		read := b.queries[0].Fn
		if read == nil {
			read = func(br pgx.BatchResults) error { _, err := br.Query(); return err }
		}
		if err := read(b); err != nil {
			return err
		}
	}
	return nil
}

// scripted are the rows of a reply.
type scripted struct {
	reply
	at int
}

func (s *scripted) Close()                        { s.at = len(s.rows) + len(s.raw) + 1 }
func (s *scripted) Err() error                    { return s.broken }
func (s *scripted) CommandTag() pgconn.CommandTag { return pgconn.CommandTag{} }
func (s *scripted) Values() ([]any, error)        { return s.rows[s.at-1], nil }
func (s *scripted) RawValues() [][]byte           { return s.raw[s.at-1] }
func (s *scripted) Conn() *pgx.Conn               { return nil }
func (s *scripted) TypeMap() *pgtype.Map          { return nil }
func (s *scripted) Next() bool                    { s.at++; return s.at <= len(s.rows)+len(s.raw) }
func (s *scripted) FieldDescriptions() []pgconn.FieldDescription {
	if s.raw != nil {
		return []pgconn.FieldDescription{{Format: pgx.BinaryFormatCode}}
	}
	return []pgconn.FieldDescription{{Format: pgx.TextFormatCode}}
}

func (s *scripted) Scan(to ...any) error {
	if s.at > len(s.rows) {
		return cmp.Or(s.broken, pgx.ErrNoRows)
	}
	from := s.rows[s.at-1]
	if len(from) != len(to) {
		return fmt.Errorf("%d columns into %d places", len(from), len(to))
	}
	for i := range to {
		place := reflect.ValueOf(to[i]).Elem()
		value := reflect.ValueOf(from[i])
		switch {
		case from[i] == nil:
			place.SetZero()
		case place.Kind() == reflect.Pointer:
			place.Set(reflect.New(place.Type().Elem()))
			place.Elem().Set(value.Convert(place.Type().Elem()))
		case !value.CanConvert(place.Type()) || value.Kind() == reflect.Int64 && place.Kind() == reflect.String:
			return fmt.Errorf("column %d: %T does not go into %T", i, from[i], to[i])
		default:
			place.Set(value.Convert(place.Type()))
		}
	}
	return nil
}
