package idempotency

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

// What handlers do with the writer that they are given, on a real server.

// ask sends POST /charges to a real server.
func (b *bundle) ask(s *httptest.Server, key string, ctx context.Context) (*http.Response, string) {
	b.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/charges", strings.NewReader("{}"))
	if err != nil {
		b.Fatal(err)
	}
	r.Header.Set("Account", "a")
	r.Header.Set("Idempotency-Key", key)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	return res, readAll(b.T, res)
}

// R5.
func TestHostileAnswer_WritesAfterTheHandlerReturnedAreNoPartOfTheAnswer(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			var late http.ResponseWriter
			b.writesLate(&late, &o)
			h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
				late = w
				w.Header().Set("Location", "/charges/1")
				w.WriteHeader(201)
				_, _ = io.WriteString(w, "in time")
			}, o)
			first := b.send(h, sent{key: "k"})
			if first.Body.String() != "in time" || first.Header().Get("Location") != "/charges/1" {
				t.Errorf("got %s, %v", first.Body, first.Header())
			}
			b.same(first, b.send(h, sent{key: "k"}))
			if _, err := late.Write([]byte("x")); err == nil {
				t.Error("a goroutine that goes on writing gets no error")
			}
		})
	}
}

// writesLate has a goroutine of the handler write when the answer has been taken and has not left.
func (b *bundle) writesLate(late *http.ResponseWriter, o *Route) {
	o.Redact = func(*store.Answer) {
		_, _ = (*late).Write([]byte(", and late"))
		(*late).Header().Set("Location", "/late")
		(*late).WriteHeader(500)
	}
}

func TestHostileAnswer_HintsThatWereSentAreNoPartOfAnAnswerThatIsNotTheHandlers(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	runs := 0
	h := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		runs++
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.Header().Set("Set-Cookie", fmt.Sprint("session=", runs))
		w.Header().Add("X-Run", fmt.Sprint(runs))
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = Tx(r.Context()).Exec(r.Context(), "select 1/0")
		w.WriteHeader(201)
	})
	s := httptest.NewServer(h)
	defer s.Close()
	var hints []string
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
		hints = append(hints, fmt.Sprint(code, h.Get("Link")))
		return nil
	}})
	res, text := b.ask(s, "k", ctx)
	if res.StatusCode != 500 || !strings.Contains(text, codeHandlerFault) || len(hints) != 1 || hints[0] != "103</style.css>; rel=preload" {
		t.Fatalf("got %d %s, hints %v", res.StatusCode, text, hints)
	}
	if res.Header.Get("Set-Cookie") != "" || res.Header.Get("Link") != "" {
		t.Errorf("the problem has headers of an answer that was never given: %v", res.Header)
	}
	// The same where the handler runs again for the same request, because its COMMIT was refused.
	pgtest.Exec(t, b.db, `create function too_early() returns trigger language plpgsql as $$
		begin
			if new.amount = '1' then raise serialization_failure; end if;
			return null;
		end $$`)
	pgtest.Exec(t, b.db, "create constraint trigger too_early after insert on charge deferrable initially deferred for each row execute function too_early()")
	runs = 0
	again := b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
		runs++
		w.Header().Add("X-Run", fmt.Sprint(runs))
		w.Header().Set(fmt.Sprint("X-Only-", runs), "yes")
		w.WriteHeader(http.StatusEarlyHints)
		if _, err := insertCharge(r.Context(), fmt.Sprint(runs)); err != nil {
			t.Error(err)
		}
		w.WriteHeader(201)
	}, Route{Operation: "again"})
	s2 := httptest.NewServer(again)
	defer s2.Close()
	res, text = b.ask(s2, "k", t.Context())
	if res.StatusCode != 201 || runs != 2 {
		t.Fatalf("got %d %s after %d runs", res.StatusCode, text, runs)
	}
	if fmt.Sprint(res.Header["X-Run"]) != "[2]" || res.Header.Get("X-Only-1") != "" || res.Header.Get("X-Only-2") != "yes" {
		t.Errorf("headers of the first run are in the answer of the second: %v", res.Header)
	}
	b.kept(1, 1, 1)
}

