package inbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/retry"
)

func pgError(code string) error {
	return fmt.Errorf("update stock: %w", &pgconn.PgError{Code: code})
}

func TestHistory_JudgeSaysWhoseFaultAFailureIs(t *testing.T) {
	boom := errors.New("boom")
	for name, row := range map[string]struct {
		err  error
		c    failureFacts
		want fault
	}{
		"a handler's error is the event's":                         {boom, failureFacts{inHandler: true}, faultEvent},
		"a handler's constraint violation is the event's":          {pgError("23505"), failureFacts{inHandler: true}, faultEvent},
		"a handler's lock timeout is the event's":                  {pgError("55P03"), failureFacts{inHandler: true}, faultEvent},
		"a serialization failure is nobody's":                      {pgError("40001"), failureFacts{inHandler: true}, faultContended},
		"a deadlock is nobody's":                                   {pgError("40P01"), failureFacts{inHandler: true}, faultContended},
		"a deadlock in our own statements is nobody's":             {pgError("40P01"), failureFacts{}, faultContended},
		"a serialization failure at COMMIT is nobody's":            {pgError("40001"), failureFacts{committing: true}, faultContended},
		"a deferred constraint at COMMIT is the event's":           {pgError("23503"), failureFacts{committing: true}, faultEvent},
		"a COMMIT answered by ROLLBACK is the event's":             {pgx.ErrTxCommitRollback, failureFacts{committing: true}, faultEvent},
		"a COMMIT without an answer is unknown":                    {io.ErrUnexpectedEOF, failureFacts{committing: true}, faultUnknown},
		"a COMMIT without an answer is unknown when stopped":       {context.Canceled, failureFacts{committing: true, stopped: true}, faultUnknown},
		"a COMMIT around which the server stopped is unknown":      {pgError("57P01"), failureFacts{committing: true}, faultUnknown},
		"a connection that broke under the handler is lost":        {boom, failureFacts{inHandler: true, connLost: true}, faultLost},
		"so is one that the server ended":                          {pgError("57P01"), failureFacts{inHandler: true, connLost: true}, faultLost},
		"one that broke under our own statement is the database's": {boom, failureFacts{connLost: true}, faultDatabase},
		"a server that shuts down is the database's":               {pgError("57P01"), failureFacts{}, faultDatabase},
		"too many connections are the database's":                  {pgError("53300"), failureFacts{connLost: true}, faultDatabase},
		"a standby is the database's":                              {pgError("25006"), failureFacts{}, faultDatabase},
		"a server that shuts down under the handler is lost":       {pgError("57P01"), failureFacts{inHandler: true}, faultLost},
		"so is one that gives a handler's query no more room":      {pgError("53400"), failureFacts{inHandler: true}, faultLost},
		"and another server that the handler cannot reach":         {pgError("08001"), failureFacts{inHandler: true}, faultLost},
		"a handler whose time was up is the event's":               {context.DeadlineExceeded, failureFacts{inHandler: true, timedOut: true, connLost: true}, faultEvent},
		"a handler that was told to stop is nobody's":              {context.Canceled, failureFacts{inHandler: true, stopped: true, connLost: true}, faultStopped},
		"our own statement's failure is the database's":            {pgError("42P01"), failureFacts{}, faultDatabase},
		"values that our own statement may not write are not":      {pgError("P0001"), failureFacts{}, faultEvent},
		"nor those that a constraint refuses":                      {pgError("23514"), failureFacts{}, faultEvent},
		"a timeout on a connection that swallows is the network's": {context.DeadlineExceeded, failureFacts{inHandler: true, timedOut: true, connLost: true, cutOff: true}, faultLost},
		"a partition that was lost is fenced":                      {fmt.Errorf("take: %w", errFenced), failureFacts{stopped: true}, faultFenced},
		"a copy of an event in hand is in flight":                  {fmt.Errorf("lock: %w", ErrInFlight), failureFacts{}, faultInFlight},
	} {
		if got := faultOf(row.err, row.c); got != row.want {
			t.Errorf("%s: judged %v, want %v", name, got, row.want)
		}
	}
}

