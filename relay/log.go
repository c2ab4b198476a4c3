package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// logEvent is an event as the log holds it.
type logEvent struct {
	holdfast.Event
	seq    int64
	letter int64 // the dead letter whose replay it is; 0 for none

	// malformed says why the row cannot be published; "" for almost every one. The rest of the event is then what could be read
	// of it, without payload and headers.
	malformed string
}

// page is what a lane works on at a time: events in the order in which they are to be published, the window that they
// belong to, and the cursor after them.
type page struct {
	events []logEvent
	window cursor // without pos
	after  cursor
	moves  bool      // it has events, or ends a window: after is to be saved, so that the window's events count as read
	kept   int64     // of the budget
	last   bool      // everything committed when it was read is in this page or before it
	readAt time.Time // when reading it began

	still bool     // the second reader (overtake.go) has read it: its events overtake those of noisy tenants, and the cursor stays at after
	noisy []string // tenants whose events the second reader leaves out now; nil: it rests
}

// Errors that stop a reader, because the rows that it would get are not the log's.
var (
	errCrashed   = errors.New("the database was restarted")
	errAhead     = errors.New("the cursor is ahead of the database: a copy of the database took its place, or a crash undid transactions")
	errStandby   = errors.New("the server is a standby")
	errIsolation = errors.New("the default isolation is not read committed")
)

// logReader reads one lane of the log, page by page, by two snapshots. reading.go draws its states. It is used by one
// goroutine; its cursor is ahead of what is published, and of what is saved.
//
// Its work is bounded. A call of next makes three reads at most: a look for cuts and a page; or a page, a look for
// cuts and a page; or a page and a look at the window's transactions; or a list of places and a page. The answer of each is
// bounded too: a page by limit and bytes, the cuts by cutsRead, the transactions by readTransactions, the places by listAhead. If a window
// holds nothing of the lane, the call returns an empty page and leaves what comes after it to the next call. A page that cannot
// be read is read by halves (isolate.go): that takes twice the logarithm of limit more reads at most. A read of a page is two
// statements if a row turns out not to be small, and one otherwise.
type logReader struct {
	pool   database
	sql    *sqlschema.Statements
	lane   int
	token  string
	limit  int   // events of a page
	bytes  int64 // of their payloads and headers; a page ends after the event with which it has so many
	places int   // of events that are listed in advance; at least, two pages
	span   int64 // events of all lanes that a window of a backlog should hold: most of a page for each
	now    func() time.Time
	most   pageSize // how many events the next page may have

	fair     *overtaking                         // nil: tenants are not told apart
	handed   cursor                              // after the last page that the lane has
	notAhead func(err error, rest time.Duration) // says that the log could not be read ahead

	at     reading
	readAt time.Time // when next was last called

	sized   bool  // the last page that had rows had one that was not small: the next is read with its bytes counted
	largest int64 // size of a row of the last page
	rows    int   // of the last page
	texts   []byte
	intern  map[string]string
}

const cutsRead = 200 // at most, from which the end of a window is chosen

// listAhead is how many places to list.
func (r *logReader) listAhead() int { return max(r.places, 2*r.limit) }

// next reads the next page. A page without events ends its window: the last page, or one that moves the cursor.
func (r *logReader) next(ctx context.Context) (page, error) {
	now := r.now()
	at := r.at.resume(now.Sub(r.readAt))
	r.readAt = now
	if at.state == lagging {
		c, found, err := r.readCut(ctx, at)
		if err != nil {
			return page{}, err
		}
		if found {
			at = at.toCut(c)
		}
	}
	if at.wantsList(r.limit) {
		next, err := r.readPlaces(ctx, at)
		if err != nil {
			return page{}, err
		}
		at = at.byPlan(at.plan.listed(next, r.listAhead()))
	}
	events, upto, full, err := r.read(ctx, at)
	if err != nil {
		return page{}, err
	}
	if at.exceeds(full) {
		c, found, err := r.readCut(ctx, at)
		if err != nil {
			return page{}, err
		}
		if found {
			at = at.toCut(c)
			if events, upto, full, err = r.read(ctx, at); err != nil {
				return page{}, err
			}
		}
	}
	var last int64
	if len(events) > 0 {
		last = events[len(events)-1].seq
	}
	after := at.after(upto, full, last)
	if after.wantsPlan() {
		p, err := r.readPlan(ctx, after)
		if err != nil {
			return page{}, err
		}
		after = after.byPlan(p)
	}
	r.at = after
	return page{
		events: events,
		window: cursor{done: at.cursor.done, upto: upto},
		after:  after.cursor,
		moves:  len(events) > 0 || !at.opens(),
		last:   at.opens() && !full,
	}, nil
}

