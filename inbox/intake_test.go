package inbox

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

// What becomes of the event is decided by then. Nothing that keeps it from being written can be the handler's doing.
func TestIntake_DeadlocksUnderAVerdictRunNoHandlerAgain(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	b := setup(t)
	var runs int
	in := b.inbox(func(c *Config) { c.ImmediateRetries, c.Retry.Attempts = 5, 10 })
	in.Handle("order.placed", func(context.Context, pgx.Tx, holdfast.Event) error {
		runs++
		return retry.Permanent(errors.New("no such order"))
	})
	pgtest.Exec(t, b.db, `create sequence tries;
		create function deadlocked() returns trigger language plpgsql as $$ begin
			if nextval('tries') <= 22 then raise exception using errcode = '40P01', message = 'deadlock detected'; end if;
			return new;
		end $$;
		create trigger deadlocked before insert on holdfast.letter for each row execute function deadlocked()`)
	b.receive(in, event("1", "k"), Dead)
	if runs != 1 {
		t.Errorf("the handler ran %d times, want once", runs)
	}
	if n := b.count("select count(*) from holdfast.letter where attempts = 1 and cardinality(errors) = 1"); n != 1 {
		t.Error("the letter counts more than the one attempt")
	}
}
