package pgserver_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/rig/pgserver"
)

func TestPause_APausedServerAnswersNothingUntilItGoesOn(t *testing.T) {
	skip.InShort(t, "it takes 5 s beside the others")
	t.Parallel()
	s := start(t, pgserver.Options{Password: "known"})
	conn, err := pgx.Connect(t.Context(), s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	answered := make(chan error, 1)
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	go func() { answered <- conn.Ping(context.Background()) }()
	late, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if other, err := pgx.Connect(late, s.DSN); err == nil {
		_ = other.Close(t.Context())
		t.Error("a paused server took a connection")
	} else if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a paused server refused a connection: %v", err)
	}
	select {
	case err := <-answered:
		t.Errorf("a paused server answered: %v", err)
	default:
	}
	if err := s.Unpause(); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("what was asked while it was paused: %v", err)
	}
}