func TestHistory_DecideSaysWhatBecomesOfAFailure(t *testing.T) {
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	budget := p
	budget.Budget = 10 * time.Second
	boom := errors.New("boom")
	for name, row := range map[string]struct {
		p    retry.Policy
		h    history
		f    fault
		err  error
		want verdict
	}{
		"the first failure is tried again in place":        {p, history{attempts: 1, quick: 2}, faultEvent, boom, verdict{do: actAgain, delay: 15 * time.Millisecond}},
		"one that used up its time is stored at once":      {p, history{attempts: 1, quick: 2}, faultEvent, &handlerError{err: boom, timedOut: true}, verdict{do: actStore, delay: 500 * time.Millisecond}},
		"without quick tries it is stored":                 {p, history{attempts: 1}, faultEvent, boom, verdict{do: actStore, delay: 500 * time.Millisecond}},
		"a stored event is never tried again in place":     {p, history{attempts: 1, quick: 2, stored: true}, faultEvent, boom, verdict{do: actStore, delay: 500 * time.Millisecond}},
		"the delay grows with the attempts":                {p, history{attempts: 2}, faultEvent, boom, verdict{do: actStore, delay: time.Second}},
		"the last attempt is dead":                         {p, history{attempts: 3, quick: 2}, faultEvent, boom, verdict{do: actDead}},
		"a permanent failure is dead at once":              {p, history{attempts: 1, quick: 2}, faultEvent, retry.Permanent(boom), verdict{do: actDead}},
		"the wait that was asked for is kept":              {p, history{attempts: 1, quick: 2}, faultEvent, retry.After(boom, time.Hour), verdict{do: actStore, delay: time.Hour}},
		"a wait that was asked for does not add attempts":  {p, history{attempts: 3}, faultEvent, retry.After(boom, time.Hour), verdict{do: actDead}},
		"what would come after the budget is dead":         {budget, history{attempts: 1, age: 9800 * time.Millisecond}, faultEvent, boom, verdict{do: actDead}},
		"contention costs nothing":                         {p, history{attempts: 2}, faultContended, pgError("40001"), verdict{do: actAgain, free: true, delay: 1500 * time.Microsecond}},
		"contention without end becomes a failure":         {p, history{attempts: 1, contended: maxContended}, faultContended, pgError("40001"), verdict{do: actStore, delay: 500 * time.Millisecond}},
		"an absent database is waited for, however long":   {p, history{attempts: 3, waits: 1000, waitsLong: true}, faultDatabase, boom, verdict{do: actAgain, free: true, delay: databaseCap / 4 * 3}},
		"an absent database ends a try that must not wait": {p, history{waits: 2}, faultDatabase, boom, verdict{do: actReturn, free: true}},
		"a lost connection costs nothing":                  {p, history{attempts: 2, waits: 2}, faultLost, boom, verdict{do: actAgain, free: true, delay: databaseBase / 4 * 3}},
		"an unknown COMMIT is looked up":                   {p, history{waitsLong: true}, faultUnknown, boom, verdict{do: actAgain, free: true, delay: databaseBase / 4 * 3}},
		"being told to stop costs nothing":                 {p, history{attempts: 3}, faultStopped, boom, verdict{do: actReturn, free: true}},
		"being fenced costs nothing":                       {p, history{attempts: 3}, faultFenced, boom, verdict{do: actReturn, free: true}},
		"who has an event without room waits with it":      {p, history{attempts: 1, waitsLong: true}, faultFull, ErrFull, verdict{do: actReturn, free: true}},
		"a stored event that finds no room comes later":    {p, history{attempts: 1, waitsLong: true, stored: true}, faultFull, ErrFull, verdict{do: actStore, free: true, delay: fullBase / 4 * 3}},
		"an event in flight is left to its sender":         {p, history{attempts: 3}, faultInFlight, boom, verdict{do: actReturn, free: true}},
	} {
		got := decide(row.p, row.h, row.f, row.err, 0.5)
		if got.do == actDead && got.reason == "" {
			t.Errorf("%s: a death without a reason", name)
		}
		got.reason = ""
		if got != row.want {
			t.Errorf("%s: decided %+v, want %+v", name, got, row.want)
		}
	}
}

