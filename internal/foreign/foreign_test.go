package foreign_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/internal/foreign"
	"github.com/holdfast-go/holdfast/internal/test/badly"
)

func TestForeign_AnErrorThatMayPanicIsReadAllTheSame(t *testing.T) {
	for _, bad := range badly.Errors() {
		t.Run(bad.Name, func(t *testing.T) {
			var pg *pgconn.PgError
			for how, err := range map[string]error{
				"alone":   foreign.Error(bad.Err),
				"wrapped": fmt.Errorf("handle: %w", foreign.Error(bad.Err)),
				"twice":   foreign.Error(fmt.Errorf("handle: %w", foreign.Error(bad.Err))),
				"joined":  foreign.Error(errors.Join(bad.Err, io.EOF)),
			} {
				if text := err.Error(); !strings.Contains(text, bad.Says) || strings.Contains(text, "4111") || strings.Count(text, "panicked") > 1 {
					t.Errorf("%s: the text is %q, want %q in it once", how, text, bad.Says)
				}
				if text := fmt.Sprint(err); !strings.Contains(text, bad.Says) {
					t.Errorf("%s: fmt prints %q", how, text)
				}
				if errors.Is(err, io.EOF) && how != "joined" || errors.As(err, &pg) {
					t.Errorf("%s: it is an end of file, or of Postgres: %v", how, pg)
				}
				_ = foreign.Broken(err)
				for e := range foreign.All(err) {
					_ = foreign.Innermost(e)
				}
			}
			if text := foreign.Text(bad.Err); strings.Contains(text, "4111") {
				t.Errorf("the text is %q", text)
			}
		})
	}
}

func TestForeign_AnErrorThatReadsWellStaysTheSame(t *testing.T) {
	for _, err := range []error{nil, io.EOF, fmt.Errorf("read: %w", io.EOF), errors.Join(io.EOF, &pgconn.PgError{Code: "23505"})} {
		if got := foreign.Error(err); got != err {
			t.Errorf("%v became %#v", err, got)
		}
	}
	once := foreign.Error((*pgconn.PgError)(nil))
	if got := foreign.Error(once); got != once {
		t.Errorf("what was read is read again: %#v", got)
	}
}

func TestForeign_WhatAnErrorWrapsIsFoundBesideWhatPanics(t *testing.T) {
	server := &pgconn.PgError{Code: "23505"}
	for _, bad := range badly.Errors() {
		err := foreign.Error(errors.Join(bad.Err, fmt.Errorf("b: %w", server)))
		var got *pgconn.PgError
		if bad.Name == "it wraps itself" { // Nothing behind a cycle is reached.
			continue
		}
		if !errors.As(err, &got) || got != server || !errors.Is(err, server) {
			t.Errorf("%s: found %v", bad.Name, got)
		}
	}
}

func TestForeign_APanicValueIsToldByItsTextOrItsType(t *testing.T) {
	for _, row := range []struct {
		value any
		want  string
	}{
		{"out of cheese", "out of cheese"}, {io.EOF, "EOF"}, {nil, "<nil>"}, {struct{ card string }{"4111"}, "a value of type struct { card string }"},
	} {
		if got := foreign.Text(row.value); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
}
