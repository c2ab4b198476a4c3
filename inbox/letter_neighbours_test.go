package inbox

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/test/effect"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

// The letters of these tests are of theEvents, with two payloads each. Their names say which they are, and the payload.
const theLetters = `insert into holdfast.letter (origin, consumer, reason, state, event_id, source, type, topic, key, time, hash)
	select 'inbox', consumer, 'r', '%s', id, source, 't', 'o', 'k', now(), h::bytea from ` + theEvents + `, unnest('{x,y}'::text[]) h where %s`

const letterRows = "select concat(consumer, source, event_id, encode(hash, 'escape')), l::text from holdfast.letter l"

// An event has one letter for each of its payloads, which is opened again, unless a conflict comes again.
func TestLetterNeighbours_ALetterIsThatOfAnEventAndItsPayload(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	const ours = "v.name = 'bbb' and h = 'x'"
	for name, c := range map[string]struct {
		which string
		again bool
		want  string
	}{
		"there is none":            {"not (" + ours + ")", true, "+bbbx"},
		"there is none yet":        {"not (" + ours + ")", false, "+bbbx"},
		"given up again":           {"true", true, "bbbx"},
		"a conflict, which is old": {"true", false, ""},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, fmt.Sprintf(theLetters, "replayed", c.which))
			var returned string
			changed := effect.Changed(t, tx, letterRows, func() {
				returned = effect.Returned(t, tx, sqlschema.In("", letterSQL), "b", "new", "f", true, "b", "b", "t", "o", "k", nil, "{}", []byte("payload"), []byte("x"), nil, nil, int32(3), []string{"e"}, int64(0), c.again, nil)
			})
			if got := strings.Join(changed, ", "); got != c.want || (returned != "") != (c.want != "") {
				t.Errorf("%s: written is %q, returned %q, want %q", name, got, returned, c.want)
			}
		})
	}
}

// A letter is closed by its replay if it was open, and opened again after that failed.
func TestLetterNeighbours_AReplayClosesOrOpensOnlyItsLetter(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	for state, closed := range map[string]bool{"open": true, "replaying": true, "replayed": false, "discarded": false} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, fmt.Sprintf(theLetters, state, "true"))
			id := pgtest.Count(t, tx, "select id from holdfast.letter where (consumer, source, event_id, hash) = ('b', 'b', 'b', 'x')")
			changed := strings.Join(effect.Changed(t, tx, letterRows, func() { pgtest.Exec(t, tx, sqlschema.In("", letterReplayedSQL), id) }), ", ")
			if want := map[bool]string{true: "bbbx", false: ""}[closed]; changed != want {
				t.Errorf("%s: replayed are %q, want %q", state, changed, want)
			}
			changed = strings.Join(effect.Changed(t, tx, letterRows, func() {
				pgtest.Exec(t, tx, sqlschema.In("", letterReopenSQL), id, int32(1), "it failed", "f", []string{"e"})
			}), ", ")
			if changed != "bbbx" {
				t.Errorf("%s: opened are %q", state, changed)
			}
		})
	}
}

// A payload was edited if a person replaced it, in a letter of the event.
func TestLetterNeighbours_APayloadIsEditedInALetterOfItsEvent(t *testing.T) {
	t.Parallel()
	db := migrated.New(t)
	content := func(s string) string { return strings.Repeat(s, 32) }
	h := content("h")
	ours := "bbbx"
	for name, c := range map[string]struct {
		of     string // the letters that have the action: a condition
		action string
		hash   string   // of the action
		asked  []string // hashes
		want   bool
	}{
		"the payload":                  {"=", "edit", h, []string{h}, true},
		"the payload in another form":  {"=", "edit", h, []string{content("z"), h}, true},
		"an earlier one":               {"=", "edit", content("g"), []string{h}, false},
		"a later one":                  {"=", "edit", content("i"), []string{h}, false},
		"in letters of others":         {"<>", "edit", h, []string{h}, false},
		"a replay":                     {"=", "replay", h, []string{h}, false},
		"a discard":                    {"=", "discard", h, []string{h}, false},
		"the same version":             {"=", "edit", h + "1", []string{h + "1"}, true},
		"another version":              {"=", "edit", h + "1", []string{h + "2"}, true},
		"another version of another":   {"=", "edit", content("g") + "1", []string{h + "2"}, true},
		"the same version, of another": {"=", "edit", content("g") + "1", []string{h + "1"}, false},
		"a version of another form":    {"=", "edit", content("g") + "1", []string{h + "1", content("i") + "2"}, false},
		"it had no version":            {"=", "edit", content("g"), []string{h + "1"}, false},
		"it has no version":            {"=", "edit", content("g") + "1", []string{h}, false},
		"neither has":                  {"=", "edit", content("g"), []string{content("h")}, false},
	} {
		effect.Undone(t, db, func(tx pgx.Tx) {
			pgtest.Exec(t, tx, fmt.Sprintf(theLetters, "open", "h = 'x'"))
			pgtest.Exec(t, tx, "insert into holdfast.letter_action (letter, action, by, reason, hash) select id, $1::text, 'ann', 'r', $2::bytea from holdfast.letter where concat(consumer, source, event_id, 'x') "+c.of+" $3::text", c.action, []byte(c.hash), ours)
			var asked [][]byte
			for _, a := range c.asked {
				asked = append(asked, []byte(a))
			}
			if got, want := effect.Returned(t, tx, sqlschema.In("", editedSQL), "b", "b", "b", asked), fmt.Sprint(c.want); got != want {
				t.Errorf("%s: edited %s, want %s", name, got, want)
			}
		})
	}
}
