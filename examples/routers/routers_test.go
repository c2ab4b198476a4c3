package routers_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	echo4 "github.com/labstack/echo/v4"
	echo5 "github.com/labstack/echo/v5"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/examples/routers"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	os.Exit(pgtest.Main(m))
}

var shop = pgtest.Model{Fill: func(ctx context.Context, pool *pgxpool.Pool) error {
	if err := holdfast.Migrate(ctx, pool, holdfast.SchemaConfig{}); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, "create table charge (id bigint generated always as identity)")
	return err
}}

var errSoldOut = errors.New("sold out")

// charge is what all handlers do. The header What says how it ends.
func charge(ctx context.Context, what string) error {
	if _, err := idempotency.Tx(ctx).Exec(ctx, "insert into charge default values"); err != nil {
		return err
	}
	switch what {
	case "error":
		return errSoldOut
	case "panic":
		panic("planned")
	case "late": // as handlers do that only look at their context
		<-ctx.Done()
	}
	return nil
}

// quiet says which handlers write nothing.
func quiet(what string) bool { return what == "silent" || what == "late" || what == "hijack" }

// hijack tries to take the connection, as for a WebSocket.
func hijack(what string, w http.ResponseWriter) {
	if what == "hijack" {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_ = conn.Close()
		}
	}
}

// connected is a recorder whose connection can be taken, if nothing in front of the handler keeps it from that.
type connected struct {
	*httptest.ResponseRecorder
	taken bool
}

func (c *connected) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.taken = true
	conn, other := net.Pipe()
	_ = other.Close()
	return conn, nil, nil
}

// plain is a handler of net/http.
func plain(w http.ResponseWriter, r *http.Request) {
	switch err := charge(r.Context(), r.Header.Get("What")); {
	case err != nil:
		http.Error(w, err.Error(), http.StatusConflict)
	case quiet(r.Header.Get("What")):
		hijack(r.Header.Get("What"), w)
	default:
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "charged")
	}
}

// each is the same service in each router.
func each(guard *idempotency.Guard) map[string]http.Handler {
	return map[string]http.Handler{
		"net/http": routers.NetHTTP(guard, http.HandlerFunc(plain)),
		"chi":      routers.Chi(guard, http.HandlerFunc(plain)),
		"Fiber":    routers.Fiber(guard, http.HandlerFunc(plain)),
		"Echo v4": routers.Echo4(guard, func(c echo4.Context) error {
			what := c.Request().Header.Get("What")
			if err := charge(c.Request().Context(), what); err != nil {
				return echo4.NewHTTPError(http.StatusConflict, err.Error())
			}
			if quiet(what) {
				hijack(what, c.Response())
				return nil
			}
			return c.String(http.StatusCreated, "charged")
		}),
		"Echo v5": routers.Echo5(guard, func(c *echo5.Context) error {
			what := c.Request().Header.Get("What")
			if err := charge(c.Request().Context(), what); err != nil {
				return echo5.NewHTTPError(http.StatusConflict, err.Error())
			}
			if quiet(what) {
				hijack(what, c.Response())
				return nil
			}
			return c.String(http.StatusCreated, "charged")
		}),
		"gin": routers.Gin(guard, func(c *gin.Context) {
			what := c.GetHeader("What")
			if err := charge(c.Request.Context(), what); err != nil {
				_ = c.Error(err)
			} else if quiet(what) {
				hijack(what, c.Writer)
			} else {
				c.String(http.StatusCreated, "charged")
			}
		}, func(c *gin.Context) {
			if c.Next(); len(c.Errors) > 0 {
				c.JSON(http.StatusConflict, gin.H{"error": c.Errors.Last().Error()})
			}
		}),
	}
}