func TestHostileAnswer_AHandlersWriterHasNoFlushHijackOrTrailers(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			s := httptest.NewServer(b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
				if _, ok := w.(http.Flusher); ok {
					t.Error("it can be flushed")
				}
				if _, ok := w.(http.Hijacker); ok {
					t.Error("it can be hijacked")
				}
				c := http.NewResponseController(w)
				if err := c.Flush(); !errors.Is(err, http.ErrNotSupported) {
					t.Errorf("flush: %v", err)
				}
				if _, _, err := c.Hijack(); !errors.Is(err, http.ErrNotSupported) {
					t.Errorf("hijack: %v", err)
				}
				w.Header().Set("Trailer", "X-Sum")
				w.Header().Set("Content-Length", "3") // less than it writes
				w.Header().Set("Transfer-Encoding", "chunked")
				w.Header().Set("Connection", "X-Hop")
				w.WriteHeader(201)
				w.WriteHeader(500) // too late
				_, _ = io.WriteString(w, "hello, ")
				w.Header().Set("X-Sum", "late")
				_, _ = io.WriteString(w, "world")
			}, o))
			defer s.Close()
			for _, want := range []string{"stored", "replayed"} {
				res, text := b.ask(s, "k", t.Context())
				if res.StatusCode != 201 || text != "hello, world" || res.Header.Get(headerStatus) != want || res.Header.Get("X-Sum")+res.Trailer.Get("X-Sum") != "" {
					t.Errorf("got %d %q, %v, trailers %v", res.StatusCode, text, res.Header, res.Trailer)
				}
			}
		})
	}
}

func TestHostileAnswer_A100ContinueIsSentOnlyWhereTheBodyIsWanted(t *testing.T) {
	skip.InShort(t, "it takes 1 s beside the others")
	b := setup(t)
	s := httptest.NewServer(b.service(b.guard(), b.charge))
	defer s.Close()
	talk := func(key string) string {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /charges HTTP/1.1\r\nHost: x\r\nAccount: a\r\n%sExpect: 100-continue\r\nContent-Length: 2\r\nConnection: close\r\n\r\n", key)
		from := bufio.NewReader(conn)
		line, err := from.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line, " 100 ") {
			fmt.Fprint(conn, "{}")
			rest, _ := io.ReadAll(from)
			return "100, then " + strings.TrimSpace(string(rest))[:12]
		}
		return line[:12]
	}
	for _, c := range []struct{ key, want string }{
		{"", "HTTP/1.1 400"}, {"Idempotency-Key: k\r\n", "100, then HTTP/1.1 201"}, {"Idempotency-Key: k\r\n", "100, then HTTP/1.1 201"}, {"Idempotency-Key: k k\r\n", "HTTP/1.1 400"},
	} {
		if got := talk(c.key); got != c.want {
			t.Errorf("%q: got %s, want %s", c.key, got, c.want)
		}
	}
	b.kept(1, 1, 1)
}

// R20.
func TestHostileAnswer_AnAbortedAnswerCutsTheConnectionAndKeepsNothing(t *testing.T) {
	for mode, o := range modes {
		t.Run(mode, func(t *testing.T) {
			b := setup(t)
			abort := true
			s := httptest.NewServer(b.service(b.guard(), func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(201)
				_, _ = io.WriteString(w, "half")
				if abort {
					panic(http.ErrAbortHandler)
				}
			}, o))
			defer s.Close()
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/charges", strings.NewReader("{}"))
			r.Header = http.Header{"Account": {"a"}, "Idempotency-Key": {"k"}}
			if res, err := http.DefaultClient.Do(r); err == nil {
				t.Errorf("got %d", res.StatusCode)
			}
			abort = false
			wait.Until(b, "the key is free", func() bool { res, _ := b.ask(s, "k", t.Context()); return res.Header.Get(headerStatus) == "stored" })
		})
	}
}
