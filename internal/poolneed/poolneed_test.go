package poolneed

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

func newPool(t *testing.T, connections int32) *pgxpool.Pool {
	t.Helper()
	c, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	c.MaxConns, c.MinConns = connections, 0
	pool, err := pgxpool.NewWithConfig(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func TestPoolneed_WhoComesLastHearsTheSum(t *testing.T) {
	t.Parallel()
	pool, other := newPool(t, 20), newPool(t, 4)
	var log logtest.Log
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	said := func() (parts []string) {
		for _, line := range logtest.Lines[struct {
			Level, Parts        string
			Connections, Needed int
		}](t, log.Take()) {
			if line.Level != "WARN" || line.Connections != 20 || line.Needed <= 20 {
				t.Errorf("%+v", line)
			}
			parts = append(parts, line.Parts)
		}
		return parts
	}
	Enter(nil, "relay z", 4, logger)()
	leaves := []func(){
		Enter(pool, "consumer billing", 18, logger),
		Enter(other, "relay b", 4, logger), // a pool of its own
	}
	if got := said(); len(got) > 0 {
		t.Errorf("18 of 20, and 4 of 4: %q", got)
	}
	leave := Enter(pool, "relay a", 4, logger)
	if got, want := said(), []string{"consumer billing: 18, relay a: 4"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	leave()
	leave()
	leaves = append(leaves, Enter(pool, "relay c", 2, logger))
	if got := said(); len(got) > 0 {
		t.Errorf("18 and 2 of 20: %q", got)
	}
	for _, leave := range leaves {
		leave()
	}
	mu.Lock()
	defer mu.Unlock()
	if parts[pool] != nil || parts[other] != nil {
		t.Errorf("the pools are remembered: %v, %v", parts[pool], parts[other])
	}
}
