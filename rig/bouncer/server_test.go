package bouncer_test

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/rig/bouncer"
)

// setup runs one before a test's own database, and gives the database's address through it.
func setup(t *testing.T, change func(*bouncer.Options)) (s *bouncer.Server, through string) {
	t.Helper()
	u, err := url.Parse(pgtest.New(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	opts := bouncer.Options{Target: u.Host, User: u.User.Username(), Password: password}
	if change != nil {
		change(&opts)
	}
	s = start(t, opts)
	u.Host = s.Address()
	return s, u.String() + "&default_query_exec_mode=exec"
}

func start(t *testing.T, opts bouncer.Options) *bouncer.Server {
	t.Helper()
	s, err := bouncer.Start(t.Context(), opts)
	if errors.Is(err, bouncer.ErrNoBouncer) {
		skip.Without(t, "PgBouncer", "apt-get install pgbouncer", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestServer_ClientsShareAsManySessionsAsThePoolHas(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	s, through := setup(t, func(o *bouncer.Options) { o.PoolSize = 2 })
	if s.Address() == "" || strings.HasSuffix(s.Address(), ":0") {
		t.Fatalf("its address is %q", s.Address())
	}
	if !strings.HasPrefix(s.Version(), "PgBouncer 1.") {
		t.Errorf("its version is %q", s.Version())
	}
	a, b, c := connect(t, through), connect(t, through), connect(t, through)
	pgtest.Exec(t, a, "begin")
	pgtest.Exec(t, b, "begin")
	third := make(chan error, 1)
	go func() {
		_, err := c.Exec(context.Background(), "begin")
		third <- err
	}()
	wait.Until(t, "a third transaction waits", func() bool {
		clients, sessions := waiting(t, through)
		if sessions > 2 {
			t.Fatalf("there are %d sessions in a pool of two", sessions)
		}
		return clients == 1
	})
	if len(third) != 0 {
		t.Fatal("three transactions are open in a pool of two")
	}
	pgtest.Exec(t, a, "commit")
	if err := <-third; err != nil {
		t.Error(err)
	}
}

// waiting is how many clients wait for a session, and how many sessions there are or are being made, by the console.
func waiting(t *testing.T, through string) (clients, sessions int) {
	t.Helper()
	u, err := url.Parse(through)
	if err != nil {
		t.Fatal(err)
	}
	u.Path, u.RawQuery = "/pgbouncer", "sslmode=disable"
	conn, err := pgconn.Connect(t.Context(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	results, err := conn.Exec(t.Context(), "show pools").ReadAll()
	if err != nil || len(results) != 1 {
		t.Fatalf("show pools: %d results, %v", len(results), err)
	}
	known := 0
	for i, field := range results[0].FieldDescriptions {
		count := &sessions
		switch field.Name {
		case "cl_waiting":
			count = &clients
		case "sv_active", "sv_idle", "sv_used", "sv_tested", "sv_login":
		default:
			continue
		}
		known++
		for _, row := range results[0].Rows {
			n, err := strconv.Atoi(string(row[i]))
			if err != nil {
				t.Fatal(err)
			}
			*count += n
		}
	}
	if known != 6 {
		t.Fatalf("show pools has %d of the columns, want 6", known)
	}
	return clients, sessions
}

func TestServer_RestartBringsAKilledBouncerBackAtItsAddress(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	s, through := setup(t, nil)
	conn, address := connect(t, through), s.Address()
	pgtest.Count(t, conn, "select 1")
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection outlived Kill")
	}
	if _, err := net.Dial("tcp", address); err == nil {
		t.Error("it answers after Kill")
	}
	if err := s.Pause(); err == nil {
		t.Error("Pause of what does not run is taken")
	}
	for range 2 { // the second time it runs
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.Address() != address {
			t.Errorf("it moved from %s to %s", address, s.Address())
		}
		pgtest.Count(t, connect(t, through), "select 1")
	}
}

func TestServer_APausedOneHoldsItsConnectionsAndGoesOnWithThem(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	s, through := setup(t, nil)
	conn := connect(t, through)
	pgtest.Exec(t, conn, "create table things (n int)")
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := pgx.Connect(ctx, through); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a new connection: %v, want no answer", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "insert into things values (1)")
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("while it was paused a statement ended with %v", err)
	case <-ctx.Done():
	}
	if err := s.Unpause(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatalf("restart of a paused one: %v", err)
	}
	if n := pgtest.Count(t, connect(t, through), "select count(*) from things"); n != 1 {
		t.Errorf("%d things, want 1", n)
	}
	if err := s.Pause(); err != nil { // the clean-up finds it paused
		t.Fatal(err)
	}
}

func TestServer_ItStartsAndRestartsWhileItsTargetIsAway(t *testing.T) {
	t.Parallel()
	s := start(t, bouncer.Options{Target: "127.0.0.1:1", User: `a "user"`, Password: "a%2'b\"c = d"})
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestServer_StopRemovesTheFolderAndIsFinal(t *testing.T) {
	t.Parallel()
	s := start(t, bouncer.Options{Target: "127.0.0.1:1", User: "u"})
	if _, err := os.Stat(s.Dir()); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	s.Stop()
	if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	if _, err := net.Dial("tcp", s.Address()); err == nil {
		t.Error("it answers after Stop")
	}
	for name, err := range map[string]error{"Restart": s.Restart(t.Context()), "Kill": s.Kill(), "Pause": s.Pause(), "Unpause": s.Unpause()} {
		if err == nil {
			t.Errorf("%s after Stop is taken", name)
		}
	}
}

func TestServer_OptionsReportAllThatIsWrongAtOnce(t *testing.T) {
	t.Parallel()
	_, err := bouncer.Start(t.Context(), bouncer.Options{Target: "nowhere", User: "a\nb", Password: "secret\n", PoolSize: -1, MaxClients: -1,
		StartTimeout: -1, Settings: map[string]string{"listen_port": "1", "a = b": "c", "verbose": "1\n2"}})
	if err == nil {
		t.Fatal("they are taken")
	}
	for _, want := range []string{"Target", "User", "Password", "PoolSize", "MaxClients", "StartTimeout", "listen_port", "a = b", "verbose"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("%q shows the password", err)
	}
}

func TestServer_WithoutTheProgramTheErrorSaysSo(t *testing.T) {
	t.Parallel()
	_, err := bouncer.Start(t.Context(), bouncer.Options{Target: "127.0.0.1:1", User: "u", Binary: t.TempDir() + "/pgbouncer"})
	if !errors.Is(err, bouncer.ErrNoBouncer) || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("%v", err)
	}
}
