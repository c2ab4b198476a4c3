package faultproxy

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"pgregory.net/rapid"
)

func TestConversation_AStatementIsACommitWhateverHidesASemicolonInIt(t *testing.T) {
	t.Parallel()
	for sql, want := range map[string]bool{
		"commit":                       true,
		" COMMIT ; ":                   true,
		"commit work":                  true,
		"Commit Transaction and chain": true,
		"begin; insert into a values (1); commit":              true,
		"commit;begin isolation level read committed;select 1": true,
		"-- a note; or two\ncommit":                            true,
		"/* a /* nested */ ; note */ commit /* ; */":           true,
		"select E'it\\'s; ';commit":                            true,
		"select $$;commit;$$, $a$ $$;commit; $a$; commit":      true,
		"commit prepared 'a'":                                  false,
		"select 'x; commit ;y'":                                false,
		"select 'it''s; commit; y'":                            false,
		`select "; commit ;"`:                                  false,
		"select $$; commit ;$$":                                false,
		"select $tag$; commit ; $$ ; commit; $tag$":            false,
		"select E'\\'; commit;'":                               false,
		"select 1 -- ; commit":                                 false,
		"select /* ; /* */ ; commit; */ 1":                     false,
		"select 'never closed; commit":                         false,
		"rollback; begin":                                      false,
		"commits":                                              false,
		"select commit":                                        false,
		"":                                                     false,
		"insert into a values ($1, $2)":                        false,
		"select $1; commit":                                    true,
		"select a$b$; commit; select 2":                        true, // the dollars belong to the name
	} {
		if got := commits(sql); got != want {
			t.Errorf("commits(%q) = %v", sql, got)
		}
	}
}

// always and never draw whether a COMMIT is cut.
func always(m Moment) func() (Moment, bool) { return func() (Moment, bool) { return m, true } }
func never() (Moment, bool)                 { return "", false }

