package idempotency

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// A database that says by an error of its own that it is away: nothing was begun.

// refusedConn is a connection that a server ends by an error as soon as it was asked for.
type refusedConn struct {
	net.Conn
	code string
	said bool
}

func (c *refusedConn) Read(p []byte) (int, error) {
	if c.said {
		return 0, io.EOF
	}
	c.said = true
	body := "SFATAL\x00VFATAL\x00C" + c.code + "\x00Mplanned\x00\x00"
	message := append(binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(body))), body...)
	return copy(p, message), nil
}

// R27.
func TestRefused_ADatabaseThatRefusesIsAwayAndTheRequestMayComeAgain(t *testing.T) {
	for _, code := range []string{"53300", "57P03"} { // too many connections; it starts, stops or recovers
		t.Run(code, func(t *testing.T) {
			b := setup(t)
			config := b.db.Config().Copy()
			dial := config.ConnConfig.DialFunc
			config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := dial(ctx, network, address)
				if err != nil {
					return nil, err
				}
				return &refusedConn{Conn: conn, code: code}, nil
			}
			pool := b.poolOf(config)
			var pg *pgconn.PgError
			if _, err := pool.Exec(t.Context(), "select 1"); !errors.As(err, &pg) || pg.Code != code {
				t.Fatalf("it does not refuse: %v", err)
			}
			var log strings.Builder
			h := b.service(b.guardOn(pool, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) }), b.charge, Route{Optional: true})
			for _, key := range []string{"k", ""} {
				w := b.send(h, sent{key: key})
				if b.is(w, 503, codeStoreUnavailable); w.Header().Get("Retry-After") != "1" {
					t.Errorf("got %v", w.Header())
				}
			}
			if got := b.results(); got[0] != Unavailable || got[1] != Unavailable || b.runs.Load() != 0 {
				t.Errorf("it is reported as %v after %d runs", got, b.runs.Load())
			}
			if !strings.Contains(log.String(), "level=WARN") || strings.Contains(log.String(), "level=ERROR") || !strings.Contains(log.String(), code) {
				t.Errorf("the log has %s", log.String())
			}
		})
	}
}

// R27.
func TestRefused_ATableThatIsNotThereIsNoFaultOfTheHandler(t *testing.T) {
	b := setup(t)
	h := b.service(b.guard(func(c *Config) { c.Schema = "elsewhere" }), func(http.ResponseWriter, *http.Request) { b.runs.Add(1) })
	b.is(b.send(h, sent{key: "k"}), 503, codeStoreUnavailable)
	if n := b.runs.Load(); n != 0 {
		t.Errorf("it ran %d times", n)
	}
}
