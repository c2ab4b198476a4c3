package sqloutbox

import (
	"context"
	"database/sql"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/outbox"
)

// asked keeps the statements that it is asked to run.
type asked struct {
	statements []string
	args       [][]any
}

func (a *asked) ExecContext(_ context.Context, statement string, args ...any) (sql.Result, error) {
	a.statements, a.args = append(a.statements, statement), append(a.args, args)
	return nil, nil
}

// begun is asked, in a transaction.
type begun struct{ *asked }

func (begun) Commit() error   { panic("Write commits") }
func (begun) Rollback() error { panic("Write rolls back") }

func TestSQLOutbox_EveryArgumentIsTextBytesOrNull(t *testing.T) {
	t.Parallel()
	var a asked
	e := holdfast.Event{ID: "1", Source: "s", Topic: "o", Type: "t", Key: `k"\`, Payload: []byte{0, 255}, Headers: map[string]string{"h": "v"},
		Time: time.Date(2026, 1, 2, 3, 4, 5, 6_999, time.FixedZone("", 3600))}
	bare := holdfast.Event{ID: "2", Topic: "o", Type: "t"}
	scheduled := holdfast.Event{ID: "3", Topic: "o", Type: "t", Payload: []byte{}, NotBefore: e.Time}
	tx := begun{&a}
	for _, events := range [][]holdfast.Event{{e}, {bare}, {e, bare}, {scheduled}} {
		if err := Write(t.Context(), tx, events...); err != nil {
			t.Fatal(err)
		}
	}
	if err := Lock(t.Context(), tx, "a", `"`); err != nil {
		t.Fatal(err)
	}
	want := [][]any{
		{"1", "s", "t", "o", `k"\`, "2026-01-02T02:04:05.000006Z", `{"h":"v"}`, []byte{0, 255}},
		{"2", "", "t", "o", "", nil, nil, nil},
		{`{"1","2"}`, `{"s",""}`, `{"t","t"}`, `{"o","o"}`, `{"k\"\\",""}`, `{"2026-01-02T02:04:05.000006Z",null}`, `{"{\"h\":\"v\"}",null}`, `{"\\x00ff",null}`, nil},
		{`{"3"}`, `{""}`, `{"t"}`, `{"o"}`, `{""}`, nil, nil, `{"\\x"}`, `{"2026-01-02T02:04:05.000006Z"}`},
		{`{"a","\""}`},
	}
	if !reflect.DeepEqual(a.args, want) {
		t.Errorf("the arguments are\n%#v, want\n%#v", a.args, want)
	}
}

func TestSQLOutbox_NothingIsSentWhereThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	var a asked
	if err := Write(t.Context(), begun{&a}); err != nil {
		t.Error(err)
	}
	if err := Lock(t.Context(), begun{&a}); err != nil {
		t.Error(err)
	}
	if len(a.statements) > 0 {
		t.Errorf("sent %q", a.statements)
	}
}

func TestSQLOutbox_FromTakesTransactionsAlone(t *testing.T) {
	t.Parallel()
	var a asked
	if tx, err := From(begun{&a}); err != nil || tx != (begun{&a}) {
		t.Errorf("got %v, %v", tx, err)
	}
	if tx, err := From(&sql.Tx{}); err != nil || tx == nil {
		t.Errorf("got %v, %v", tx, err)
	}
	for name, db := range map[string]Execer{
		"*sql.DB is none: begin one": &sql.DB{}, "*sql.Conn": &sql.Conn{}, "*sqloutbox.asked": &a, "<nil>": nil, "*sql.Tx is none": (*sql.Tx)(nil),
	} {
		if tx, err := From(db); err == nil || tx != nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, %v", name, tx, err)
		}
	}
}

func TestSQLOutbox_ANilTransactionIsAnError(t *testing.T) {
	t.Parallel()
	for _, tx := range []Tx{nil, (*sql.Tx)(nil)} {
		if err := Write(t.Context(), tx, holdfast.Event{Topic: "o", Type: "t"}); err == nil || !strings.HasPrefix(err.Error(), "write events: tx is nil: it must be") {
			t.Errorf("got %v", err)
		}
		if _, err := WriteOnce(t.Context(), tx, "k", holdfast.Event{Topic: "o", Type: "t"}); err == nil || !strings.HasPrefix(err.Error(), "write event once: tx is nil: it must be") {
			t.Errorf("got %v", err)
		}
		if err := Lock(t.Context(), tx, "k"); err == nil || !strings.HasPrefix(err.Error(), "lock keys: tx is nil: it must be") {
			t.Errorf("got %v", err)
		}
	}
	if _, err := New(outbox.Config{Schema: "No;"}); err == nil || !strings.Contains(err.Error(), `schema is "No;"`) {
		t.Errorf("got %v", err)
	}
}

func TestSQLOutbox_WriteOnceNeedsATransactionThatAnswers(t *testing.T) {
	t.Parallel()
	if _, err := WriteOnce(t.Context(), begun{&asked{}}, "k", holdfast.Event{Topic: "o", Type: "t"}); err == nil || !strings.Contains(err.Error(), "sqloutbox.begun has no QueryContext") {
		t.Errorf("got %v", err)
	}
}

func TestSQLOutbox_MiddlewareIsRefused(t *testing.T) {
	t.Parallel()
	around := func(next outbox.WriteFunc) outbox.WriteFunc { return next }
	if _, err := New(outbox.Config{Use: []func(outbox.WriteFunc) outbox.WriteFunc{around}}); err == nil || !strings.Contains(err.Error(), "use has middleware") {
		t.Errorf("got %v", err)
	}
}