func TestHistory_OfManyEventsWithoutRoomOneIsTriedAtATime(t *testing.T) {
	for _, row := range []struct {
		tries, waiting int
		want           time.Duration
	}{
		{1, 1, fullBase},
		{3, 1, fullBase * 3},
		{1000, 1, fullCap / 4 * 3},
		{1000, 5, fullCap / 4 * 3 / 5},
		{1000, 1000, fullBase},
	} {
		if got := capacityDelay(row.tries, row.waiting, 0.5); got != row.want {
			t.Errorf("after %d tries, while %d wait: %s, want %s", row.tries, row.waiting, got, row.want)
		}
	}
}

func TestHistory_AConnectionThatIsLostAgainAndAgainIsTheEventsFailure(t *testing.T) {
	boom := errors.New("boom")
	for _, f := range []fault{faultLost, faultUnknown} {
		for losses := range maxLosses - 1 {
			if got, err := amounts(history{losses: losses}, f, boom); got != f || err != boom {
				t.Errorf("%v after %d others amounts to %v, %v", f, losses, got, err)
			}
		}
		got, err := amounts(history{losses: maxLosses - 1}, f, boom)
		if got != faultEvent || !errors.Is(err, boom) || !strings.Contains(err.Error(), "5 times in a row") {
			t.Errorf("%v at last amounts to %v, %v", f, got, err)
		}
	}
	for _, f := range []fault{faultEvent, faultContended, faultDatabase, faultStopped, faultFenced, faultFull} {
		if got, err := amounts(history{losses: 100}, f, boom); got != f || err != boom {
			t.Errorf("%v amounts to %v, %v", f, got, err)
		}
	}
}

func TestHistory_NoEventIsTriedMoreOftenThanItsPolicySays(t *testing.T) {
	seed := seed.New(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		p := retry.Policy{Attempts: 1 + random.IntN(12), Base: time.Duration(1 + random.Int64N(1e9)), Budget: -1}
		p.Cap = p.Base + time.Duration(random.Int64N(1e12))
		h := history{quick: random.IntN(4), waitsLong: true}
		for range 10_000 {
			f := []fault{faultEvent, faultContended, faultDatabase, faultUnknown}[random.IntN(4)]
			if f == faultEvent {
				h.attempts++
			}
			v := decide(p, h, f, errors.New("boom"), random.Float64())
			if v.delay < 0 || v.delay > max(p.Cap, databaseCap) {
				t.Fatalf("seed %d: delay %s with cap %s", seed, v.delay, p.Cap)
			}
			if h.attempts > p.Attempts {
				t.Fatalf("seed %d: attempt %d of %d", seed, h.attempts, p.Attempts)
			}
			if f == faultDatabase || f == faultUnknown {
				h.waits++
				if v.do != actAgain || !v.free {
					t.Fatalf("seed %d: %v of the database decided as %+v", seed, f, v)
				}
				continue
			}
			if f == faultContended {
				h.contended++
				if h.contended > maxContended {
					h.contended = 0
				}
				continue
			}
			if (v.do == actDead) != (h.attempts == p.Attempts) {
				t.Fatalf("seed %d: attempt %d of %d decided as %+v", seed, h.attempts, p.Attempts, v)
			}
			if v.do == actDead {
				break
			}
			if v.do == actAgain {
				h.quick--
			}
			if h.quick < 0 {
				t.Fatalf("seed %d: more quick tries than there were", seed)
			}
		}
	}
}

