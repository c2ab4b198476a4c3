package private

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestPrivate_AKindOfFailureHasNoValues(t *testing.T) {
	for text, want := range map[string]string{
		`no such customer`:                                    `no such customer`,
		`can't reach the ledger, isn't it`:                    `can't reach the ledger, isn't it`,
		`[10] Message Size Too Large: at most`:                `[#] Message Size Too Large: at most`,
		`strconv.Atoi: parsing "4111-CANARY": invalid syntax`: `strconv.Atoi: parsing #: invalid syntax`,
		`card 4111-CANARY was declined`:                       `card # was declined`,
		`no customer 'Ann Canary' here`:                       `no customer # here`,
		`no customer 'Ann Canary`:                             `no customer #`,
		"value `Ann Canary` of name":                          `value # of name`,
		`value “Ann Canary” of name`:                          `value # of name`,
		`Key (email)=(ann canary) already exists.`:            `Key (email)=# already exists.`,
		`token=CANARY, user=CANARY`:                           `token=#, user=#`,
		`unknown address ann@canary.example: refused`:         `unknown address #: refused`,
		`order 0193a1b2-7c3d-7e4f-8a5b-6c7d8e9f0a1b: gone`:    `order #: gone`,
		`bearer ` + strings.Repeat("CANARY", 10) + ` refused`: `bearer # refused`,
		`{"name":"Canary","pin":1234}`:                        `{#:#,#}`,
		`first` + "\n" + `CANARY`:                             `first`,
		"bad \xff byte":                                       `bad  byte`,
		`took 3 s, of 10 s`:                                   `took # s, of # s`,
	} {
		if got := Kind(text); got != want {
			t.Errorf("%s\nhas the kind %q, want %q", text, got, want)
		}
	}
}

func TestPrivate_TheSameFailureOfOtherValuesHasOneKind(t *testing.T) {
	for _, format := range []string{`order %s is gone`, `parse %q: no`, `'%s' is unknown`, `id=%s`, `the key (%s)`} {
		if a, b := Kind(fmt.Sprintf(format, "a1-7")), Kind(fmt.Sprintf(format, "b22-8x")); a != b {
			t.Errorf("%q and %q", a, b)
		}
	}
}

func TestPrivate_ErrorsOfPostgresAreLoggedWithoutValues(t *testing.T) {
	of := func(code, message string) *pgconn.PgError {
		return &pgconn.PgError{Severity: "ERROR", Code: code, Message: message, Detail: "CANARY", TableName: "card", ColumnName: "number"}
	}
	syntax := of("22P02", `invalid input syntax for type integer: "CANARY"`)
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"nothing":         {nil, ""},
		"no server's":     {errors.New("dial tcp: refused"), "dial tcp: refused"},
		"a value":         {fmt.Errorf("charge: %w", syntax), "charge: SQLSTATE 22P02, table card, column number"},
		"its text alone":  {errors.Join(errors.New("a"), fmt.Errorf("charge: %w (%s)", syntax, syntax.Message)), "a\ncharge: SQLSTATE 22P02, table card, column number (SQLSTATE 22P02, table card, column number)"},
		"a trigger's":     {of("P0001", "no CANARY"), "SQLSTATE P0001, table card, column number"},
		"in a function":   {&pgconn.PgError{Code: "P0001", Message: "no CANARY", Where: "PL/pgSQL function refuse() line 1 at RAISE\nSQL statement \"insert … 'CANARY'\""}, "SQLSTATE P0001, in function refuse"},
		"a missing right": {of("42501", "permission denied for table card"), "ERROR: permission denied for table card (SQLSTATE 42501)"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Text(c.err); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
	_, err := pgconn.ParseConfig("postgres://user:CANARY@host:port/x")
	if got := Text(fmt.Errorf("connect: %w", err)); err == nil || strings.Contains(got, "CANARY") {
		t.Errorf("got %q of %v", got, err)
	}
}