// skip notes that a lane that has read everything had nothing more up to a later moment, if it is known. What began since it last read, and
// is a backlog when it ends, is read from the index then, and not sorted.
func (r *logReader) skip(emptyUpTo *string) {
	if emptyUpTo != nil {
		r.at.cursor = cursor{done: *emptyUpTo}
	}
}

// readCut finds where the next window of a backlog should end: at a later snapshot that the log holds, if there is one.
func (r *logReader) readCut(ctx context.Context, at reading) (cut, bool, error) {
	done, err := parseSnapshot(at.cursor.done)
	if err != nil {
		return cut{}, false, fmt.Errorf("read cuts: %w", err)
	}
	rows, err := r.pool.Query(ctx, r.sql.In(readCuts), at.cursor.done, min(cutsRead, 2+r.span/500), r.token)
	if err != nil {
		return cut{}, false, fmt.Errorf("read cuts: %w", err)
	}
	cuts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (cut, error) {
		var text string
		var xid, seq *int64
		if err := row.Scan(&text, &xid, &seq); err != nil {
			return cut{}, err
		}
		if xid == nil {
			return cut{}, stateError(text)
		}
		s, err := parseSnapshot(text)
		if err != nil {
			return cut{}, err
		}
		if !s.follows(done) {
			return cut{}, nil
		}
		return cut{upto: s.without(uint64(*xid)).String(), seq: *seq}, nil
	})
	if err != nil {
		return cut{}, false, fmt.Errorf("read cuts: %w", err)
	}
	cuts = slices.DeleteFunc(cuts, func(c cut) bool { return c.upto == "" })
	chosen, found := chooseCut(cuts, r.span)
	return chosen, found, nil
}

// readPlan looks for the big transactions of the rest of a window.
func (r *logReader) readPlan(ctx context.Context, at reading) (plan, error) {
	rows, err := r.pool.Query(ctx, r.sql.In(readTransactions), r.lane, at.cursor.done, at.cursor.upto, at.cursor.pos, r.limit, r.token)
	if err != nil {
		return plan{}, fmt.Errorf("read the window's transactions: %w", err)
	}
	big, err := collectPlaces(rows)
	if err != nil {
		return plan{}, fmt.Errorf("read the window's transactions: %w", err)
	}
	return plan{big: big.xids}, nil
}

// readPlaces lists where the next events of a window are, but for those of the big transactions.
func (r *logReader) readPlaces(ctx context.Context, at reading) (places, error) {
	rows, err := r.pool.Query(ctx, r.sql.In(readPlaces), r.lane, at.cursor.done, at.cursor.upto, at.cursor.pos, r.listAhead(), r.token, texts(at.plan.big))
	if err != nil {
		return places{}, fmt.Errorf("read places of the window: %w", err)
	}
	next, err := collectPlaces(rows)
	if err != nil {
		return places{}, fmt.Errorf("read places of the window: %w", err)
	}
	return next, nil
}

// collectPlaces reads rows of a transaction and a number. A row without a number says why the reader must stop.
func collectPlaces(rows pgx.Rows) (places, error) {
	var to places
	var xid string
	var n *int64
	_, err := pgx.ForEachRow(rows, []any{&xid, &n}, func() error {
		if n == nil {
			return stateError(xid)
		}
		x, err := strconv.ParseInt(xid, 10, 64)
		to.xids, to.seqs = append(to.xids, x), append(to.seqs, *n)
		return err
	})
	return to, err
}

// readUpTo is read of a page of at most limit events. In a backlog, while rows are small, it reads them as such. Otherwise their bytes are
// counted: for the few rows of a page that is read as they come that costs nothing.
func (r *logReader) readUpTo(ctx context.Context, at reading, limit int) (events []logEvent, upto string, full bool, err error) {
	small := smallBound(r.bytes, limit)
	if at.state != live && !r.sized {
		events, upto, _, err := r.readPage(ctx, at, limit, readPage, readPlanned, small)
		if err != nil || r.largest <= small {
			return events, upto, len(events) == limit, err
		}
		r.sized = true
	}
	events, upto, bytes, err := r.readPage(ctx, at, limit, readSizedPage, readSizedPlanned, r.bytes)
	if len(events) > 0 {
		r.sized = r.largest > small
	}
	return events, upto, len(events) == limit || bytes >= r.bytes, err
}

// smallBound is the size of a row if so many of them have so many bytes at most together: see smallRows.
func smallBound(bytes int64, limit int) int64 { return min(bytes/int64(limit), maxSmall) }

