package relay

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

// goodServer is what readServer reads where a relay may run.
func goodServer() server {
	return server{token: "tok", isolation: "read committed", identifier: 7, adopted: 7, born: 1<<32 + 5, bornXmin: 5, doneXmax: 100, nowXmax: 100, version: holdfast.SchemaVersion}
}

func (s server) reply() reply {
	return reply{rows: [][]any{{s.token, s.standby, s.isolation, s.identifier, s.adopted, s.born, s.bornXmin, s.doneXmax, s.nowXmax, s.version}}}
}

func TestClaimScript_AServerWhereARelayMustNotRunIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*server)
		want   error
	}{
		"a good one":                   {func(*server) {}, nil},
		"a newer schema":               {func(s *server) { s.version++ }, nil},
		"a cursor behind it":           {func(s *server) { s.doneXmax-- }, nil},
		"a standby":                    {func(s *server) { s.standby = true }, ErrStandby},
		"an older schema":              {func(s *server) { s.version-- }, holdfast.ErrSchemaVersion},
		"another isolation":            {func(s *server) { s.isolation = "serializable" }, ErrIsolation},
		"a copy in another cluster":    {func(s *server) { s.adopted++ }, ErrRestored},
		"a cursor in its future":       {func(s *server) { s.doneXmax++ }, ErrRestored},
		"a standby of an older schema": {func(s *server) { s.standby, s.version = true, 0 }, ErrStandby},
	} {
		s := goodServer()
		c.change(&s)
		if err := s.refusal("holdfast"); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		r, _, _ := savingRelay(new(script).because("server", s.reply()).because("heartbeat", reply{rows: [][]any{{1, 8, 0}}}), &logtest.Log{})
		if err := r.maintainClaims(t.Context(), t.Context()); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: the relay says %v, want %v", name, err, c.want)
		}
	}
	for xmin, same := range map[int64]bool{5: true, 1<<32 + 5: true, 6: false} {
		if s := goodServer(); (server{born: s.born, bornXmin: xmin}).sameHistory() != same {
			t.Errorf("a row whose xmin is %d is of the same history: %v", xmin, !same)
		}
	}
}

// claims counts on a relay that has these lanes, beside so many relays and lanes of which some are free.
func TestClaimScript_AClaimAsksForWhatItsShareLacks(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		owned               int
		relays, lanes, free int
		claims              []string // the lanes that each leaves out
		stopped             int      // lanes, the highest
	}{
		"alone":                       {0, 1, 3, 3, []string{"[]", "[7]", "[7 6]"}, 0},
		"one of three":                {0, 3, 4, 4, []string{"[]", "[7]"}, 0},
		"some are missing":            {2, 2, 8, 6, []string{"[0 1]", "[0 1 7]"}, 0},
		"others were faster":          {0, 1, 8, 8, []string{"[]", "[7]", "[7 6]", "[7 6 5]"}, 0},
		"none is free":                {2, 2, 8, 0, nil, 0},
		"its share":                   {4, 2, 8, 4, nil, 0},
		"more than its share":         {6, 2, 8, 4, nil, 2},
		"one more, and none is free":  {5, 2, 8, 0, nil, 1},
		"one less, and one lane free": {3, 2, 8, 1, []string{"[0 1 2]"}, 0},
	} {
		s := new(script).because("server", goodServer().reply()).because("heartbeat", reply{rows: [][]any{{c.relays, c.lanes, c.free}}})
		for _, lane := range []int16{7, 6, 5} { // what is free; then others have taken the rest
			s.because("claim", reply{rows: [][]any{{lane, int64(1), "5:5:", "", int64(0), int64(0)}}})
		}
		r, lanes, _ := savingRelay(s, &logtest.Log{}, make([]string, c.owned)...)
		for _, l := range lanes {
			l.stop = make(chan struct{})
			r.enter(l)
		}
		r.env.start = func(context.Context, *lane) {}
		if err := r.maintainClaims(t.Context(), t.Context()); err != nil {
			t.Fatal(err)
		}
		var claims []string
		for _, asked := range s.asked {
			if rest, ok := strings.CutPrefix(asked, "claim relay 1m0s tok "); ok {
				claims = append(claims, rest)
			}
		}
		if !slices.Equal(claims, c.claims) {
			t.Errorf("%s: it claims %q, want %q", name, claims, c.claims)
		}
		for i, l := range lanes {
			stopped := false
			select {
			case <-l.stop:
				stopped = true
			default:
			}
			if stopped != (i >= c.owned-c.stopped) {
				t.Errorf("%s: lane %d is stopped: %v", name, i, stopped)
			}
		}
	}
}

