// Package handlertx is the transaction that a handler gets. The handler does not end it by mistake, and cannot use it after
// it has returned.
package handlertx

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is a pgx.Tx whose Commit and Rollback only say why they are refused, and so do statements that begin with such a word:
// they are not sent. Its savepoints (Begin) can be ended. Once its owner has taken it back, every call answers with
// pgx.ErrTxClosed: the connection may be in another transaction by then.
type Tx struct {
	tx pgx.Tx
	*turn
	savepoint bool // which Commit and Rollback may end
}

// turn is what the handler's transaction and its savepoints share.
type turn struct {
	ctx     context.Context // the handler's
	refusal error           // of what would end the transaction
	over    atomic.Bool     // it has returned
	own     atomic.Pointer[context.Context]

	sent  atomic.Int64 // when it last used the connection; nanoseconds, 0 if it never did
	ended atomic.Bool  // it ended the transaction by a statement, or tried to
	alone atomic.Bool  // it needs a transaction of its own

	// What needs a transaction of its own is refused with this error, and not sent; nil where the handler has one.
	shared error

	before  func() error // called before the handler's first statement; nil if nothing is
	once    sync.Once
	unready error
}

// Give returns tx for a handler that runs under ctx. Refusal is what it gets for trying to end the transaction.
func Give(ctx context.Context, tx pgx.Tx, refusal error) *Tx {
	return &Tx{tx: tx, turn: &turn{ctx: ctx, refusal: refusal}}
}

// TakeBack ends the handler's use of it.
func (t *Tx) TakeBack() { t.over.Store(true) }

// RanOut says whether the handler closed the connection: by a time-out of its own, which ran out during the last
// statement.
func (t *Tx) RanOut() bool {
	own := t.own.Load()
	return own != nil && errors.Is((*own).Err(), context.DeadlineExceeded)
}

// Sent is when the handler last began to use the connection. It is zero if the handler never did.
func (t *Tx) Sent() time.Time {
	if sent := t.sent.Load(); sent != 0 {
		return time.Unix(0, sent)
	}
	return time.Time{}
}

// Ended says whether the handler ended the transaction by a statement of its own, or tried to. It may have begun another.
func (t *Tx) Ended() bool { return t.ended.Load() }

// Share says that other handlers have run in the transaction, or will. What only a handler with a transaction of its own may do is
// refused with this error, and not sent.
func (t *Tx) Share(refusal error) { t.shared = refusal }

// Before calls do before the handler's first statement. If do fails, nothing of the handler is sent: every call answers with
// pgx.ErrTxClosed.
func (t *Tx) Before(do func() error) { t.before = do }

// Unready is the error of what Before called. Ask for it once the handler has returned.
func (t *Tx) Unready() error { return t.unready }

// NeedsItsOwn says whether the handler did what only one with a transaction of its own may do, or tried to: it changed settings or
// its role, sent several statements in one text, used the connection itself, on which a COMMIT is not seen before it is carried
// out, or asked for it (Own).
func (t *Tx) NeedsItsOwn() bool { return t.alone.Load() }

// Own says that the handler needs a transaction of its own. The error is that of Share if others have run in this one, or will.
func (t *Tx) Own() error {
	t.alone.Store(true)
	return t.shared
}

// Over says whether the handler's use of it has ended (TakeBack).
func (t *Tx) Over() bool { return t.over.Load() }

// refuses is the error of a statement that would end the transaction, or that does not go with others in one. noteEnd finds what
// ended the transaction all the same.
func (t *turn) refuses(sql string) error {
	if needsItsOwn(sql) {
		t.alone.Store(true)
		if t.shared != nil {
			return t.shared
		}
	}
	if !endsTransaction(sql) {
		return nil
	}
	t.ended.Store(true)
	return t.refusal
}

// needsItsOwn reports that sql begins with SET or RESET, calls set_config, or may have several statements.
func needsItsOwn(sql string) bool {
	word, rest := firstWord(sql)
	if strings.EqualFold(word, "set") || strings.EqualFold(word, "reset") || strings.Contains(strings.ToLower(sql), "set_config") {
		return true
	}
	_, after, several := strings.Cut(rest, ";")
	return several && skipBlank(after) != ""
}

// endsTransaction reports that sql begins, after comments, with COMMIT, END, ABORT, PREPARE TRANSACTION, or a ROLLBACK that is not to a savepoint.
func endsTransaction(sql string) bool {
	word, rest := firstWord(sql)
	switch {
	case strings.EqualFold(word, "commit"), strings.EqualFold(word, "end"), strings.EqualFold(word, "abort"):
		return true
	case strings.EqualFold(word, "prepare"):
		second, _ := firstWord(rest)
		return strings.EqualFold(second, "transaction")
	case strings.EqualFold(word, "rollback"):
		second, rest := firstWord(rest)
		if strings.EqualFold(second, "work") || strings.EqualFold(second, "transaction") {
			second, _ = firstWord(rest)
		}
		return !strings.EqualFold(second, "to")
	default:
		return false
	}
}