// readPage reads a page by one of two statements, as the state says. bytes is what it has, if they are counted. It notes the size of the largest row.
func (r *logReader) readPage(ctx context.Context, at reading, limit int, ofWindow, ofPlan string, bound int64) (events []logEvent, upto string, bytes int64, err error) {
	var rows pgx.Rows
	if at.state == planned {
		next := at.plan.page(limit)
		rows, err = r.pool.Query(ctx, r.sql.In(ofPlan), r.lane, next.xids, at.cursor.upto, at.cursor.pos, limit, r.token, texts(at.plan.big), next.seqs, bound)
	} else {
		var upto *string
		if !at.opens() {
			upto = &at.cursor.upto
		}
		rows, err = r.pool.Query(ctx, r.sql.In(ofWindow), r.lane, at.cursor.done, upto, at.cursor.pos, limit, r.token, bound)
	}
	if err != nil {
		return nil, "", 0, fmt.Errorf("read page: %w", err)
	}
	return r.collect(rows, limit)
}

// collect reads the rows of a page: its header, and at most limit events. bytes is that of the last row.
func (r *logReader) collect(rows pgx.Rows, limit int) (events []logEvent, upto string, bytes int64, err error) {
	defer rows.Close()
	var header logEvent
	if !rows.Next() {
		rows.Close()
		if err := rows.Err(); err != nil {
			return nil, "", 0, fmt.Errorf("read page: %w", err)
		}
		return nil, "", 0, errors.New("read page: the header is missing")
	}
	if err := r.scan(rows, &header, &bytes); err != nil {
		return nil, "", 0, fmt.Errorf("read page: %w", err)
	}
	r.largest = 0
	for rows.Next() {
		if events == nil {
			events = make([]logEvent, 0, min(limit, max(256, r.rows+r.rows/8))) // pages of a backlog are much alike
		}
		events = append(events, logEvent{})
		if err := r.scan(rows, &events[len(events)-1], &bytes); err != nil {
			return nil, "", 0, fmt.Errorf("read page: %w", err)
		}
	}
	r.rows = len(events)
	rows.Close()
	if err := rows.Err(); err != nil {
		return nil, "", 0, fmt.Errorf("read page: %w", err)
	}
	if header.Source != "ok" {
		return nil, "", 0, fmt.Errorf("read page: %w", stateError(header.Source))
	}
	return events, header.ID, bytes, nil
}

// stateError turns a statement's reason for stopping the reader into an error.
func stateError(state string) error {
	switch state {
	case "standby":
		return errStandby
	case "isolation":
		return errIsolation
	case "ahead":
		return errAhead
	default:
		return errCrashed
	}
}

// scan reads a row of readPage, and how many bytes the page has with it. In the binary format it takes the values as they come
// on the wire, which is several times faster than Scan. Simple protocol and exec mode give text.
func (r *logReader) scan(rows pgx.Rows, to *logEvent, bytes *int64) error {
	if rows.FieldDescriptions()[0].Format != pgx.BinaryFormatCode {
		var headers, malformed *string
		var at pgtype.Timestamptz
		var size int64
		if err := rows.Scan(&to.seq, &to.ID, &to.Source, &to.Type, &to.Topic, &to.Key, &at, &headers, &to.Payload, &to.letter, bytes, &malformed, &size); err != nil {
			return err
		}
		r.largest = max(r.largest, size)
		to.Time = momentOf(at)
		to.examine([]byte(text(headers)), text(malformed))
		return nil
	}
	v := rows.RawValues()
	to.seq = int64(binary.BigEndian.Uint64(v[0]))
	r.texts = append(append(r.texts[:0], v[1]...), v[5]...)
	idAndKey := string(r.texts) // one string in memory, not two
	to.ID, to.Key = idAndKey[:len(v[1])], idAndKey[len(v[1]):]
	to.Source, to.Type, to.Topic = r.word(v[2]), r.word(v[3]), r.word(v[4])
	to.Time = microseconds(int64(binary.BigEndian.Uint64(v[6])))
	if v[8] != nil {
		to.Payload = make([]byte, len(v[8]))
		copy(to.Payload, v[8])
	}
	to.letter = int64(binary.BigEndian.Uint64(v[9]))
	*bytes = int64(binary.BigEndian.Uint64(v[10]))
	to.examine(v[7], string(v[11]))
	r.largest = max(r.largest, int64(binary.BigEndian.Uint64(v[12])))
	return nil
}

// word returns the string of b, the same one for the few sources, types and topics that repeat in every row.
func (r *logReader) word(b []byte) string {
	if s, known := r.intern[string(b)]; known {
		return s
	}
	s := string(b)
	if len(b) > 255 {
		return s
	}
	if r.intern == nil || len(r.intern) > 1000 {
		r.intern = map[string]string{}
	}
	r.intern[s] = s
	return s
}

func texts(xids []int64) []string {
	out := make([]string, len(xids))
	for i, xid := range xids {
		out[i] = strconv.FormatInt(xid, 10)
	}
	return out
}
