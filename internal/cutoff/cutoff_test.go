package cutoff_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/cutoff"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestCutoff_ASilentClientIsNoticedWithinTheBound(t *testing.T) {
	number := regexp.MustCompile(`= (\d+)`)
	for _, bound := range []time.Duration{0, 6 * time.Second, 10*time.Second + 2*time.Millisecond, 13 * time.Second, 45 * time.Second, 25 * time.Hour} {
		var n []int
		for _, m := range number.FindAllStringSubmatch(cutoff.Set(bound), -1) {
			i, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			n = append(n, i)
		}
		idle, interval, count, user := n[0], n[1], n[2], n[3]
		limit := max(int(bound/time.Second), 6)
		if idle < 1 || interval < 1 || idle > 32767 {
			t.Errorf("%s: idle %d s, interval %d s", bound, idle, interval)
		}
		if by := idle + interval*count; by > limit {
			t.Errorf("%s: where probes are counted, it is noticed after %d s", bound, by)
		}
		by := idle
		for by*1000 < user { // Linux looks at each probe.
			by += interval
		}
		if by > limit {
			t.Errorf("%s: on Linux it is noticed after %d s", bound, by)
		}
	}
}

func TestCutoff_AConnectionIsSetOnceToTheShortestBound(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := pgx.Connect(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if conn.PgConn().Conn().RemoteAddr().Network() == "unix" {
		skip.Without(t, "a server that is reached by TCP", "use one", errors.New("a Unix socket has no keepalives"))
	}
	idle := func() string {
		var s string
		if err := conn.QueryRow(t.Context(), "select current_setting('tcp_keepalives_idle')").Scan(&s); err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, step := range []struct {
		bound time.Duration
		want  string
	}{{45 * time.Second, "15"}, {30 * time.Second, "10"}, {45 * time.Second, "10"}} {
		if err := cutoff.Notice(t.Context(), conn, step.bound); err != nil {
			t.Fatal(err)
		}
		if got := idle(); got != step.want {
			t.Errorf("after %s tcp_keepalives_idle is %s, want %s", step.bound, got, step.want)
		}
	}
	pgtest.Exec(t, conn, "set tcp_keepalives_idle = 77")
	if err := cutoff.Notice(t.Context(), conn, 30*time.Second); err != nil || idle() != "77" {
		t.Errorf("it was set again: %v", err)
	}
	pgtest.Exec(t, conn, fmt.Sprintf("begin; %s; rollback", cutoff.SetLocal(12*time.Second)))
	if got := idle(); got != "77" {
		t.Errorf("after the transaction it is %s", got)
	}
}
