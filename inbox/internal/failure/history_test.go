package failure

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
	"github.com/holdfast-go/holdfast/inbox/internal/loop"
	"github.com/holdfast-go/holdfast/internal/test/seed"
	"github.com/holdfast-go/holdfast/retry"
)

func pgError(code string) error {
	return fmt.Errorf("update stock: %w", &pgconn.PgError{Code: code})
}

func TestHistory_JudgeSaysWhoseFaultAFailureIs(t *testing.T) {
	boom := errors.New("boom")
	for name, row := range map[string]struct {
		err  error
		c    Facts
		want Fault
	}{
		"a handler's error is the event's":                         {boom, Facts{InHandler: true}, FaultEvent},
		"a handler's constraint violation is the event's":          {pgError("23505"), Facts{InHandler: true}, FaultEvent},
		"a handler's lock timeout is the event's":                  {pgError("55P03"), Facts{InHandler: true}, FaultEvent},
		"a serialization failure is nobody's":                      {pgError("40001"), Facts{InHandler: true}, FaultContended},
		"a deadlock is nobody's":                                   {pgError("40P01"), Facts{InHandler: true}, FaultContended},
		"a deadlock in our own statements is nobody's":             {pgError("40P01"), Facts{}, FaultContended},
		"a serialization failure at COMMIT is nobody's":            {pgError("40001"), Facts{Committing: true}, FaultContended},
		"a deferred constraint at COMMIT is the event's":           {pgError("23503"), Facts{Committing: true}, FaultEvent},
		"a COMMIT answered by ROLLBACK is the event's":             {pgx.ErrTxCommitRollback, Facts{Committing: true}, FaultEvent},
		"a COMMIT without an answer is unknown":                    {io.ErrUnexpectedEOF, Facts{Committing: true}, FaultUnknown},
		"a COMMIT without an answer is unknown when stopped":       {context.Canceled, Facts{Committing: true, Stopped: true}, FaultUnknown},
		"a COMMIT around which the server stopped is unknown":      {pgError("57P01"), Facts{Committing: true}, FaultUnknown},
		"a connection that broke under the handler is lost":        {boom, Facts{InHandler: true, ConnLost: true}, FaultLost},
		"so is one that the server ended":                          {pgError("57P01"), Facts{InHandler: true, ConnLost: true}, FaultLost},
		"one that broke under our own statement is the database's": {boom, Facts{ConnLost: true}, FaultDatabase},
		"a server that shuts down is the database's":               {pgError("57P01"), Facts{}, FaultDatabase},
		"too many connections are the database's":                  {pgError("53300"), Facts{ConnLost: true}, FaultDatabase},
		"a standby is the database's":                              {pgError("25006"), Facts{}, FaultDatabase},
		"a server that shuts down under the handler is lost":       {pgError("57P01"), Facts{InHandler: true}, FaultLost},
		"so is one that gives a handler's query no more room":      {pgError("53400"), Facts{InHandler: true}, FaultLost},
		"and another server that the handler cannot reach":         {pgError("08001"), Facts{InHandler: true}, FaultLost},
		"a full disk under our own statement is the database's":    {pgError("53100"), Facts{}, FaultDatabase},
		"and at COMMIT it is unknown":                              {pgError("53100"), Facts{Committing: true}, FaultUnknown},
		"another server without a connection left is lost":         {pgError("53300"), Facts{InHandler: true}, FaultLost},
		"so is one that starts":                                    {pgError("57P03"), Facts{InHandler: true}, FaultLost},
		"memory may be what the handler's query wants":             {pgError("53200"), Facts{InHandler: true}, FaultLost},
		"a file that is not there may be the payload's":            {pgError("58P01"), Facts{InHandler: true}, FaultLost},
		"a handler whose time was up is the event's":               {context.DeadlineExceeded, Facts{InHandler: true, TimedOut: true, ConnLost: true}, FaultEvent},
		"a handler that was told to stop is nobody's":              {context.Canceled, Facts{InHandler: true, Stopped: true, ConnLost: true}, FaultStopped},
		"our own statement's failure is the database's":            {pgError("42P01"), Facts{}, FaultDatabase},
		"values that our own statement may not write are not":      {pgError("P0001"), Facts{}, FaultEvent},
		"nor those that a constraint refuses":                      {pgError("23514"), Facts{}, FaultEvent},
		"a timeout on a connection that swallows is the network's": {context.DeadlineExceeded, Facts{InHandler: true, TimedOut: true, ConnLost: true, CutOff: true}, FaultLost},
		"a partition that was lost is fenced":                      {fmt.Errorf("take: %w", ErrFenced), Facts{Stopped: true}, FaultFenced},
		"a copy of an event in hand is in flight":                  {fmt.Errorf("lock: %w", ErrInFlight), Facts{}, FaultInFlight},
	} {
		if got := FaultOf(row.err, row.c); got != row.want {
			t.Errorf("%s: judged %v, want %v", name, got, row.want)
		}
	}
}

