package pgserver_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

func TestStandby_AStandbyFollowsItsPrimaryReadOnlyUntilItIsPromoted(t *testing.T) {
	skip.InShort(t, "it takes 8 s beside the others")
	t.Parallel()
	primary := start(t, pgserver.Options{Settings: pgserver.NoSync()})
	exec(t, primary, "create table followed (n int)")
	standby, err := pgserver.InitStandby(t.Context(), primary, pgserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(standby.Stop)

	if got := value(t, standby, "select pg_is_in_recovery()::text"); got != "true" {
		t.Fatalf("the standby is in recovery: %s", got)
	}
	exec(t, primary, "insert into followed values (1), (2)")
	wait.Until(t, "the rows arrive on the standby", func() bool {
		return value(t, standby, "select count(*)::text from followed") == "2"
	})
	if got := value(t, primary, "show port"); got == value(t, standby, "show port") {
		t.Errorf("both use port %s", got)
	}
	// A standby stays one over a restart.
	if err := standby.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := value(t, standby, "select pg_is_in_recovery()::text"); got != "true" {
		t.Fatalf("after a restart the standby is in recovery: %s", got)
	}

	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, standby, "insert into followed values (3)")
	if got := value(t, primary, "select count(*)::text from followed"); got != "2" {
		t.Errorf("the primary has %s rows, want its own 2", got)
	}
	if err := primary.Promote(t.Context()); err == nil {
		t.Error("a primary was promoted")
	}
}