func TestClaimScript_AClaimLeavesOutWhatRests(t *testing.T) {
	t.Parallel()
	s := new(script).because("server", goodServer().reply()).because("heartbeat", reply{rows: [][]any{{1, 8, 8}}})
	r, _, _ := savingRelay(s, &logtest.Log{}, "a")
	for range 2 {
		r.failing.claimed(4, r.env.now())
		r.failing.failed(4, r.env.now(), 0.9)
	}
	if err := r.maintainClaims(t.Context(), t.Context()); err != nil {
		t.Fatal(err)
	}
	if want := "claim relay 1m0s tok [4]"; s.asked[len(s.asked)-1] != want {
		t.Errorf("it asked %q, want %q", s.asked[len(s.asked)-1], want)
	}
	if r.token != "tok" {
		t.Errorf("its token is %q", r.token)
	}
}

func TestClaimScript_AClaimThatFailsSaysAtWhat(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	emptied := goodServer()
	emptied.token = ""
	waits := goodServer()
	waits.standby, waits.token = true, ""
	beat := reply{rows: [][]any{{1, 8, 8}}}
	for name, c := range map[string]struct {
		script *script
		want   string
		cause  error
		asked  []string // names
	}{
		"the server":          {new(script).because("server", reply{err: boom}), "ask the server: ", boom, []string{"server"}},
		"a standby says so":   {new(script).because("server", reply{err: &pgconn.PgError{Code: "0A000"}}), "", ErrStandby, []string{"server"}},
		"another SQL error":   {new(script).because("server", reply{err: &pgconn.PgError{Code: "XX000"}}), "ask the server: ", nil, []string{"server"}},
		"a standby's token":   {new(script).because("server", waits.reply()), "", ErrStandby, []string{"server"}},
		"the token":           {new(script).because("server", emptied.reply()).because("incarnation", reply{err: boom}), "refill the incarnation: ", boom, []string{"server", "incarnation"}},
		"a second look":       {new(script).because("server", emptied.reply(), reply{err: boom}), "ask the server: ", boom, []string{"server", "incarnation", "server"}},
		"the heartbeat":       {new(script).because("server", goodServer().reply()).because("heartbeat", reply{err: boom}), "count relays: ", boom, []string{"server", "heartbeat"}},
		"the claim":           {new(script).because("server", goodServer().reply()).because("heartbeat", beat).because("claim", reply{err: boom}), "claim a lane: ", boom, []string{"server", "heartbeat", "claim"}},
		"its rows":            {new(script).because("server", goodServer().reply()).because("heartbeat", beat).because("claim", reply{broken: boom}), "claim a lane: ", boom, []string{"server", "heartbeat", "claim"}},
		"rows of other types": {new(script).because("server", goodServer().reply()).because("heartbeat", beat).because("claim", reply{rows: [][]any{{"x"}}}), "claim a lane: ", nil, []string{"server", "heartbeat", "claim"}},
	} {
		r, _, _ := savingRelay(c.script, &logtest.Log{})
		err := r.maintainClaims(t.Context(), t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || c.cause != nil && !errors.Is(err, c.cause) {
			t.Errorf("%s: %v, want %q and %v", name, err, c.want, c.cause)
		}
		var asked []string
		for _, said := range c.script.asked {
			word, _, _ := strings.Cut(said, " ")
			asked = append(asked, word)
		}
		if diff := cmp.Diff(c.asked, asked); diff != "" {
			t.Errorf("%s asked (-want +got):\n%s", name, diff)
		}
	}
}

func TestClaimScript_ARelayThatStopsClaimsNothingMore(t *testing.T) {
	t.Parallel()
	good, beat := goodServer().reply(), reply{rows: [][]any{{1, 8, 8}}}
	s := new(script).because("server", good, good).because("heartbeat", beat, beat)
	r, _, _ := savingRelay(s, &logtest.Log{})
	ctx, cancel := context.WithCancel(t.Context())
	r.env.limit = func(of context.Context, d time.Duration) (context.Context, context.CancelFunc) {
		if d != time.Minute {
			t.Errorf("a statement has %v, want the lease", d)
		}
		cancel()
		return of, func() {}
	}
	if err := r.maintainClaims(ctx, t.Context()); err != nil || len(s.asked) != 2 {
		t.Errorf("it asked %q, %v; want no claim", s.asked, err)
	}
	r.c.Lease = time.Second
	limits := 0
	r.env.limit = func(of context.Context, d time.Duration) (context.Context, context.CancelFunc) {
		limits++
		if d != 2*time.Second {
			t.Errorf("with a short lease a statement has %v, want 2s", d)
		}
		return of, func() {}
	}
	if err := r.maintainClaims(t.Context(), t.Context()); err != nil || limits != 2 {
		t.Errorf("%d limits, %v; want one for all and one for what writes", limits, err)
	}
}

func TestClaimScript_AClaimStartsEachLaneWhereItWasSaved(t *testing.T) {
	t.Parallel()
	began, took := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Second // each statement
	claimed := []reply{{rows: [][]any{{int16(2), int64(9), "5:5:", "8:8:", int64(7), int64(40)}}}, {rows: [][]any{{int16(4), int64(1), "6:6:", "", int64(0), int64(0)}}}}
	s := new(script).because("claim", claimed...)
	r, _, _ := savingRelay(s, &logtest.Log{})
	r.c.BatchSize, r.bounds.pageBytes = 1000, 5000
	r.env.now = func() time.Time { return began.Add(time.Duration(len(s.asked)) * took) }
	var started []*lane
	r.env.start = func(_ context.Context, l *lane) { started = append(started, l) }
	if err := r.claim(t.Context(), t.Context(), t.Context(), "tok", 2, nil, 8); err != nil || len(started) != 2 {
		t.Fatalf("%d lanes are started, %v", len(started), err)
	}
	for i, want := range []struct {
		number int
		epoch  int64
		at     cursor
		state  readState
		sent   time.Time
		total  int64
	}{{2, 9, cursor{"5:5:", "8:8:", 7}, inWindow, began, 40}, {4, 1, cursor{done: "6:6:"}, lagging, began.Add(5 * took), 0}} {
		l := started[i]
		if l.number != want.number || l.epoch != want.epoch || l.token != "tok" || l.cursor != want.at || l.saved != want.at {
			t.Errorf("lane %d, epoch %d, token %q at %+v, saved at %+v; want %+v", l.number, l.epoch, l.token, l.cursor, l.saved, want)
		}
		if n := l.published.Load(); n != want.total {
			t.Errorf("lane %d has published %d, want %d", l.number, n, want.total)
		}
		if until := want.sent.Add(time.Minute); !l.leaseUntil.Equal(until) {
			t.Errorf("lane %d has its lease until %v, want %v: from before its own statement", l.number, l.leaseUntil, until)
		}
		if at := r.failing.lanes[l.number].claimedAt; !at.Equal(want.sent) {
			t.Errorf("lane %d was claimed at %v, want %v", l.number, at, want.sent)
		}
		if rd := &l.reader; rd.lane != want.number || rd.token != "tok" || rd.limit != 1000 || rd.bytes != 5000 || rd.span != 6400 || rd.at.state != want.state || rd.at.cursor != want.at {
			t.Errorf("lane %d is read by %+v", l.number, rd)
		}
	}

	began, took = began.Add(time.Hour), 10*time.Second // a claim and its loading: 50 s
	s.because("claim", reply{rows: claimed[0].rows}, reply{rows: claimed[1].rows})
	started = nil
	if err := r.claim(t.Context(), t.Context(), t.Context(), "tok", 2, nil, 8); err != nil || len(started) != 1 {
		t.Errorf("on a slow server %d lanes are started, %v; want one: half of a lease of a minute is over", len(started), err)
	}

	boom := errors.New("boom")
	for _, name := range []string{"begin_leases", "list_queues", "holds", "held"} {
		s := new(script).because("claim", claimed...).because(name, reply{err: boom})
		r, _, _ := savingRelay(s, &logtest.Log{})
		r.env.start = func(_ context.Context, l *lane) { t.Errorf("lane %d is started without what it waits for", l.number) }
		err := r.claim(t.Context(), t.Context(), t.Context(), "tok", 2, nil, 8)
		if !errors.Is(err, boom) || !strings.HasPrefix(err.Error(), "load lane 2: ") {
			t.Errorf("%s fails: %v; it asked %q", name, err, s.asked)
		}
	}
}

// Postgres knows which of them a dead letter holds: no letter holds a replay.
func TestClaimScript_KeysResumeOnAClaimUnlessTheirTopicIsHeld(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	free, letter, topic := queue{"orders", "free"}, queue{"orders", "letter"}, queue{"gone", "k"}
	for name, c := range map[string]struct {
		dormantQueues []queue
		fence         reply
		resumed       reply
		asked         []string
		want          error
	}{
		"two of three": {[]queue{letter, free, topic}, reply{rows: [][]any{{1}}}, reply{rows: [][]any{{"orders", "free"}}}, []string{"fence 0 relay 100 a", "resume_queues 0 [orders orders] [letter free]", "commit"}, nil},
		"none":         {nil, reply{}, reply{}, nil, nil},
		"all are held": {[]queue{topic}, reply{}, reply{}, nil, nil},
		"it is lost":   {[]queue{free}, reply{}, reply{}, []string{"fence 0 relay 100 a", "resume_queues 0 [orders] [free]"}, errLost},
		"it fails":     {[]queue{free}, reply{rows: [][]any{{1}}}, reply{err: boom}, []string{"fence 0 relay 100 a", "resume_queues 0 [orders] [free]"}, boom},
	} {
		s := new(script).because("fence", c.fence).because("resume_queues", c.resumed)
		r, lanes, _ := savingRelay(s, &logtest.Log{}, "a")
		l := lanes[0]
		l.leaseUntil = r.env.now().Add(time.Hour)
		waits := slices.Contains(c.dormantQueues, topic)
		l.dormantQueues, l.queues.held, l.holds = c.dormantQueues, map[queue]bool{letter: true}, map[spot]*hold{{"gone", wholeTopic}: {}}
		l.queues.parked = map[queue]bool{free: true, letter: true}
		err := l.resumeReleased(t.Context())
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || err != nil && !strings.HasPrefix(err.Error(), "resume released keys: ") {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if emptied := len(c.resumed.rows) > 0; l.queues.parked[free] == emptied || !l.queues.parked[letter] {
			t.Errorf("%s: it remembers %v, and has heard that a queue is empty: %v", name, l.queues.parked, emptied)
		}
		if diff := cmp.Diff(c.asked, s.asked); diff != "" {
			t.Errorf("%s asked (-want +got):\n%s", name, diff)
		}
		if slices.Contains(l.dormantQueues, free) || slices.Contains(l.dormantQueues, letter) || slices.Contains(l.dormantQueues, topic) != waits {
			t.Errorf("%s: it keeps %v, want what waits for its topic", name, l.dormantQueues)
		}
	}
}