// encoded are messages as they are on the wire.
func encoded[M pgproto3.Message](t testing.TB, messages ...M) (b []byte) {
	t.Helper()
	for _, m := range messages {
		var err error
		if b, err = m.Encode(b); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// prepared runs statements of these names, in one round.
func prepared(names ...string) (all []pgproto3.FrontendMessage) {
	for _, name := range names {
		all = append(all, &pgproto3.Bind{PreparedStatement: name}, &pgproto3.Describe{ObjectType: 'P'}, &pgproto3.Execute{})
	}
	return append(all, &pgproto3.Sync{})
}

func answered(tags ...string) (all []pgproto3.BackendMessage) {
	for _, tag := range tags {
		all = append(all, &pgproto3.BindComplete{}, &pgproto3.NoData{}, &pgproto3.CommandComplete{CommandTag: []byte(tag)})
	}
	return append(all, &pgproto3.ReadyForQuery{TxStatus: 'I'})
}

// begun has a connection made, and begin, insert and commit prepared, which is two rounds.
func begun(t testing.TB, c *conversation) {
	t.Helper()
	requests := encoded[pgproto3.FrontendMessage](t, &pgproto3.SSLRequest{})
	if n, _ := c.fromClient(requests, never); n != len(requests) {
		t.Fatal("the request for encryption is held back")
	}
	if n, _, _ := c.fromServer([]byte("N")); n != 1 {
		t.Fatal("the answer is held back")
	}
	requests = encoded[pgproto3.FrontendMessage](t,
		&pgproto3.StartupMessage{ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "u", "database": "commit"}},
		&pgproto3.PasswordMessage{Password: "commit"},
		&pgproto3.Parse{Name: "b", Query: "begin"}, &pgproto3.Parse{Name: "i", Query: "insert"}, &pgproto3.Parse{Name: "c", Query: "commit"},
		&pgproto3.Parse{Name: "r", Query: "rollback"}, &pgproto3.Sync{})
	if n, closing := c.fromClient(requests, always(Before)); n != len(requests) || closing {
		t.Fatal("to prepare COMMIT is not to run it")
	}
	answers := encoded[pgproto3.BackendMessage](t, &pgproto3.AuthenticationCleartextPassword{}, &pgproto3.AuthenticationOk{},
		&pgproto3.ReadyForQuery{TxStatus: 'I'}, &pgproto3.ParseComplete{}, &pgproto3.ParseComplete{}, &pgproto3.ParseComplete{},
		&pgproto3.ParseComplete{}, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	if n, closing, missed := c.fromServer(answers); n != len(answers) || closing || missed {
		t.Fatal("the answers are held back")
	}
}

func TestConversation_TheCommitAndItsAnswerAreFoundWhateverThePiecesTheyComeIn(t *testing.T) {
	t.Parallel()
	queries := func(texts ...string) (all []pgproto3.FrontendMessage) {
		for _, text := range texts {
			all = append(all, &pgproto3.Query{String: text})
		}
		return all
	}
	simple := func(tags ...string) (all []pgproto3.BackendMessage) {
		for _, tag := range tags {
			all = append(all, &pgproto3.CommandComplete{CommandTag: []byte(tag)})
		}
		return append(all, &pgproto3.ReadyForQuery{TxStatus: 'I'})
	}
	large := strings.Repeat("x", 5000)
	all := func(parts ...[]pgproto3.BackendMessage) []pgproto3.BackendMessage { return slices.Concat(parts...) }
	for name, c := range map[string]struct {
		before, commit, after []pgproto3.FrontendMessage
		passes, rest          []pgproto3.BackendMessage // before the answer, and from it on
	}{
		"a Query": {
			before: queries("begin", "insert"), commit: queries("commit"), after: queries("begin"),
			passes: all(simple("BEGIN"), simple("INSERT 0 1")), rest: all(simple("COMMIT"), simple("BEGIN")),
		},
		"one of the statements of a Query": {
			before: queries("begin"), commit: queries("insert '" + large + "';commit;begin"),
			passes: all(simple("BEGIN"), simple("INSERT 0 1")[:1]), rest: simple("COMMIT", "BEGIN"),
		},
		"a prepared statement in the middle of a round": {
			before: slices.Concat(prepared("b"), prepared("i", "c")[:5]), commit: prepared("c")[2:3], after: prepared("b", "i", "r"),
			passes: all(answered("BEGIN"), answered("INSERT 0 1")[:3], answered("COMMIT")[:2]),
			rest:   all(answered("COMMIT")[2:3], answered("BEGIN", "INSERT 0 1", "ROLLBACK")),
		},
		"an unnamed statement": {
			before: []pgproto3.FrontendMessage{&pgproto3.Parse{Query: " Commit;"}, &pgproto3.Bind{}}, commit: []pgproto3.FrontendMessage{&pgproto3.Execute{}},
			after:  []pgproto3.FrontendMessage{&pgproto3.Sync{}, &pgproto3.Parse{Query: "select '" + large + "'"}, &pgproto3.Bind{}, &pgproto3.Execute{}, &pgproto3.Sync{}},
			passes: all([]pgproto3.BackendMessage{&pgproto3.ParseComplete{}}, answered("COMMIT")[1:2]), rest: answered("COMMIT")[2:],
		},
	} {
		at, end := len(encoded(t, c.before...)), len(encoded(t, slices.Concat(c.before, c.commit)...))
		requests := encoded(t, slices.Concat(c.before, c.commit, c.after)...)
		passes, answers := encoded(t, c.passes...), encoded(t, all(c.passes, c.rest)...)
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				pieces := func(b []byte) (all [][]byte) {
					for len(b) > 0 {
						n := rapid.IntRange(1, min(len(b), rapid.SampledFrom([]int{1, 8, 100, 1 << 20}).Draw(r, "largest"))).Draw(r, "piece")
						all, b = append(all, b[:n]), b[n:]
					}
					return all
				}
				// Before: all that comes before the COMMIT goes up, and of it what came in earlier pieces; never its end.
				talk := newConversation()
				begun(t, talk)
				passed, cut := 0, false
				for _, p := range pieces(requests) {
					n, closing := talk.fromClient(p, always(Before))
					if passed += n; closing {
						cut = true
						break
					}
				}
				if !cut || passed < at || passed >= end {
					r.Fatalf("cut %v after %d bytes, want it from %d on and before %d", cut, passed, at, end)
				}
				if whole, closing := fresh(t).fromClient(requests, always(Before)); whole != at || !closing {
					r.Fatalf("in one piece it is cut %v at %d, want %d", closing, whole, at)
				}
				// After: all goes up, and down all before the answer.
				talk = newConversation()
				begun(t, talk)
				for _, p := range pieces(requests) {
					if n, closing := talk.fromClient(p, always(After)); n != len(p) || closing {
						r.Fatalf("%d of %d bytes go up", n, len(p))
					}
				}
				var got []byte
				cut = false
				for _, p := range pieces(answers) {
					n, closing, missed := talk.fromServer(p)
					got = append(got, p[:n]...)
					if missed {
						r.Fatal("it is missed")
					}
					if cut = closing; cut {
						break
					}
				}
				// The beginning of the answer may have come in an earlier piece; never its end.
				if !cut || !bytes.HasPrefix(got, passes) || len(got) >= len(passes)+1+4+len(commitTag) {
					r.Fatalf("cut %v after %d bytes, want %d", cut, len(got), len(passes))
				}
			})
		})
	}
}