func TestHistory_StartAtIsTheLowerOfPositionAndCommittedOffset(t *testing.T) {
	for name, row := range map[string]struct {
		position, committed, first, end int64
		same, adopt, skip               bool
		want                            reading
		refusal                         string
	}{
		"a new consumer and group start at the first offset":             {position: source.NoOffset, committed: source.NoOffset, first: 0, end: 10, want: reading{0, 0}},
		"a new consumer of an old topic starts at the first offset left": {position: source.NoOffset, committed: source.NoOffset, first: 4, end: 10, want: reading{4, 4}},
		"a committed offset without a position promises nothing":         {position: source.NoOffset, committed: 7, first: 0, end: 10, want: reading{0, 0}},
		"unless it is adopted":                                                              {position: source.NoOffset, committed: 7, first: 0, end: 10, adopt: true, want: reading{7, 7}},
		"the group is further than Postgres":                                                {position: 5, committed: 8, first: 0, end: 10, want: reading{5, 5}},
		"Postgres is further than the group":                                                {position: 8, committed: 5, first: 0, end: 10, want: reading{5, 8}},
		"the group has forgotten its offset, or the topic":                                  {position: 8, committed: source.NoOffset, first: 3, end: 10, want: reading{3, 8}},
		"the group has forgotten its offset, not the topic":                                 {position: 8, committed: source.NoOffset, first: 3, end: 10, same: true, want: reading{8, 8}},
		"the group was set back on purpose, in the same log":                                {position: 8, committed: 4, first: 3, end: 10, same: true, want: reading{4, 8}},
		"the group has forgotten its offset, and the log ends before the position":          {position: 11, committed: source.NoOffset, first: 0, end: 10, same: true, refusal: "its position is 11"},
		"the group has forgotten its offset, and unhandled offsets of the log were deleted": {position: 5, committed: source.NoOffset, first: 7, end: 10, same: true, refusal: "2 offsets were deleted before they were handled"},
		"it has, and unhandled offsets were deleted":                                        {position: 5, committed: source.NoOffset, first: 7, end: 10, refusal: "2 offsets were deleted before they were handled"},
		"it has, and it is accepted":                                                        {position: 5, committed: source.NoOffset, first: 7, end: 10, skip: true, want: reading{7, 7}},
		"it has, and nothing was handled":                                                   {position: 0, committed: source.NoOffset, first: 0, end: 10, want: reading{0, 0}},
		"both are at the end":                                                               {position: 10, committed: 10, first: 0, end: 10, want: reading{10, 10}},
		"everything below the position was deleted":                                         {position: 8, committed: 8, first: 8, end: 10, want: reading{8, 8}},
		"only settled offsets were deleted":                                                 {position: 8, committed: 3, first: 6, end: 10, want: reading{6, 8}},
		"all settled offsets and no others were deleted":                                    {position: 8, committed: 3, first: 8, end: 10, want: reading{8, 8}},
		"the position lies behind the log":                                                  {position: 11, committed: 5, first: 0, end: 10, refusal: "its position is 11, but the log ends at 10"},
		"the committed offset lies behind the log":                                          {position: 5, committed: 11, first: 0, end: 10, refusal: "committed offset is 11, but the log ends at 10"},
		"an adopted offset lies behind the log":                                             {position: source.NoOffset, committed: 11, first: 0, end: 10, adopt: true, refusal: "is 11, but the log ends at 10"},
		"unhandled offsets were deleted":                                                    {position: 5, committed: 5, first: 7, end: 10, refusal: "2 offsets were deleted before they were handled"},
		"unhandled offsets were deleted and it is accepted":                                 {position: 5, committed: 5, first: 7, end: 10, skip: true, want: reading{7, 7}},
	} {
		got, err := startAt(row.position, row.committed, row.first, row.end, row.same, row.adopt, row.skip)
		switch {
		case row.refusal == "" && (err != nil || got != row.want):
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, row.want)
		case row.refusal != "" && (!errors.Is(err, ErrOffsetOutOfRange) || !strings.Contains(err.Error(), row.refusal)):
			t.Errorf("%s: error %v, want %q", name, err, row.refusal)
		}
	}
}

// The tracker agrees with a slow model that looks at every offset.
func TestHistory_NoOffsetAboveAnUnsettledEventIsEverCommitted(t *testing.T) {
	seed := seed.New(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		start := random.Int64N(100)
		tr := newTracker(start)
		open := map[int64]int{}
		var order []int64
		var all []int64
		next := start
		for range 400 {
			switch {
			case len(order) > 0 && random.IntN(2) == 0:
				i := random.IntN(len(order))
				tr.settle(order[i])
				delete(open, order[i])
				order = append(order[:i], order[i+1:]...)
			case random.IntN(5) == 0:
				next += random.Int64N(4)
				tr.skipTo(next)
			default:
				next += random.Int64N(3)
				size := random.IntN(100)
				tr.begin(next, int64(size), reservation{}, -next)
				open[next], order, all = size, append(order, next), append(all, next)
				next++
			}
			want, bytes := next, 0
			for offset, size := range open {
				want, bytes = min(want, offset), bytes+size
			}
			last := checkpoint{offset: source.NoOffset}
			for _, offset := range all {
				if offset < want {
					last = checkpoint{offset, -offset}
				}
			}
			if tr.last != last {
				t.Fatalf("seed %d: the last event below %d is %+v, want %+v", seed, want, tr.last, last)
			}
			if tr.low() != want || tr.bytes != int64(bytes) {
				t.Fatalf("seed %d: low is %d and %d bytes in hand, want %d and %d", seed, tr.low(), tr.bytes, want, bytes)
			}
		}
	}
}