func TestRouters_EveryRouterKeepsWhatIsAnsweredAndNothingElse(t *testing.T) {
	skip.InShort(t, "it takes 15 s beside the others")
	db := shop.New(t)
	guard, err := idempotency.New(db.Pool, idempotency.Config{
		Principal: func(r *http.Request) (string, error) { return r.Header.Get("Account"), nil }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, h := range each(guard) {
		t.Run(name, func(t *testing.T) {
			pgtest.Exec(t, db, "truncate charge")
			taken := false
			send := func(key, what string) (w *httptest.ResponseRecorder) {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", strings.NewReader("{}"))
				r.Header.Set("Account", name)
				r.Header.Set("Idempotency-Key", key)
				r.Header.Set("What", what)
				if what == "late" {
					r.Header.Set("X-Request-Timeout", "2")
				}
				w = httptest.NewRecorder()
				c := &connected{ResponseRecorder: w}
				defer func() { taken = taken || c.taken }()
				defer func() { // net/http has no recovery of its own.
					if recover() != nil {
						w.WriteHeader(http.StatusInternalServerError)
					}
				}()
				h.ServeHTTP(c, r)
				return w
			}
			is := func(what string, w *httptest.ResponseRecorder, status int, says string, charges int64) {
				t.Helper()
				if n := pgtest.Count(t, db, "select count(*) from charge"); w.Code != status || !strings.Contains(w.Body.String(), says) || n != charges {
					t.Errorf("%s: got %d %s, and there are %d charges; want %d with %q, and %d", what, w.Code, w.Body, n, status, says, charges)
				}
			}
			first := send("k", "")
			is("the first request", first, 201, "charged", 1)
			again := send("k", "")
			is("its repeat", again, 201, "charged", 1)
			if first.Header().Get("Idempotency-Status") != "stored" || again.Header().Get("Idempotency-Status") != "replayed" {
				t.Errorf("headers: %v, then %v", first.Header(), again.Header())
			}
			is("an error", send("e", "error"), 409, errSoldOut.Error(), 1)
			is("its repeat", send("e", ""), 201, "charged", 2)
			is("a panic", send("p", "panic"), 500, "", 2)
			is("its repeat", send("p", ""), 201, "charged", 3)
			is("no answer", send("s", "silent"), 503, "idempotency.no_answer", 3)
			is("its repeat", send("s", ""), 201, "charged", 4)
			is("no answer when the context ends", send("l", "late"), 503, "idempotency.handler_timeout", 4)
			is("its repeat", send("l", ""), 201, "charged", 5)
			hijacks := send("h", "hijack")
			if hijacks.Code < 500 || taken {
				t.Errorf("a handler that hijacks: got %d %s, and the connection is taken: %v", hijacks.Code, hijacks.Body, taken)
			}
			is("its repeat", send("h", ""), 201, "charged", 6)
		})
	}
}

// In Echo a handler can answer and then return an error. Nothing of it may be kept.
func TestRouters_AnErrorAfterAnAnswerIsRolledBackInEcho(t *testing.T) {
	t.Parallel()
	db := shop.New(t)
	guard, err := idempotency.New(db.Pool, idempotency.Config{
		Principal: func(r *http.Request) (string, error) { return "ann", nil }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	fails := true
	do := func(ctx context.Context, answer func(int, string) error) error {
		if err := errors.Join(charge(ctx, ""), answer(http.StatusCreated, "charged")); err != nil || !fails {
			return err
		}
		return errSoldOut
	}
	for key, h := range map[string]http.Handler{
		"v4": routers.Echo4(guard, func(c echo4.Context) error { return do(c.Request().Context(), c.String) }),
		"v5": routers.Echo5(guard, func(c *echo5.Context) error { return do(c.Request().Context(), c.String) }),
	} {
		pgtest.Exec(t, db, "truncate charge")
		for i, want := range []int{http.StatusInternalServerError, http.StatusCreated, http.StatusCreated} {
			fails = i == 0
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", nil)
			r.Header.Set("Idempotency-Key", key)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if n := pgtest.Count(t, db, "select count(*) from charge"); w.Code != want || n != int64(min(i, 1)) {
				t.Errorf("%s, request %d: %d %s, and there are %d charges", key, i+1, w.Code, w.Body, n)
			}
		}
	}
}
