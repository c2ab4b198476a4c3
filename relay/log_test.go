package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/holdfast-go/holdfast"
)

// scriptedReader reads lane 3 in pages of two events, or 100 bytes, from a script.
func scriptedReader(s *script, at reading) (r *logReader, clock *time.Time) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &logReader{pool: s, sql: simStatements, lane: 3, token: "tok", limit: 2, bytes: 100, places: usualBounds.places, span: 1000, now: func() time.Time { return now }, at: at, readAt: now}, &now
}

// pageOf is a page up to a snapshot, with events of 10 bytes that have these seqs.
func pageOf(upto string, seqs ...int64) reply {
	a := reply{rows: [][]any{{int64(0), upto, "ok", "", "", "", pgtype.Timestamptz{}, nil, nil, int64(0), int64(0), nil, int64(0)}}}
	for i, seq := range seqs {
		a.rows = append(a.rows, []any{seq, fmt.Sprint("e", seq), "src", "t", "orders", "k", pgtype.Timestamptz{}, nil, nil, int64(0), int64(10 * (i + 1)), nil, int64(10)})
	}
	return a
}

func TestLog_AReaderAsksTheLogWhatItsStateNeeds(t *testing.T) {
	t.Parallel()
	lagged := reading{cursor: cursor{done: "5:5:"}}
	lives := reading{state: live, cursor: cursor{done: "5:5:"}}
	open := startReading(cursor{done: "5:5:", upto: "8:8:", pos: 4})
	fourth := open
	fourth.pages = pagesUnplanned - 1
	listed := open.byPlan(plan{big: []int64{16}, next: places{[]int64{5, 5, 7}, []int64{5, 6, 9}}})
	cuts := reply{rows: [][]any{{"6:9:", int64(7), int64(100)}, {"6:10:", int64(8), int64(200)}, {"6:11:", int64(9), int64(1101)}}}
	for name, c := range map[string]struct {
		from   reading
		script *script
		asked  []string
		page   page
		state  readState
	}{
		"a backlog's window ends at a corrected cut": {lagged, new(script).because("cuts", cuts).because("page", pageOf("6:10:8", 7)),
			[]string{"cuts 5:5: 4 tok", "page 3 5:5: 6:10:8 0 2 tok 50"},
			page{window: cursor{done: "5:5:", upto: "6:10:8"}, after: cursor{done: "6:10:8"}, moves: true}, lagging},
		"a window without an event moves the cursor": {lagged, new(script).because("cuts", cuts).because("page", pageOf("6:10:8")),
			[]string{"cuts 5:5: 4 tok", "page 3 5:5: 6:10:8 0 2 tok 50"},
			page{window: cursor{done: "5:5:", upto: "6:10:8"}, after: cursor{done: "6:10:8"}, moves: true}, lagging},
		"without a cut it ends now": {lagged, new(script).because("page", pageOf("9:9:", 7)),
			[]string{"cuts 5:5: 4 tok", "page 3 5:5: <nil> 0 2 tok 50"},
			page{window: cursor{done: "5:5:", upto: "9:9:"}, after: cursor{done: "9:9:"}, moves: true, last: true}, live},
		"nothing new moves nothing": {lives, new(script).because("sized_page", pageOf("9:9:")),
			[]string{"sized_page 3 5:5: <nil> 0 2 tok 100"},
			page{window: cursor{done: "5:5:", upto: "9:9:"}, after: cursor{done: "9:9:"}, last: true}, live},
		"a full page of now is read again up to a cut": {lives, new(script).because("cuts", cuts).because("sized_page", pageOf("12:12:", 7, 8)).because("page", pageOf("6:10:8", 7)),
			[]string{"sized_page 3 5:5: <nil> 0 2 tok 100", "cuts 5:5: 4 tok", "page 3 5:5: 6:10:8 0 2 tok 50"},
			page{window: cursor{done: "5:5:", upto: "6:10:8"}, after: cursor{done: "6:10:8"}, moves: true}, lagging},
		"a full page of now stands without a cut": {lives, new(script).because("sized_page", pageOf("12:12:", 7, 8)),
			[]string{"sized_page 3 5:5: <nil> 0 2 tok 100", "cuts 5:5: 4 tok"},
			page{window: cursor{done: "5:5:", upto: "12:12:"}, after: cursor{done: "5:5:", upto: "12:12:", pos: 8}, moves: true}, inWindow},
		"a full page of a window asks for no cut": {open, new(script).because("cuts", cuts).because("page", pageOf("8:8:", 7, 8)),
			[]string{"page 3 5:5: 8:8: 4 2 tok 50"},
			page{window: cursor{done: "5:5:", upto: "8:8:"}, after: cursor{done: "5:5:", upto: "8:8:", pos: 8}, moves: true}, inWindow},
		"after some full pages it looks for big transactions": {fourth, new(script).because("page", pageOf("8:8:", 7, 8)).because("transactions", reply{rows: [][]any{{"6", int64(4000)}}}),
			[]string{"page 3 5:5: 8:8: 4 2 tok 50", "transactions 3 5:5: 8:8: 8 2 tok"},
			page{window: cursor{done: "5:5:", upto: "8:8:"}, after: cursor{done: "5:5:", upto: "8:8:", pos: 8}, moves: true}, planned},
		"a planned page goes by its list": {listed, new(script).because("planned_page", pageOf("8:8:", 5, 6)),
			[]string{"planned_page 3 [5 5] 8:8: 4 2 tok [16] [5 6] 50"},
			page{window: cursor{done: "5:5:", upto: "8:8:"}, after: cursor{done: "5:5:", upto: "8:8:", pos: 6}, moves: true}, planned},
		"a list that may be too short is read first": {open.byPlan(plan{big: []int64{16}}), new(script).because("places", reply{rows: [][]any{{"5", int64(5)}, {"7", int64(9)}}}).because("planned_page", pageOf("8:8:", 5)),
			[]string{"places 3 5:5: 8:8: 4 50000 tok [16]", "planned_page 3 [5 7] 8:8: 4 2 tok [16] [5 9] 50"},
			page{window: cursor{done: "5:5:", upto: "8:8:"}, after: cursor{done: "8:8:"}, moves: true}, lagging},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := scriptedReader(c.script, c.from)
			p, err := r.next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.asked, c.script.asked); diff != "" {
				t.Errorf("it asked (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.page, p, cmp.AllowUnexported(page{}, cursor{}), cmpopts.IgnoreFields(page{}, "events")); diff != "" {
				t.Errorf("the page (-want +got):\n%s", diff)
			}
			if r.at.state != c.state || r.at.cursor != c.page.after {
				t.Errorf("it goes on %v at %v, want %v at %v", r.at.state, r.at.cursor, c.state, c.page.after)
			}
		})
	}
}