func TestHistory_AHistoryCountsEachFailureAsWhatItIs(t *testing.T) {
	boom := errors.New("boom")
	p := retry.Policy{Attempts: 3, Base: time.Second, Cap: time.Minute, Budget: -1}
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	before := at.Add(-time.Hour)
	for name, row := range map[string]struct {
		h    history
		f    fault
		want history
		do   action
		free bool
	}{
		"the first failure of an event":           {history{quick: 1, waits: 2, losses: 1}, faultEvent, history{attempts: 1, first: at}, actAgain, false},
		"a later one is as old as the first":      {history{attempts: 1, first: before}, faultEvent, history{attempts: 2, first: before, age: time.Hour}, actStore, false},
		"a stored event was counted by its claim": {history{attempts: 2, age: time.Minute, stored: true}, faultEvent, history{attempts: 2, age: time.Minute, stored: true}, actStore, false},
		"contention is free":                      {history{quick: 1}, faultContended, history{contended: 1, quick: 1, first: at}, actAgain, true},
		"contention without end is an attempt":    {history{contended: maxContended, quick: 1}, faultContended, history{attempts: 1, first: at}, actAgain, false},
		"an outage is waited for":                 {history{waitsLong: true}, faultDatabase, history{waits: 1, waitsLong: true}, actAgain, true},
		"a COMMIT without an answer is both":      {history{waitsLong: true}, faultUnknown, history{waits: 1, losses: 1, waitsLong: true}, actAgain, true},
		"a lost connection":                       {history{}, faultLost, history{losses: 1}, actAgain, true},
		"one that is lost too often":              {history{losses: maxLosses - 1}, faultLost, history{attempts: 1, first: at}, actStore, false},
		"a stored event does not wait in place":   {history{attempts: 1, stored: true, waitsLong: true}, faultDatabase, history{attempts: 1, waits: 1, stored: true, waitsLong: true}, actStore, true},
		"nor where its connection was lost":       {history{attempts: 1, stored: true, waitsLong: true}, faultLost, history{attempts: 1, losses: 1, stored: true, waitsLong: true}, actStore, true},
		"contention is no attempt for a verdict":  {history{attempts: 3, contended: maxContended, quick: 1, first: before, decided: true, waitsLong: true}, faultContended, history{attempts: 3, contended: maxContended, quick: 1, waits: 1, first: before, age: time.Hour, decided: true, waitsLong: true}, actAgain, true},
		"writing down a verdict is no attempt":    {history{attempts: 3, first: before, decided: true, waitsLong: true}, faultEvent, history{attempts: 3, waits: 1, first: before, age: time.Hour, decided: true, waitsLong: true}, actAgain, true},
	} {
		got, v := row.h.after(p, failure{row.f, boom}, at, 0.5)
		if got != row.want || v.do != row.do || v.free != row.free {
			t.Errorf("%s: %+v, %v, free %v; want %+v, %v, %v", name, got, v.do, v.free, row.want, row.do, row.free)
		}
	}
}

// What becomes of the event is decided by then. Nothing that keeps it from being written can be the handler's doing.
func TestHistory_DeadlocksUnderAVerdictRunNoHandlerAgain(t *testing.T) {
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

func TestHistory_ADecidedEventSpendsNoAttemptWhateverFails(t *testing.T) {
	for f := faultEvent; f <= faultInFlight; f++ {
		for _, waitsLong := range []bool{false, true} {
			h := history{attempts: 2, quick: 2, decided: true, waitsLong: waitsLong}
			for range 100 {
				var v verdict
				h, v = h.after(retry.Policy{Attempts: 5}, failure{f, errors.New("boom")}, time.Now(), 0.5)
				if !v.free || v.do != actAgain && v.do != actReturn {
					t.Fatalf("%v: %+v", f, v)
				}
			}
			if h.attempts != 2 || h.quick != 2 {
				t.Errorf("%v: %d attempts are spent and %d immediate ones left, want 2 and 2", f, h.attempts, h.quick)
			}
		}
	}
}
