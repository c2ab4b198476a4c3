package pgtest

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/servers"
)

// Options says how your own server runs. The zero value works.
type Options struct {
	// Settings are lines of postgresql.conf, by name. They win over the defaults, which are max_connections=200,
	// wal_level=replica and max_prepared_transactions=20. Unless they say otherwise, or are NoSync's, the server keeps its
	// promises to the disk.
	Settings map[string]string
}

// NoSync is the Settings for tests of logic: commits outlive a crash of the server but not of the machine. The caller owns
// the map.
func NoSync() map[string]string {
	return map[string]string{"fsync": "off", "full_page_writes": "off"}
}

// Server is a PostgreSQL of your own. Its methods may be called from any goroutine; they run one after another.
type Server struct {
	// DSN connects to the database "postgres" as a superuser. It stays the same over Restart.
	DSN string

	id     int
	binDir string
}

// Own starts a server for this test alone, for tests that kill or restart it, from this machine's binaries. Open a
// database on it with On.
func Own(t testing.TB, opts Options) *Server {
	t.Helper()
	s, err := start("OwnPostgres", servers.PostgresArgs{Settings: opts.Settings})
	need(t, err)
	t.Cleanup(s.Stop)
	return s
}

// InitStandby starts a server that follows primary by streaming replication, read-only. It has the primary's settings;
// opts.Settings win over those. It fails when the binaries have no pg_basebackup.
func InitStandby(ctx context.Context, primary *Server, opts Options) (*Server, error) {
	var reply servers.PostgresReply
	if err := servers.Call(ctx, "StandbyPostgres", servers.PostgresArgs{Primary: primary.id, Settings: opts.Settings}, &reply); err != nil {
		return nil, err
	}
	return serverOf(reply), nil
}

// Kill ends the server at once, as a crash does. It returns when the server is gone.
func (s *Server) Kill() error { return s.do(context.Background(), servers.Kill) }

// StopFast ends the server in good order; Restart brings it back.
func (s *Server) StopFast() error { return s.do(context.Background(), servers.StopFast) }

// Restart stops the server in good order if it runs, and starts it on the same data and port.
func (s *Server) Restart(ctx context.Context) error { return s.do(ctx, servers.Restart) }

// Promote makes a standby a primary and returns when it accepts writes.
func (s *Server) Promote(ctx context.Context) error { return s.do(ctx, servers.Promote) }

// Stop ends the server for good and removes its folder. It may be called many times.
func (s *Server) Stop() { _ = s.do(context.Background(), servers.End) }

// BinDir is the folder of the binaries that the server runs from.
func (s *Server) BinDir() string { return s.binDir }

func (s *Server) do(ctx context.Context, verb string) error {
	return servers.Call(ctx, "Postgres", servers.DoArgs{ID: s.id, Verb: verb}, &servers.DoReply{})
}

// start asks for a server.
func start(method string, args servers.PostgresArgs) (*Server, error) {
	var reply servers.PostgresReply
	err := servers.Call(context.Background(), method, args, &reply)
	switch {
	case err != nil:
		return nil, err
	case reply.Missing != "":
		return nil, servers.Missing(reply.Missing)
	}
	return serverOf(reply), nil
}

func serverOf(reply servers.PostgresReply) *Server {
	return &Server{DSN: reply.DSN, id: reply.ID, binDir: reply.BinDir}
}
