package pgserver_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

// start runs a server for the test, or skips where there is none to be had.
func start(t *testing.T, opts pgserver.Options) *pgserver.Server {
	t.Helper()
	opts.NoDownload = true
	began := time.Now()
	s, err := pgserver.Start(t.Context(), opts)
	if errors.Is(err, pgserver.ErrNoServer) {
		skip.Without(t, "PostgreSQL", "install it", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	t.Logf("started in %s", time.Since(began).Round(time.Millisecond))
	return s
}

// value runs a query of one text value on a connection of its own.
func value(t *testing.T, s *pgserver.Server, sql string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var got string
	if err := conn.QueryRow(ctx, sql).Scan(&got); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return got
}

func exec(t *testing.T, s *pgserver.Server, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestServer_SettingsReachTheServerAndWinOverTheDefaults(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	s := start(t, pgserver.Options{Settings: map[string]string{
		"fsync": "off", "max_connections": "37", "cluster_name": "it's mine",
	}})
	for setting, want := range map[string]string{
		"fsync":                     "off",
		"max_connections":           "37",
		"cluster_name":              "it's mine",
		"wal_level":                 "replica",
		"max_prepared_transactions": "20",
		"listen_addresses":          "127.0.0.1",
		"server_encoding":           "UTF8",
	} {
		if got := value(t, s, "show "+setting); got != want {
			t.Errorf("%s is %q, want %q", setting, got, want)
		}
	}
}

func TestServer_CommitsAreOnDiskByDefault(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	s := start(t, pgserver.Options{})
	if got := value(t, s, "show fsync"); got != "on" {
		t.Errorf("fsync is %s, and a benchmark on it measures nothing", got)
	}
}

func TestServer_ASettingThatWouldMoveTheServerIsRefused(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"port": "5432", "listen_addresses": "*", "fsync": "off\nport = 1", "bad name": "x",
	} {
		s, err := pgserver.Start(t.Context(), pgserver.Options{Settings: map[string]string{name: value}})
		if err == nil {
			s.Stop()
			t.Errorf("%s=%q was taken", name, value)
		} else if !strings.Contains(err.Error(), "Settings[") {
			t.Errorf("%s=%q: %v does not name the setting", name, value, err)
		}
	}
}

func TestServer_ARefusedSettingIsReportedWithTheServersLog(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	dir := openDir(t)
	s, err := pgserver.Start(t.Context(), pgserver.Options{
		NoDownload: true, Dir: dir, Settings: map[string]string{"wal_level": "imaginary"},
	})
	if err == nil {
		s.Stop()
		t.Fatal("the server started")
	}
	if errors.Is(err, pgserver.ErrNoServer) {
		skip.Without(t, "PostgreSQL", "install it", err)
	}
	if !strings.Contains(err.Error(), "wal_level") {
		t.Errorf("the log is not in the error: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// openDir is a temporary folder that the server's user may write to.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestServer_WhatWasCommittedIsThereAfterKillAndRestart(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	s := start(t, pgserver.Options{})
	before := s.DSN
	exec(t, s, "create table kept (n int)")
	exec(t, s, "insert into kept values (42)")

	open, err := pgx.Connect(t.Context(), s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close(context.Background())
	if _, err := open.Exec(t.Context(), "begin; insert into kept values (43)"); err != nil {
		t.Fatal(err)
	}

	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := open.Ping(t.Context()); err == nil {
		t.Error("a connection outlived Kill")
	}
	if _, err := pgx.Connect(t.Context(), s.DSN); err == nil {
		t.Error("a server answers after Kill")
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.DSN != before {
		t.Errorf("the address changed from %s to %s", before, s.DSN)
	}
	if got := value(t, s, "select string_agg(n::text, ',') from kept"); got != "42" {
		t.Errorf("rows after the crash: %s, want 42", got)
	}
}

func TestServer_RestartOfARunningServerStopsItInGoodOrderFirst(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	t.Parallel()
	s := start(t, pgserver.Options{Settings: pgserver.NoSync()})
	first := value(t, s, "select pg_postmaster_start_time()::text")
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if again := value(t, s, "select pg_postmaster_start_time()::text"); again == first {
		t.Error("it is the same run of the server")
	}
	if log := string(readLog(t, s)); strings.Contains(log, "was not properly shut down") {
		t.Errorf("the restart had to recover:\n%s", log)
	}
}

func TestServer_StopFastTellsConnectionsWhyAndRestartBringsTheServerBack(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	s := start(t, pgserver.Options{Settings: pgserver.NoSync()})
	conn, err := pgx.Connect(t.Context(), s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := s.StopFast(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "select 1"); err == nil || !strings.Contains(err.Error(), "57P01") {
		t.Errorf("the connection ended with %v, want admin_shutdown (57P01)", err)
	}
	if err := s.StopFast(); err != nil {
		t.Errorf("stopping what is stopped: %v", err)
	}
	if err := s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	value(t, s, "select 'back'")
}

func TestServer_StopRemovesTheServerAndItsFolder(t *testing.T) {
	skip.InShort(t, "it takes 6 s beside the others")
	t.Parallel()
	s := start(t, pgserver.Options{Settings: pgserver.NoSync()})
	s.Stop()
	s.Stop()
	if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
	if _, err := pgx.Connect(t.Context(), s.DSN); err == nil {
		t.Error("a server answers after Stop")
	}
	if err := s.Restart(t.Context()); err == nil {
		t.Error("Restart after Stop is taken")
	}
	if err := s.Kill(); err == nil {
		t.Error("Kill after Stop is taken")
	}
}

func TestServer_StartGivesUpWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s, err := pgserver.Start(ctx, pgserver.Options{NoDownload: true, Dir: dir})
	if err == nil {
		s.Stop()
		t.Fatal("it started")
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func readLog(t *testing.T, s *pgserver.Server) []byte {
	t.Helper()
	log, err := os.ReadFile(s.Dir() + "/server.log")
	if err != nil {
		t.Fatal(err)
	}
	return log
}
