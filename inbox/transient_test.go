package inbox

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

// Sixteen workers that wait for one database say so once a minute, and the observer hears of every try.
func TestTransient_TheLogSaysOnceAMinuteWhatIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		heard := 0
		in := &env{settings: settings{c: Config{Consumer: "billing", Logger: slog.New(slog.NewTextHandler(&log, nil)), Observer: Observer{OnError: func(error) { heard++ }}}}}
		away, full := errors.New("connection refused"), &pgconn.PgError{Severity: "FATAL", Code: "53300", Message: "too many clients"}
		for range 25 { // tries of each, 6 s apart
			in.transient(away)
			in.transient(full)
			time.Sleep(6 * time.Second)
		}
		if heard != 50 {
			t.Errorf("the observer heard of %d tries, want 50", heard)
		}
		for _, kind := range []string{"refused", "53300"} {
			var lines []string
			for line := range strings.Lines(log.String()) {
				if strings.Contains(line, kind) {
					lines = append(lines, line)
				}
			}
			if len(lines) != 3 {
				t.Fatalf("%d lines in 150 s say %s, want 3: %q", len(lines), kind, lines)
			}
			if strings.Contains(lines[0], "suppressed") || !strings.Contains(lines[1], "suppressed=9") || !strings.Contains(lines[2], "suppressed=9") {
				t.Errorf("they do not say how many were not logged: %q", lines)
			}
		}
	})
}