// reasoningError is an error of a handler whose method has the name of one of ours.
type reasoningError struct{}

func (reasoningError) Error() string  { return "Ann Lee" }
func (reasoningError) Reason() string { panic("it is not ours to call") }

func TestHistory_AReasonIsThatOfAPayloadErrorOfOurs(t *testing.T) {
	for name, row := range map[string]struct {
		err  error
		want string
	}{
		"a handler's, with a method of that name": {reasoningError{}, "its handler returned a permanent failure"},
		"a handler's, of our public type":         {&holdfast.PayloadError{Problem: "Ann Lee"}, "its handler returned a permanent failure"},
		"ours":                                    {&PayloadError{Err: errors.New("Ann Lee")}, "payload: it cannot be decoded"},
		"ours, of a codec that says more":         {&PayloadError{Err: &holdfast.PayloadError{Field: "card", Problem: "it is too long"}}, `payload: field "card": it is too long`},
	} {
		_, v := History{}.After(retry.Policy{Attempts: 5}, Error{FaultEvent, retry.Permanent(row.err)}, time.Now(), 0.5)
		if v.Do != ActDead || v.Reason != row.want {
			t.Errorf("%s: %s because %q, want a dead letter because %q", name, v.Do, v.Reason, row.want)
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
		h    History
		f    Fault
		err  error
		want Verdict
	}{
		"the first failure is tried again in place":        {p, History{Attempts: 1, Quick: 2}, FaultEvent, boom, Verdict{Do: ActAgain, Delay: 15 * time.Millisecond}},
		"one that used up its time is stored at once":      {p, History{Attempts: 1, Quick: 2}, FaultEvent, &HandlerError{Err: boom, TimedOut: true}, Verdict{Do: ActStore, Delay: 500 * time.Millisecond}},
		"without quick tries it is stored":                 {p, History{Attempts: 1}, FaultEvent, boom, Verdict{Do: ActStore, Delay: 500 * time.Millisecond}},
		"a stored event is never tried again in place":     {p, History{Attempts: 1, Quick: 2, Stored: true}, FaultEvent, boom, Verdict{Do: ActStore, Delay: 500 * time.Millisecond}},
		"the delay grows with the attempts":                {p, History{Attempts: 2}, FaultEvent, boom, Verdict{Do: ActStore, Delay: time.Second}},
		"the last attempt is dead":                         {p, History{Attempts: 3, Quick: 2}, FaultEvent, boom, Verdict{Do: ActDead}},
		"a permanent failure is dead at once":              {p, History{Attempts: 1, Quick: 2}, FaultEvent, retry.Permanent(boom), Verdict{Do: ActDead}},
		"the wait that was asked for is kept":              {p, History{Attempts: 1, Quick: 2}, FaultEvent, retry.After(boom, time.Hour), Verdict{Do: ActStore, Delay: time.Hour}},
		"a wait that was asked for does not add attempts":  {p, History{Attempts: 3}, FaultEvent, retry.After(boom, time.Hour), Verdict{Do: ActDead}},
		"what would come after the budget is dead":         {budget, History{Attempts: 1, Age: 9800 * time.Millisecond}, FaultEvent, boom, Verdict{Do: ActDead}},
		"contention costs nothing":                         {p, History{Attempts: 2}, FaultContended, pgError("40001"), Verdict{Do: ActAgain, Free: true, Delay: 1500 * time.Microsecond}},
		"contention without end becomes a failure":         {p, History{Attempts: 1, Contended: maxContended}, FaultContended, pgError("40001"), Verdict{Do: ActStore, Delay: 500 * time.Millisecond}},
		"an absent database is waited for, however long":   {p, History{Attempts: 3, Waits: 1000, WaitsLong: true}, FaultDatabase, boom, Verdict{Do: ActAgain, Free: true, Delay: loop.DatabaseCap / 4 * 3}},
		"an absent database ends a try that must not wait": {p, History{Waits: 2}, FaultDatabase, boom, Verdict{Do: ActReturn, Free: true}},
		"a lost connection costs nothing":                  {p, History{Attempts: 2, Waits: 2}, FaultLost, boom, Verdict{Do: ActAgain, Free: true, Delay: loop.DatabaseBase / 4 * 3}},
		"an unknown COMMIT is looked up":                   {p, History{WaitsLong: true}, FaultUnknown, boom, Verdict{Do: ActAgain, Free: true, Delay: loop.DatabaseBase / 4 * 3}},
		"an unable server costs nothing":                   {p, History{Attempts: 3, Waits: 9, Losses: 9, Unable: 3}, FaultUnable, boom, Verdict{Do: ActAgain, Free: true, Delay: loop.DatabaseBase * 6}},
		"at last it is waited for in the key's queue":      {p, History{Attempts: 3, Unable: 4}, FaultUnable, boom, Verdict{Do: ActStore, Free: true, Delay: loop.DatabaseBase * 12}},
		"there it is tried less and less often":            {p, History{Attempts: 3, Unable: 100, Stored: true}, FaultUnable, boom, Verdict{Do: ActStore, Free: true, Delay: unableCap / 4 * 3}},
		"being told to stop costs nothing":                 {p, History{Attempts: 3}, FaultStopped, boom, Verdict{Do: ActReturn, Free: true}},
		"being fenced costs nothing":                       {p, History{Attempts: 3}, FaultFenced, boom, Verdict{Do: ActReturn, Free: true}},
		"who has an event without room waits with it":      {p, History{Attempts: 1, WaitsLong: true}, FaultFull, ErrFull, Verdict{Do: ActReturn, Free: true}},
		"a stored event that finds no room comes later":    {p, History{Attempts: 1, WaitsLong: true, Stored: true}, FaultFull, ErrFull, Verdict{Do: ActStore, Free: true, Delay: loop.FullBase / 4 * 3}},
		"an event in flight is left to its sender":         {p, History{Attempts: 3}, FaultInFlight, boom, Verdict{Do: ActReturn, Free: true}},
	} {
		got := decide(row.p, row.h, row.f, row.err, 0.5)
		if got.Do == ActDead && got.Reason == "" {
			t.Errorf("%s: a death without a reason", name)
		}
		got.Reason = ""
		if got != row.want {
			t.Errorf("%s: decided %+v, want %+v", name, got, row.want)
		}
	}
}

func TestHistory_AConnectionThatIsLostAgainAndAgainIsTheEventsFailure(t *testing.T) {
	boom := errors.New("boom")
	for _, f := range []Fault{FaultLost, FaultUnknown} {
		for losses := range MaxLosses - 1 {
			if got, err := amounts(History{Losses: losses}, f, boom); got != f || err != boom {
				t.Errorf("%v after %d others amounts to %v, %v", f, losses, got, err)
			}
		}
		got, err := amounts(History{Losses: MaxLosses - 1}, f, boom)
		if got != FaultEvent || !errors.Is(err, boom) || !strings.Contains(err.Error(), "5 times in a row") {
			t.Errorf("%v at last amounts to %v, %v", f, got, err)
		}
	}
	for _, f := range []Fault{FaultEvent, FaultContended, FaultDatabase, FaultStopped, FaultFenced, FaultFull, FaultUnable} {
		if got, err := amounts(History{Losses: 100}, f, boom); got != f || err != boom {
			t.Errorf("%v amounts to %v, %v", f, got, err)
		}
	}
}

// However often, and wherever in the transaction, a server says that its disk is full: no attempt is spent, the event goes into its
// queue, and what was lost before counts no more.
func TestHistory_AFullDiskSpendsNoAttemptHoweverOften(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Budget: time.Second}
	for _, code := range []string{"53100", "58030"} {
		for _, stored := range []bool{false, true} {
			for _, c := range []Facts{{InHandler: true}, {InHandler: true, ConnLost: true}, {InHandler: true, Behind: true}, {Committing: true}} {
				h, kept, stores := History{Attempts: 2, Losses: MaxLosses - 1, Stored: stored}, 0, 0
				for range 100 {
					var v Verdict
					row := h.Row()
					h.Losses, h.Unable = 77, 77
					if h, v = h.FromRow(row).After(p, Error{FaultOf(pgError(code), c), pgError(code)}, time.Now(), 0.5); !v.Free || v.Failure.Err == nil {
						t.Fatalf("%s, stored %v, %+v: %+v", code, stored, c, v)
					}
					if v.Do == ActStore {
						stores++
					}
					kept = h.Row()
				}
				want := 100 - (maxUnable - 1)
				if stored {
					want = 100
				}
				if h.Attempts != 2 || h.Losses != 0 || !h.First.IsZero() || kept != -100 || stores != want {
					t.Errorf("%s, stored %v, %+v: %+v after 100, of which %d went into the queue, want %d", code, stored, c, h, stores, want)
				}
				if h, _ = h.After(p, Error{FaultLost, io.EOF}, time.Now(), 0.5); h.Losses != 1 || h.Unable != 0 || h.Row() != 1 {
					t.Errorf("%s, stored %v, %+v: after a lost connection %+v", code, stored, c, h)
				}
			}
		}
	}
}

