package retry

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// Whatever is asked, there is one class of the taxonomy for it, and wrapping changes nothing.
func FuzzEveryErrorHasAClassThatWrappingKeeps(f *testing.F) {
	for code := range sqlStates {
		f.Add(code, "", byte(0), int64(0))
	}
	f.Add("40001", "restart", byte(1), int64(time.Second))
	f.Add("23999", "of a class that is listed", byte(0), int64(0))
	f.Add("", "x", byte(2), int64(-1))
	f.Add("ZZZZZ", "\xff", byte(7), int64(1)<<62)
	f.Add("4", "", byte(8), int64(0))
	f.Fuzz(func(t *testing.T, code, text string, shape byte, after int64) {
		var err error = &pgconn.PgError{Code: code, Message: text, ConstraintName: text}
		if shape&1 != 0 {
			err = errors.New(text)
		}
		if shape&2 != 0 {
			err = Permanent(err)
		}
		if shape&4 != 0 {
			err = After(err, time.Duration(after))
		}
		class := Classify(err)
		if !class.known() {
			t.Fatalf("%v has the class %q, which is none", err, class)
		}
		want := Transient // of a text, and of a code that no line of the table speaks of
		listed, ok := sqlStates[code]
		switch _, asked := AfterOf(err); {
		case shape&1 == 0 && ok:
			want = listed
		case shape&1 == 0 && len(code) == 5:
			want = cmp.Or(sqlStates[code[:2]], Transient)
		case shape&1 == 0:
		case shape&2 != 0:
			want = Validation
		case asked:
			want = RateLimit
		}
		if class != want {
			t.Fatalf("%v has the class %q, want %q", err, class, want)
		}
		for _, wrapped := range []error{fmt.Errorf("%s: %w", text, err), errors.Join(err), fmt.Errorf("a: %w", fmt.Errorf("b: %w", err))} {
			if got := Classify(wrapped); got != class {
				t.Fatalf("%v: %q, and wrapped %q", err, class, got)
			}
			if IsPermanent(wrapped) != IsPermanent(err) || Retryable(wrapped) != Retryable(err) {
				t.Fatalf("%v is judged otherwise when it is wrapped", err)
			}
			d, said := AfterOf(err)
			if e, also := AfterOf(wrapped); d != e || said != also {
				t.Fatalf("%v asks for %v, and wrapped for %v", err, d, e)
			}
		}
		if shape&2 != 0 && !IsPermanent(err) {
			t.Fatalf("%v is not permanent any more", err)
		}
		var pg *pgconn.PgError
		if shape&1 == 0 && (!errors.As(err, &pg) || pg.Code != code) {
			t.Fatal("the cause is lost")
		}
	})
}
