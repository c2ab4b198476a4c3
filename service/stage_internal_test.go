package service

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/logtest"
)

func TestStage_PartsThatTakeLongToStopAreNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logtest.Log
		failure := errors.New("planned")
		g := newStage(t.Context())
		ended := func(string, error) {}
		after := func(seconds int, err error) func(context.Context) error {
			return func(ctx context.Context) error {
				<-ctx.Done()
				// sleep: in a bubble of synctest
				time.Sleep(time.Duration(seconds) * time.Second)
				return err
			}
		}
		g.start("guard", after(1, nil), ended)
		g.start("consumer billing", after(15, failure), ended)
		g.start("run funcs[0]", after(25, context.Canceled), ended)
		g.stop()
		if err := g.await(slog.New(slog.NewJSONHandler(&log, nil))); !errors.Is(err, failure) || err.Error() != "consumer billing: planned" {
			t.Errorf("got %v", err)
		}
		var said []string
		for _, line := range logtest.Lines[struct{ Level, Part, Parts string }](t, log.String()) {
			said = append(said, line.Level+" "+line.Part+line.Parts)
		}
		want := []string{"INFO guard", "WARN consumer billing, run funcs[0]", "INFO consumer billing", "WARN run funcs[0]", "INFO run funcs[0]"}
		if !slices.Equal(said, want) {
			t.Errorf("got %q, want %q", said, want)
		}
	})
}