func TestHistory_AHandlerThatSaysWhatIsToBeDoneAboutAFullDiskIsBelieved(t *testing.T) {
	t.Parallel()
	p := retry.Policy{Attempts: 3, Budget: -1}
	for name, row := range map[string]struct {
		err  error
		want Action
	}{
		"it is permanent":    {retry.Permanent(pgError("53100")), ActDead},
		"it says when again": {retry.After(pgError("53100"), time.Hour), ActStore},
	} {
		h := History{Losses: MaxLosses - 1}
		h, v := h.After(p, Error{FaultOf(row.err, Facts{InHandler: true}), row.err}, time.Now(), 0.5)
		if v.Do != row.want || v.Free || h.Attempts != 1 {
			t.Errorf("%s: %+v, %d attempts", name, v, h.Attempts)
		}
	}
}

func TestHistory_NoEventIsTriedMoreOftenThanItsPolicySays(t *testing.T) {
	seed := seed.New(t)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		p := retry.Policy{Attempts: 1 + random.IntN(12), Base: time.Duration(1 + random.Int64N(1e9)), Budget: -1}
		p.Cap = p.Base + time.Duration(random.Int64N(1e12))
		h := History{Quick: random.IntN(4), WaitsLong: true}
		for range 10_000 {
			f := []Fault{FaultEvent, FaultContended, FaultDatabase, FaultUnknown}[random.IntN(4)]
			if f == FaultEvent {
				h.Attempts++
			}
			v := decide(p, h, f, errors.New("boom"), random.Float64())
			if v.Delay < 0 || v.Delay > max(p.Cap, loop.DatabaseCap) {
				t.Fatalf("seed %d: delay %s with cap %s", seed, v.Delay, p.Cap)
			}
			if h.Attempts > p.Attempts {
				t.Fatalf("seed %d: attempt %d of %d", seed, h.Attempts, p.Attempts)
			}
			if f == FaultDatabase || f == FaultUnknown {
				h.Waits++
				if v.Do != ActAgain || !v.Free {
					t.Fatalf("seed %d: %v of the database decided as %+v", seed, f, v)
				}
				continue
			}
			if f == FaultContended {
				h.Contended++
				if h.Contended > maxContended {
					h.Contended = 0
				}
				continue
			}
			if (v.Do == ActDead) != (h.Attempts == p.Attempts) {
				t.Fatalf("seed %d: attempt %d of %d decided as %+v", seed, h.Attempts, p.Attempts, v)
			}
			if v.Do == ActDead {
				break
			}
			if v.Do == ActAgain {
				h.Quick--
			}
			if h.Quick < 0 {
				t.Fatalf("seed %d: more quick tries than there were", seed)
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
		h    History
		f    Fault
		want History
		do   Action
		free bool
	}{
		"the first failure of an event":           {History{Quick: 1, Waits: 2, Losses: 1}, FaultEvent, History{Attempts: 1, First: at}, ActAgain, false},
		"a later one is as old as the first":      {History{Attempts: 1, First: before}, FaultEvent, History{Attempts: 2, First: before, Age: time.Hour}, ActStore, false},
		"a stored event was counted by its claim": {History{Attempts: 2, Age: time.Minute, Stored: true}, FaultEvent, History{Attempts: 2, Age: time.Minute, Stored: true}, ActStore, false},
		"contention is free":                      {History{Quick: 1}, FaultContended, History{Contended: 1, Quick: 1, First: at}, ActAgain, true},
		"contention without end is an attempt":    {History{Contended: maxContended, Quick: 1}, FaultContended, History{Attempts: 1, First: at}, ActAgain, false},
		"an outage is waited for":                 {History{WaitsLong: true}, FaultDatabase, History{Waits: 1, WaitsLong: true}, ActAgain, true},
		"a COMMIT without an answer is both":      {History{WaitsLong: true}, FaultUnknown, History{Waits: 1, Losses: 1, WaitsLong: true}, ActAgain, true},
		"a lost connection":                       {History{}, FaultLost, History{Losses: 1}, ActAgain, true},
		"one that is lost too often":              {History{Losses: MaxLosses - 1}, FaultLost, History{Attempts: 1, First: at}, ActStore, false},
		"a stored event does not wait in place":   {History{Attempts: 1, Stored: true, WaitsLong: true}, FaultDatabase, History{Attempts: 1, Waits: 1, Stored: true, WaitsLong: true}, ActStore, true},
		"nor where its connection was lost":       {History{Attempts: 1, Stored: true, WaitsLong: true}, FaultLost, History{Attempts: 1, Losses: 1, Stored: true, WaitsLong: true}, ActStore, true},
		"contention is no attempt for a verdict":  {History{Attempts: 3, Contended: maxContended, Quick: 1, First: before, Decided: true, WaitsLong: true}, FaultContended, History{Attempts: 3, Contended: maxContended, Quick: 1, Waits: 1, First: before, Age: time.Hour, Decided: true, WaitsLong: true}, ActAgain, true},
		"writing down a verdict is no attempt":    {History{Attempts: 3, First: before, Decided: true, WaitsLong: true}, FaultEvent, History{Attempts: 3, Waits: 1, First: before, Age: time.Hour, Decided: true, WaitsLong: true}, ActAgain, true},
	} {
		got, v := row.h.After(p, Error{row.f, boom}, at, 0.5)
		if got != row.want || v.Do != row.do || v.Free != row.free {
			t.Errorf("%s: %+v, %v, free %v; want %+v, %v, %v", name, got, v.Do, v.Free, row.want, row.do, row.free)
		}
	}
}

func TestHistory_ADecidedEventSpendsNoAttemptWhateverFails(t *testing.T) {
	for f := FaultEvent; f <= FaultInFlight; f++ {
		for _, waitsLong := range []bool{false, true} {
			h := History{Attempts: 2, Quick: 2, Decided: true, WaitsLong: waitsLong}
			for range 100 {
				var v Verdict
				h, v = h.After(retry.Policy{Attempts: 5}, Error{f, errors.New("boom")}, time.Now(), 0.5)
				if !v.Free || v.Do != ActAgain && v.Do != ActReturn {
					t.Fatalf("%v: %+v", f, v)
				}
			}
			if h.Attempts != 2 || h.Quick != 2 {
				t.Errorf("%v: %d attempts are spent and %d immediate ones left, want 2 and 2", f, h.Attempts, h.Quick)
			}
		}
	}
}