func fresh(t testing.TB) *conversation {
	c := newConversation()
	begun(t, c)
	return c
}

func TestConversation_ACommitThatIsNotCarriedOutIsNotCut(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string][]pgproto3.BackendMessage{
		"it is answered with ROLLBACK": answered("INSERT 0 1", "ROLLBACK"),
		"something before it fails":    {&pgproto3.ErrorResponse{Code: "23505"}, &pgproto3.ReadyForQuery{TxStatus: 'E'}},
	} {
		t.Run(name, func(t *testing.T) {
			c := fresh(t)
			request := encoded(t, prepared("i", "c")...)
			if n, closing := c.fromClient(request, always(After)); n != len(request) || closing {
				t.Fatal("it is held back")
			}
			answer := encoded(t, answers...)
			if n, closing, missed := c.fromServer(answer); n != len(answer) || closing || !missed {
				t.Fatalf("%d of %d bytes go on, closing %v, missed %v", n, len(answer), closing, missed)
			}
			// The next one is.
			c.fromClient(request, always(After))
			if _, closing, missed := c.fromServer(encoded(t, answered("INSERT 0 1", "COMMIT")...)); !closing || missed {
				t.Errorf("the next one: closing %v, missed %v", closing, missed)
			}
		})
	}
}

func TestConversation_OfSeveralCommitsTheOneThatIsDrawnIsCut(t *testing.T) {
	t.Parallel()
	for cut := range 4 {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			c := fresh(t)
			drawn := -1
			draw := func() (Moment, bool) { drawn++; return After, drawn == cut }
			c.fromClient(encoded(t, append(prepared("c", "b", "c"), prepared("c", "b", "c")...)...), draw)
			if c.seen != 4 {
				t.Errorf("%d COMMITs are seen, want 4", c.seen)
			}
			answers := append(answered("COMMIT", "BEGIN", "COMMIT"), answered("COMMIT", "BEGIN", "COMMIT")...)
			n, closing, _ := c.fromServer(encoded(t, answers...))
			before := [4]int{2, 8, 12, 18}[cut] // messages before the answer
			if want := len(encoded(t, answers[:before]...)); n != want || !closing {
				t.Errorf("closing %v after %d bytes, want %d", closing, n, want)
			}
		})
	}
}

