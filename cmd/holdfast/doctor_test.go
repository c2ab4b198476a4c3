package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/doctor"
	"github.com/holdfast-go/holdfast/internal/state"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestDoctor_DoctorNoticesTwoRelaysOfOneName(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	db := installed(t)
	one := startSidecar(t, db, nil, "--brokers", "127.0.0.1:1", "--lease", "1s")
	says := func(want string) {
		t.Helper()
		wait.Until(t, "doctor says "+want, func() bool {
			_, out, _ := call(t, "doctor", "--pause", "2s")
			return strings.Contains(out, want) && pgtest.Count(t, db.Pool, claimedLanes) > 0
		})
	}
	says("no relay claims its own lanes again")
	two := startSidecar(t, db, nil, "--brokers", "127.0.0.1:1", "--lease", "1s")
	says("relay the sidecar has claimed ")
	_, _ = one.Process.Kill(), two.Process.Kill()
}

func TestDoctor_DoctorPrintsEachCheckAndItsCommand(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	db := installed(t)
	out := wantStatus(t, 0, "the schema has the hash of this build", "doctor", "--pause", "1ms", "--workers", "2", "--pool-size", "5")
	for _, want := range []string{"add pool_max_conns=6 to the connection string", "the clock of this machine agrees", "connections are used", "each consumer has one consumer group", "no relay claims its own lanes again", "\nnothing needs a person\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("doctor does not say %q:\n%s", want, out)
		}
	}
	// It ends with the list of status.
	pgtest.Exec(t, db.Pool, "insert into holdfast.pause (topic, by, reason) values ('orders', 'ann', 'a test')")
	const paused = ", by ann (a test): holdfast resume --topic orders --reason WHY"
	wantStatus(t, 1, paused, "status")
	wantStatus(t, 1, paused, "doctor", "--pause", "1ms")
	wantStatus(t, 1, paused, "doctor", "--pause", "1ms", "--json")
	pgtest.Exec(t, db.Pool, "delete from holdfast.pause")
	pgtest.Exec(t, db.Pool, "drop index holdfast.stored_due")
	out = wantStatus(t, 1, `"state":"fail"`, "doctor", "--pause", "1ms", "--json")
	var object struct{ Checks []doctor.Finding }
	if err := json.Unmarshal([]byte(out), &object); err != nil || len(object.Checks) < 9 || object.Checks[0].Check != "schema" || object.Checks[0].Command != "holdfast migrate --print" {
		t.Errorf("%v: %s", err, out)
	}
	if out := wantStatus(t, 1, "\na check fails: see above\n", "doctor", "--pause", "1ms"); strings.Contains(out, "nothing needs a person") {
		t.Errorf("a check fails, and it says\n%s", out)
	}
	wantStatus(t, 2, "--sasl-user is empty", "doctor", "--brokers", "127.0.0.1:1", "--sasl-mechanism", "plain")
}

// A user who may not read what needs a person is told so, and not that nothing does.
func TestDoctor_DoctorDoesNotSayThatNothingNeedsAPersonUnread(t *testing.T) {
	t.Parallel()
	for _, asJSON := range []bool{false, true} {
		var out bytes.Buffer
		needy, err := (&doctorCmd{JSON: asJSON}).print(&out, []doctor.Finding{{Check: "needs", State: doctor.NotMade}}, nil)
		if needy || err != nil || strings.Contains(out.String(), "needs a person") || strings.Contains(out.String(), "needs_a_person") {
			t.Errorf("needy %v, %v: %s", needy, err, out.String())
		}
		out.Reset()
		needy, err = (&doctorCmd{JSON: asJSON}).print(&out, nil, []state.Need{{Says: "this", Command: "that"}})
		if !needy || err != nil || !strings.Contains(out.String(), "this: that") {
			t.Errorf("needy %v, %v: %s", needy, err, out.String())
		}
	}
}