// A lane that is read often enough is never taken for a backlog, however long it lives.
func TestLog_AReaderIsBehindOnlyAfterAPauseBetweenReads(t *testing.T) {
	t.Parallel()
	s := new(script).because("sized_page", pageOf("6:6:"), pageOf("7:7:"), pageOf("8:8:")).because("page", pageOf("9:9:"))
	r, clock := scriptedReader(s, reading{state: live, cursor: cursor{done: "5:5:"}})
	for _, pause := range []time.Duration{backlogAfter, backlogAfter, backlogAfter, backlogAfter + 1} {
		*clock = clock.Add(pause)
		if _, err := r.next(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(s.asked, "\n"); strings.Count(got, "cuts") != 1 || !strings.HasPrefix(s.asked[3], "cuts") {
		t.Errorf("it asked:\n%s\nwant cuts before the last page alone", got)
	}
}

func TestLog_AReaderLooksForMoreCutsInALongerWindow(t *testing.T) {
	t.Parallel()
	for span, want := range map[int64]string{0: "2", 499: "2", 500: "3", 12_800: "27", 1_000_000: "200"} {
		s := new(script).because("page", pageOf("9:9:"))
		r, _ := scriptedReader(s, reading{cursor: cursor{done: "5:5:"}})
		r.span = span
		if _, err := r.next(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := "cuts 5:5: " + want + " tok"; s.asked[0] != got {
			t.Errorf("span %d: it asked %q, want %q", span, s.asked[0], got)
		}
	}
}

func TestLog_APageIsFullByItsEventsOrByItsBytes(t *testing.T) {
	t.Parallel()
	heavy := func(bytes int64) reply {
		a := pageOf("8:8:", 7)
		a.rows[1][10] = bytes
		return a
	}
	for name, c := range map[string]struct {
		reply
		full bool
	}{"no event": {pageOf("8:8:"), false}, "one": {pageOf("8:8:", 7), false}, "two": {pageOf("8:8:", 7, 8), true},
		"99 bytes": {heavy(99), false}, "100 bytes": {heavy(100), true}, "200 bytes": {heavy(200), true}} {
		r, _ := scriptedReader(new(script).because("sized_page", c.reply), reading{})
		r.sized = true
		events, upto, full, err := r.read(t.Context(), startReading(cursor{done: "5:5:", upto: "8:8:"}))
		if err != nil || full != c.full || upto != "8:8:" || len(events) != len(c.rows)-1 {
			t.Errorf("%s: %d events up to %s, full %v, %v; want full %v", name, len(events), upto, full, err, c.full)
		}
	}
}

// In a backlog whose rows are small their bytes are not counted. A page with a row that is not small is read again, as are those after it
// until one has small rows only. One without rows, and one that fails, changes nothing. Nor does a page that is read as it comes, whose bytes
// are always counted.
func TestLog_BytesAreCountedWhileARowIsNotSmall(t *testing.T) {
	t.Parallel()
	sized := func(size int64, seqs ...int64) reply {
		a := pageOf("8:8:", seqs...)
		for _, row := range a.rows[1:] {
			row[10], row[12] = int64(0), size
		}
		return a
	}
	s := new(script)
	for _, r := range []reply{sized(51, 7), {err: errors.New("boom")}, sized(51, 7), sized(0), sized(50, 7), sized(50, 7), sized(51, 7), sized(50, 7)} {
		s.because("sized_page", r)
	}
	for _, r := range []reply{sized(50, 7, 8), sized(0), sized(51, 7), sized(50, 7, 8), sized(50, 7)} {
		s.because("page", r)
	}
	r, _ := scriptedReader(s, reading{})
	open, live := startReading(cursor{done: "5:5:", upto: "8:8:"}), reading{state: live, cursor: cursor{done: "5:5:"}}
	for i, read := range []struct {
		at     reading
		events int
		full   bool
		fails  bool
		asked  string
	}{
		{open, 2, true, false, "page"},
		{open, 0, false, false, "page"},
		{open, 1, false, false, "page sized_page"},
		{open, 0, false, true, "sized_page"},
		{open, 1, false, false, "sized_page"},
		{open, 0, false, false, "sized_page"},
		{open, 1, false, false, "sized_page"},
		{open, 2, true, false, "page"},
		{live, 1, false, false, "sized_page"},
		{live, 1, false, false, "sized_page"},
		{live, 1, false, false, "sized_page"},
		{open, 1, false, false, "page"},
	} {
		s.asked = nil
		events, _, full, err := r.readUpTo(t.Context(), read.at, 2)
		asked := make([]string, len(s.asked))
		for i, a := range s.asked {
			name, args, _ := strings.Cut(a, " ")
			asked[i] = name
			if bound := map[string]string{"page": "50", "sized_page": "100"}[name]; !strings.HasSuffix(args, " "+bound) {
				t.Errorf("read %d: %s, want a bound of %s", i, a, bound)
			}
		}
		if got := strings.Join(asked, " "); got != read.asked || len(events) != read.events || full != read.full || err != nil != read.fails {
			t.Errorf("read %d: it asked %q; %d events, full %v, %v; want %v", i, got, len(events), full, err, read)
		}
	}
}

// Whichever statement it is, and however it fails, the lane's error says which, and holds the cause. The reader stays where it
// was, so that the same call may be made again.
func TestLog_AReaderThatFailsSaysAtWhatAndStaysWhereItWas(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	lives := reading{state: live, cursor: cursor{done: "5:5:"}}
	open := startReading(cursor{done: "5:5:", upto: "8:8:", pos: 4})
	fourth := open
	fourth.pages = pagesUnplanned - 1
	states := map[string]error{"standby": errStandby, "isolation": errIsolation, "ahead": errAhead, "crashed": errCrashed}
	type failing struct {
		from   reading
		script func(reply) *script
		what   string
		says   func(state string) []any // the row by which the statement stops a reader
	}
	stops := func(state string) []any { return []any{state, nil} }
	for name, c := range map[string]failing{
		"cuts before a page": {reading{cursor: cursor{done: "5:5:"}}, func(a reply) *script { return new(script).because("cuts", a).because("page", pageOf("9:9:")) },
			"read cuts", func(state string) []any { return []any{state, nil, nil} }},
		"cuts after a page": {lives, func(a reply) *script {
			return new(script).because("sized_page", pageOf("9:9:", 7, 8)).because("cuts", a)
		},
			"read cuts", func(state string) []any { return []any{state, nil, nil} }},
		"the page": {lives, func(a reply) *script { return new(script).because("sized_page", a) }, "read page", nil},
		"the page up to a cut": {lives, func(a reply) *script {
			return new(script).because("sized_page", pageOf("9:9:", 7, 8)).because("page", a).because("cuts", reply{rows: [][]any{{"6:9:", int64(7), int64(100)}}})
		}, "read page", nil},
		"the planned page": {open.byPlan(plan{next: places{[]int64{5, 5}, []int64{5, 6}}}), func(a reply) *script { return new(script).because("planned_page", a) }, "read page", nil},
		"the transactions": {fourth, func(a reply) *script {
			return new(script).because("page", pageOf("8:8:", 7, 8)).because("transactions", a)
		},
			"read the window's transactions", stops},
		"the places": {open.byPlan(plan{}), func(a reply) *script {
			return new(script).because("places", a).because("planned_page", pageOf("8:8:"))
		}, "read places of the window", stops},
	} {
		says := c.says
		if says == nil {
			says = func(state string) []any {
				return []any{int64(0), "", state, "", "", "", pgtype.Timestamptz{}, nil, nil, int64(0), int64(0), nil, int64(0)}
			}
		}
		fails := map[string]struct {
			reply
			want error
		}{"the call": {reply{err: boom}, boom}, "the rows": {reply{broken: boom}, boom}}
		if c.what == "read page" { // also after its header
			a := pageOf("9:9:", 7)
			a.broken = boom
			fails["later rows"] = struct {
				reply
				want error
			}{a, boom}
		}
		for state, err := range states {
			fails[state] = struct {
				reply
				want error
			}{reply{rows: [][]any{says(state)}}, err}
		}
		for how, f := range fails {
			r, _ := scriptedReader(c.script(f.reply), c.from)
			p, err := r.next(t.Context())
			if !errors.Is(err, f.want) || !strings.HasPrefix(err.Error(), c.what+": ") {
				t.Errorf("%s, %s: %v, want %q with %v", name, how, err, c.what, f.want)
			}
			if len(p.events) > 0 || p.moves || p.last || !cmp.Equal(r.at, c.from, cmp.AllowUnexported(reading{}, cursor{}, plan{}, places{})) {
				t.Errorf("%s, %s: page %+v, and it goes on at %+v", name, how, p, r.at)
			}
		}
	}
}

func TestLog_AReaderRefusesRowsThatItCannotRead(t *testing.T) {
	t.Parallel()
	open := startReading(cursor{done: "5:5:", upto: "8:8:", pos: 4})
	bad := func(row int, column int, value any) reply {
		a := pageOf("8:8:", 7)
		a.rows[row][column] = value
		return a
	}
	for name, c := range map[string]struct {
		from   reading
		script *script
		want   string
	}{
		"a page without a header":         {open, new(script).because("page", reply{}), "read page: the header is missing"},
		"a header of other columns":       {open, new(script).because("page", reply{rows: [][]any{{int64(1)}}}), "read page: 1 columns"},
		"an event with another type":      {open, new(script).because("page", bad(1, 0, "x")), "read page: column 0"},
		"a cut that is no snapshot":       {reading{}, new(script).because("cuts", reply{rows: [][]any{{"x", int64(7), int64(1)}}}), "read cuts: parse snapshot"},
		"a cut with another type":         {reading{}, new(script).because("cuts", reply{rows: [][]any{{int64(1), int64(7), int64(1)}}}), "read cuts: "},
		"a transaction that is no number": {open.byPlan(plan{}), new(script).because("places", reply{rows: [][]any{{"x", int64(7)}}}), "read places of the window: strconv"},
	} {
		r, _ := scriptedReader(c.script, c.from)
		if _, err := r.next(t.Context()); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// Postgres sends a row as text under the simple protocol, and else in binary.
func TestLog_ARowIsTheSameEventInBothFormats(t *testing.T) {
	t.Parallel()
	number := func(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	at := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
	since2000 := at.Sub(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds()
	for name, c := range map[string]struct {
		headers any
		payload any
		want    holdfast.Event
	}{
		"all columns":      {`{"a":"b"}`, []byte("body"), holdfast.Event{Headers: map[string]string{"a": "b"}, Payload: []byte("body")}},
		"no headers":       {nil, []byte{}, holdfast.Event{Payload: []byte{}}},
		"a tombstone":      {nil, nil, holdfast.Event{}},
		"headers are null": {`null`, nil, holdfast.Event{Headers: map[string]string{}}},
		"a header is null": {`{"a":null,"n":"null"}`, nil, holdfast.Event{Headers: map[string]string{"a": "null", "n": "null"}}},
		"a header is a number, another an object": {`{"a":1,"o":{"x": [true]},"s":"y"}`, nil,
			holdfast.Event{Headers: map[string]string{"a": "1", "o": `{"x": [true]}`, "s": "y"}}},
	} {
		want := logEvent{Event: c.want, seq: 77, letter: 9}
		want.ID, want.Source, want.Type, want.Topic, want.Key, want.Time = "id", "src", "t", "orders", "k", at
		text := []any{int64(77), "id", "src", "t", "orders", "k", pgtype.Timestamptz{Time: at, Valid: true}, c.headers, c.payload, int64(9), int64(55), nil, int64(66)}
		raw := [][]byte{number(77), []byte("id"), []byte("src"), []byte("t"), []byte("orders"), []byte("k"), number(since2000), nil, nil, number(9), number(55), nil, number(66)}
		if s, ok := c.headers.(string); ok {
			raw[7] = []byte(s)
		}
		if b, ok := c.payload.([]byte); ok {
			raw[8] = b
		}
		r, _ := scriptedReader(nil, reading{})
		for format, rows := range map[string]*scripted{"text": {reply: reply{rows: [][]any{text}}, at: 1}, "binary": {reply: reply{raw: [][][]byte{raw}}, at: 1}} {
			var got logEvent
			var bytes int64
			r.largest = 0
			if err := r.scan(rows, &got, &bytes); err != nil || bytes != 55 || r.largest != 66 {
				t.Errorf("%s, %s: %d bytes, size %d, %v", name, format, bytes, r.largest, err)
			}
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(logEvent{})); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", name, format, diff)
			}
		}
		if len(raw[8]) > 0 { // pgx reads the next row into the same bytes
			var got logEvent
			var bytes int64
			_ = r.scan(&scripted{reply: reply{raw: [][][]byte{raw}}, at: 1}, &got, &bytes)
			raw[8][0] = 'X'
			if string(got.Payload) != "body" {
				t.Errorf("the payload became %q", got.Payload)
			}
		}
	}
	r, _ := scriptedReader(nil, reading{})
	for format, rows := range map[string]*scripted{
		"text": {reply: reply{rows: [][]any{{int64(77), "id", "src", "t", "orders", "k", pgtype.Timestamptz{Time: at, Valid: true}, "7", []byte("body"), int64(9), int64(55), nil, int64(66)}}}, at: 1},
		"binary": {reply: reply{raw: [][][]byte{{number(77), []byte("id"), []byte("src"), []byte("t"), []byte("orders"), []byte("k"), number(since2000), []byte("7"), []byte("body"),
			number(9), number(55), nil, number(66)}}}, at: 1},
	} {
		var got logEvent
		if err := r.scan(rows, &got, new(int64)); err != nil || got.malformed != "headers are a JSON number: they must be an object" || got.Payload != nil || got.ID != "id" {
			t.Errorf("headers that are a number, %s: %+v, %v", format, got, err)
		}
	}
}

func TestLog_AReaderKeepsAThousandWordsAtMost(t *testing.T) { // not parallel: it counts allocations
	var r logReader
	for i := range 2500 {
		word := fmt.Sprint("type ", i)
		if got := r.word([]byte(word)); got != word {
			t.Fatalf("%q became %q", word, got)
		}
		if len(r.intern) > 1001 {
			t.Fatalf("it keeps %d", len(r.intern))
		}
		if i == 1000 && len(r.intern) != 1001 {
			t.Errorf("it keeps %d of the first 1001", len(r.intern))
		}
	}
	if allocated := testing.AllocsPerRun(100, func() { r.word([]byte("type 2499")) }); allocated != 0 {
		t.Errorf("a known word costs %v allocations", allocated)
	}
}

func TestLog_AListIsAsLongAsTwoPagesAtLeast(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int]int{1: 50_000, 2000: 50_000, 25_000: 50_000, 25_001: 50_002, 100_000: 200_000} {
		if got := (&logReader{limit: limit, places: usualBounds.places}).listAhead(); got != want {
			t.Errorf("pages of %d: %d, want %d", limit, got, want)
		}
	}
	three := plan{next: places{[]int64{1, 1, 1}, []int64{7, 8, 9}}}
	if three.short(3) || !three.short(4) || (plan{whole: true}).short(4) {
		t.Error("a list that ends with the page is long enough, and so is a whole one")
	}
	open := startReading(cursor{done: "5:5:", upto: "8:8:"})
	if open.wantsList(4) || !open.byPlan(three).wantsList(4) || open.byPlan(three).wantsList(3) {
		t.Error("only a planned page wants a list, if its own is too short")
	}
	for state := lagging; state <= planned; state++ {
		r := reading{state: state}
		if r.exceeds(false) || r.exceeds(true) != (state == live) {
			t.Errorf("%v: a window of now exceeds its page: %v when it is full, %v when not", state, r.exceeds(true), r.exceeds(false))
		}
	}
}
