// Package private keeps data out of what is logged and published. Errors quote values: of a row, of a card, of a person. Logs
// and published dead letters leave the database, so they get what names the kind of failure, and the rest stays in the
// dead letter's row.
package private

import (
	"errors"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

// Text returns err's text for a log. The message of an error of Postgres that is about values (SQLSTATE classes 22, 23, 44 and
// P0, which triggers raise) is replaced by its SQLSTATE and the names of table, column and constraint, because it may quote the values. Its detail is in no text.
// A connection string that cannot be parsed is left out.
func Text(err error) string {
	if err == nil {
		return ""
	}
	if err = foreign.Error(err); errors.As(err, new(*pgconn.ParseConfigError)) {
		return "the connection string cannot be parsed"
	}
	text := err.Error()
	for _, pg := range postgresErrors(err) {
		if ofValues(pg.Code) {
			text = strings.ReplaceAll(text, pg.Error(), State(pg))
			text = strings.ReplaceAll(text, pg.Message, State(pg)) // where somebody wrapped the message alone
		}
	}
	return text
}

// State names an error of Postgres by its SQLSTATE and the schema's own names.
func State(pg *pgconn.PgError) string {
	text := "SQLSTATE " + pg.Code
	for _, of := range []struct{ what, name string }{{"table", pg.TableName}, {"column", pg.ColumnName}, {"constraint", pg.ConstraintName}} {
		if of.name != "" {
			text += ", " + of.what + " " + of.name
		}
	}
	if in := function.FindStringSubmatch(pg.Where); in != nil { // a trigger's
		text += ", in function " + in[1]
	}
	return text
}

// function is the innermost function in an error's context. The rest of the context may be a statement with values.
var function = regexp.MustCompile(`^PL/pgSQL function ([\pL\pN_.$]+)\(`)

// ofValues reports whether a SQLSTATE is about values: data exceptions, integrity constraints, views' check options, and what
// somebody's trigger raises.
func ofValues(code string) bool {
	return len(code) == 5 && (code[:2] == "22" || code[:2] == "23" || code[:2] == "44" || code[:2] == "P0")
}

// postgresErrors are all errors of Postgres that err wraps, joined ones included.
func postgresErrors(err error) (all []*pgconn.PgError) {
	for e := range foreign.All(err) {
		if pg, ok := e.(*pgconn.PgError); ok {
			all = append(all, pg)
		}
	}
	return all
}

var (
	// quoted is what stands in quotes. One quote without its end hides the rest. The apostrophe of "can't" is no quote: a letter
	// comes before it.
	quoted = regexp.MustCompile("\"[^\"]*(\"|$)|`[^`]*(`|$)|[“«„][^”»“]*([”»“]|$)|(^|[^\\pL\\pN])'[^']*('|$)")

	// assigned is a value after an equals sign: "(email)=(ann@example.com)", "card=4111".
	assigned = regexp.MustCompile(`=\s*(\([^)]*(\)|$)|[^\s,;)]+)`)

	// word is what stands between blanks and brackets.
	word = regexp.MustCompile(`[^\s,;()\[\]{}<>]+`)
)

// longestWord is the most bytes that a word of a kind of failure has: longer ones are tokens.
const longestWord = 40

// Kind returns the words of the first line of an error's text that say what kind of failure it is: what stands in quotes or
// after an equals sign is left out, and so is every word with a digit or an @, or of more than 40 bytes. So the same failure of
// other values has the same kind. Plain words stay, names of people among them: an error that is built by hand should not
// contain them.
func Kind(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	text = strings.ToValidUTF8(text, "")
	text = quoted.ReplaceAllString(text, "${4}#")
	text = assigned.ReplaceAllString(text, "=#")
	return word.ReplaceAllStringFunc(text, func(w string) string {
		if len(w) > longestWord || strings.ContainsAny(w, "0123456789@") {
			trimmed := strings.TrimRight(w, ":.!?")
			return "#" + w[len(trimmed):]
		}
		return w
	})
}

// Error is err with Text as its text.
func Error(err error) error {
	if err == nil {
		return nil
	}
	return redacted{err}
}

type redacted struct{ err error }

func (r redacted) Error() string { return Text(r.err) }
func (r redacted) Unwrap() error { return r.err }