func TestConversation_AStatementThatIsNoCommitAnyMoreIsNotCut(t *testing.T) {
	t.Parallel()
	for name, again := range map[string][]pgproto3.FrontendMessage{
		"closed":             {&pgproto3.Close{ObjectType: 'S', Name: "c"}},
		"prepared as others": {&pgproto3.Parse{Name: "c", Query: "select '" + strings.Repeat("x", 10_000) + "'"}},
	} {
		c := fresh(t)
		c.fromClient(encoded(t, append(again, prepared("c")...)...), always(Before))
		if c.seen != 0 {
			t.Errorf("%s: it is seen as a COMMIT", name)
		}
	}
	c := fresh(t)
	c.fromClient(encoded(t, []pgproto3.FrontendMessage{&pgproto3.Bind{DestinationPortal: "p", PreparedStatement: "c"},
		&pgproto3.Bind{DestinationPortal: "q", PreparedStatement: "i"}, &pgproto3.Execute{Portal: "q"}, &pgproto3.Execute{Portal: "p"},
		&pgproto3.Close{ObjectType: 'P', Name: "p"}, &pgproto3.Execute{Portal: "p"}}...), never)
	if c.seen != 1 {
		t.Errorf("%d COMMITs are seen, want one, of the portal that is one", c.seen)
	}
}

func TestConversation_WhatIsNotPostgresOrIsEncryptedPasses(t *testing.T) {
	t.Parallel()
	commit := encoded[pgproto3.FrontendMessage](t, &pgproto3.Query{String: "commit"})
	for name, first := range map[string][]byte{
		"a Kafka request":     {0, 0, 0, 30, 0, 18, 0, 4, 0, 0, 0, 1},
		"Kafka's Metadata":    {0, 0, 0, 30, 0, 3, 0, 4, 0, 0, 0, 1},
		"HTTP":                []byte("GET / HTTP/1.1\r\n"),
		"a tiny length":       {0, 0, 0, 1, 0, 0, 0, 0},
		"a request to cancel": encoded[pgproto3.FrontendMessage](t, &pgproto3.CancelRequest{ProcessID: 1, SecretKey: []byte{0, 0, 0, 2}}),
	} {
		c := newConversation()
		for _, b := range [][]byte{first, commit} {
			if n, closing := c.fromClient(b, always(Before)); n != len(b) || closing {
				t.Errorf("%s: %d of %d bytes pass", name, n, len(b))
			}
		}
	}
	c := newConversation()
	c.fromClient(encoded[pgproto3.FrontendMessage](t, &pgproto3.SSLRequest{}), never)
	if n, _, _ := c.fromServer([]byte("S")); n != 1 || !c.foreign {
		t.Error("encryption is not noticed")
	}
}

func TestConversation_APacerLetsBytesLeaveOneAfterTheOtherAndTravelSideBySide(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	var p pacer
	f := Slow(time.Second, 100)
	for i, c := range []struct {
		at    time.Duration
		bytes int
		want  time.Duration
	}{
		{0, 100, 2 * time.Second},                                 // a second in the pipe, one on the way
		{0, 50, 2500 * time.Millisecond},                          // waits for those before
		{1400 * time.Millisecond, 10, 2600 * time.Millisecond},    // still
		{5 * time.Second, 1, 6*time.Second + 10*time.Millisecond}, // finds the pipe free
	} {
		if got := p.due(f, start.Add(c.at), c.bytes).Sub(start); got.Round(time.Microsecond) != c.want {
			t.Errorf("%d: due after %s, want %s", i, got, c.want)
		}
	}
	p = pacer{}
	if got := p.due(Slow(time.Second, 0), start, 1<<30).Sub(start); got != time.Second {
		t.Errorf("without a limit it is due after %s", got)
	}
	if Slow(0, 1).piece() != 1 || Slow(0, 5000).piece() != 100 || Slow(0, 1<<40).piece() != bufferSize || Slow(0, 0).piece() != bufferSize {
		t.Error("pieces are not what passes in 20 ms")
	}
}
