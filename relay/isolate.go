package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/plain"
	"github.com/holdfast-go/holdfast/internal/private"
)

// This file finds the one row for which a statement over many fails. blameOf and pageSize decide; they know no database.

// blame says where the reason of an error may lie.
type blame uint8

const (
	elsewhere blame = iota // the connection, the server, a right, the schema: no row is to blame
	unclear                // it took too long, or too much: the server may be busy, or a row may be the reason
	damaged                // the storage: a row, or all of it
	aRow                   // what one of the rows holds
)

// blameOf judges an error of a statement. Errors of a server have five characters, the first two are their class.
func blameOf(err error) blame {
	var scan pgx.ScanArgError
	if errors.As(err, &scan) {
		return aRow
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || len(pg.Code) != 5 {
		return elsewhere
	}
	switch pg.Code {
	case "XX001", "XX002": // data_corrupted, index_corrupted
		return damaged
	case "XX000": // an allocation of more than 1 GiB, among others
		return aRow
	case "57014", "53200": // query_canceled, by a time-out; out_of_memory
		return unclear
	}
	switch pg.Code[:2] {
	case "22", "23", "54": // a value, a constraint, a limit of Postgres
		return aRow
	case "P0": // an exception of somebody's trigger, which may refuse every row
		return unclear
	}
	return elsewhere
}

// sessionsOr is an error of reading a row, or the session's in its place: if values that are right cannot be read either, the settings
// of the session or the types of the pool are the reason, and no row is.
func sessionsOr(ctx context.Context, db database, err error) error {
	var scan pgx.ScanArgError
	if !errors.As(err, &scan) {
		return err
	}
	if plain.Reads(ctx, db) {
		return err
	}
	return fmt.Errorf("times or bytes cannot be read in this session, so no row is to blame: look for a type that the pool registers, "+
		"and for a proxy that changes DateStyle or bytea_output: %v", err) // Without the cause: it would be a row's.
}

// raised says that an error is the exception of somebody's trigger.
func raised(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && strings.HasPrefix(pg.Code, "P0")
}

// pageSize is how many events the next page may have. A page that fails for one of its rows is read by halves, until the row
// is alone. After that pages grow again, so that not every page takes many tries. A lane that has failed twice for whatever
// reason begins with one event: if it fails again, it has made progress, or the error says for which row it fails. The zero
// value is a full page.
type pageSize int

// sizeAfter is the size with which a lane begins that has failed so many times in a row.
func sizeAfter(failures int) pageSize {
	if failures < 2 {
		return 0
	}
	return 1
}

func (s pageSize) of(limit int) int {
	if s <= 0 {
		return limit
	}
	return min(int(s), limit)
}

// failed is the size after a page of so many events has failed.
func (s pageSize) failed(events int) pageSize { return pageSize(max(events/2, 1)) }

// read is the size after a page of so many events was read.
func (s pageSize) read(limit int) pageSize {
	if s <= 0 || int(s) >= limit {
		return 0
	}
	return 2 * s
}

// read reads one page as the state says, and returns it with the end of its window. If one of its rows is to blame for an
// error, it reads a smaller one. A row that cannot be read alone is a page of its own: it is malformed. full says that the page
// was cut off by its limit of events or of bytes, so that there may be more in the window.
func (r *logReader) read(ctx context.Context, at reading) (events []logEvent, upto string, full bool, err error) {
	for {
		limit := r.most.of(r.limit)
		events, upto, full, err = r.readUpTo(ctx, at, limit)
		err = sessionsOr(ctx, r.pool, err)
		switch {
		case err == nil:
			r.most = r.most.read(r.limit)
			return events, upto, full, nil
		case blameOf(err) == elsewhere, blameOf(err) == unclear && (limit > 1 || r.most == 0):
			return nil, "", false, err
		case limit > 1:
			r.most = r.most.failed(limit)
		default:
			return r.unreadable(ctx, at, err)
		}
	}
}

// unreadable is the page of the one event that cannot be read. If that may not be the fault of what it holds, the error says
// which one it is.
func (r *logReader) unreadable(ctx context.Context, at reading, cause error) (events []logEvent, upto string, full bool, err error) {
	var until *string
	if !at.opens() {
		until = &at.cursor.upto
	}
	var e logEvent
	var segment, xid string
	row := r.pool.QueryRow(ctx, r.sql.In(readNext), r.lane, at.cursor.done, until, at.cursor.pos, r.token)
	var looked string
	if row.Scan(&looked, &segment, &xid, &e.seq, &e.ID, &e.Type, &e.Topic, &e.Key) != nil {
		return nil, "", false, cause
	}
	if at.opens() {
		// The page ended at another moment than this look: since then an event before the one to blame may have been committed. So the page
		// is read again, up to this look.
		if events, upto, full, cause = r.readUpTo(ctx, at.toCut(cut{upto: looked}), 1); cause == nil || blameOf(cause) == elsewhere {
			return events, upto, full, cause
		}
	}
	if b := blameOf(cause); b != aRow {
		advice := ""
		if b == damaged {
			advice = "its storage is damaged, copy what you can of it and delete it: "
		}
		return nil, "", false, fmt.Errorf("read the row of %s with xid %s and seq %d (topic %q, id %q): %s%w", segment, xid, e.seq, e.Topic, e.ID, advice, cause)
	}
	e.malformed = toValidText(private.Text(cause))
	return []logEvent{e}, looked, true, nil
}