// firstWord is the first word of sql after blanks and comments, and what follows it.
func firstWord(sql string) (word, rest string) {
	sql = skipBlank(sql)
	end := strings.IndexFunc(sql, func(r rune) bool { return !unicode.IsLetter(r) && r != '_' })
	if end < 0 {
		end = len(sql)
	}
	return sql[:end], sql[end:]
}

// skipBlank is sql without semicolons, blanks and comments at its beginning.
func skipBlank(sql string) string {
	for {
		sql = strings.TrimLeftFunc(sql, func(r rune) bool { return r == ';' || unicode.IsSpace(r) })
		switch {
		case strings.HasPrefix(sql, "--"):
			_, sql, _ = strings.Cut(sql, "\n")
		case strings.HasPrefix(sql, "/*"):
			sql = skipComment(sql)
		default:
			return sql
		}
	}
}

// skipComment is sql without the comment that it begins with. Comments may be nested.
func skipComment(sql string) string {
	for depth, i := 0, 0; i < len(sql); {
		switch {
		case strings.HasPrefix(sql[i:], "/*"):
			depth, i = depth+1, i+2
		case strings.HasPrefix(sql[i:], "*/"):
			depth, i = depth-1, i+2
		default:
			i++
		}
		if depth == 0 {
			return sql[i:]
		}
	}
	return ""
}

// noteEnd notes that the handler ended the transaction, if sql did, whose answer tag is. Of several statements tag answers the last.
func (t *turn) noteEnd(conn *pgx.Conn, sql, tag string) {
	switch first, _ := firstWord(sql); {
	case tag == "COMMIT", !conn.IsClosed() && conn.PgConn().TxStatus() == 'I':
	case tag == "ROLLBACK" && strings.Contains(strings.ToLower(sql), "chain"): // not: rollback to savepoint
	case (tag == "BEGIN" || tag == "START TRANSACTION") && !strings.EqualFold(first, "begin") && !strings.EqualFold(first, "start"): // after another statement
	default:
		return
	}
	t.ended.Store(true)
}

// uses records under which context the connection is used: own is the last one that the handler made itself. A call on a
// closed connection does not count, because it is not what closed it.
func (t *turn) uses(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() {
		return
	}
	t.sent.Store(time.Now().UnixNano())
	switch {
	case ctx == t.ctx:
		if t.own.Load() != nil {
			t.own.Store(nil)
		}
	default:
		t.own.Store(&ctx)
	}
}

// closedTx answers every call with pgx.ErrTxClosed.
var closedTx = func() pgx.Tx {
	b := &pgx.Batch{}
	b.BeginTx(pgx.TxOptions{})
	return pgx.FailedBatchResults(b, pgx.ErrTxClosed).Tx()
}()

func (t *Tx) now() pgx.Tx {
	if t.over.Load() {
		return closedTx
	}
	if t.before != nil {
		if t.once.Do(func() { t.unready = t.before() }); t.unready != nil {
			return closedTx
		}
	}
	return t.tx
}

// under is now for a call that takes a context.
func (t *Tx) under(ctx context.Context) pgx.Tx {
	tx := t.now()
	if tx == t.tx {
		t.uses(ctx, tx.Conn())
	}
	return tx
}

func (t *Tx) Begin(ctx context.Context) (pgx.Tx, error) {
	nested, err := t.under(ctx).Begin(ctx)
	if err != nil {
		return nil, err
	}
	return &Tx{tx: nested, turn: t.turn, savepoint: true}, nil
}

func (t *Tx) Commit(ctx context.Context) error {
	if !t.savepoint {
		return t.refusal
	}
	return t.under(ctx).Commit(ctx)
}

func (t *Tx) Rollback(ctx context.Context) error {
	if !t.savepoint {
		return t.refusal
	}
	return t.under(ctx).Rollback(ctx)
}

func (t *Tx) LargeObjects() pgx.LargeObjects { return t.now().LargeObjects() }

// Conn is the connection. Where the transaction is shared it panics instead: a COMMIT there would be that of others, too.
func (t *Tx) Conn() *pgx.Conn {
	t.alone.Store(true)
	if t.shared != nil {
		panic(t.shared)
	}
	return t.now().Conn()
}

func (t *Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	return t.under(ctx).CopyFrom(ctx, table, columns, rows)
}

func (t *Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	for _, q := range b.QueuedQueries {
		if err := t.refuses(q.SQL); err != nil {
			return pgx.FailedBatchResults(b, err)
		}
	}
	return t.under(ctx).SendBatch(ctx, b)
}

func (t *Tx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if err := t.refuses(sql); err != nil {
		return nil, err
	}
	return t.under(ctx).Prepare(ctx, name, sql)
}

func (t *Tx) Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if err := t.refuses(sql); err != nil {
		return pgconn.CommandTag{}, err
	}
	tx := t.under(ctx)
	tag, err := tx.Exec(ctx, sql, arguments...)
	if tx == t.tx {
		t.noteEnd(tx.Conn(), sql, tag.String())
	}
	return tag, err
}

func (t *Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := t.refuses(sql); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).Query()
	}
	return t.under(ctx).Query(ctx, sql, args...)
}

func (t *Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := t.refuses(sql); err != nil {
		return pgx.FailedBatchResults(&pgx.Batch{}, err).QueryRow()
	}
	return t.under(ctx).QueryRow(ctx, sql, args...)
}
