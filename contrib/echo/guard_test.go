package holdfastecho_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	echofour "github.com/labstack/echo/v4"
	"github.com/labstack/echo/v5"

	holdfastecho "github.com/holdfast-go/holdfast/contrib/echo"
	"github.com/holdfast-go/holdfast/contrib/echo/echo4"
	"github.com/holdfast-go/holdfast/internal/test/guarded"
)

// served is a route of each version whose handler does what is asked, with the context that it gets.
func served(k *guarded.Guard, do func(ctx context.Context, answer func(int, string) error) error) map[string]http.Handler {
	five := echo.New()
	five.POST("/shops/:shop/charges", func(c *echo.Context) error { return do(c.Request().Context(), c.String) }, holdfastecho.Guard(k.Middleware))
	four := echofour.New()
	four.POST("/shops/:shop/charges", func(c echofour.Context) error { return do(c.Request().Context(), c.String) }, echo4.Guard(k.Middleware))
	return map[string]http.Handler{"v5": five, "v4": four}
}

func TestGuard_WhatAHandlerAnswersIsInsideTheGuard(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		do     func(context.Context, func(int, string) error) error
		status int
		inside int // the status that the guard saw, 0 for none
	}{
		"an answer": {func(_ context.Context, answer func(int, string) error) error { return answer(201, "made") }, 201, 201},
		"an error":  {func(context.Context, func(int, string) error) error { return errors.New("sold out") }, 500, 500},
		"nothing":   {func(context.Context, func(int, string) error) error { return nil }, 503, 0},
		"its context": {func(ctx context.Context, answer func(int, string) error) error {
			if !guarded.Inside(ctx) {
				return errors.New("the context is not that of the guard")
			}
			return answer(202, "")
		}, 202, 202},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := &guarded.Guard{}
			for version, h := range served(k, of.do) {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/shops/7/charges", nil))
				if w.Code != of.status || k.Answer.Code != of.inside {
					t.Errorf("%s: got %d %q, inside %d; want %d, inside %d", version, w.Code, w.Body, k.Answer.Code, of.status, of.inside)
				}
				if k.Pattern != "/shops/:shop/charges" {
					t.Errorf("%s: the guard has the pattern %q", version, k.Pattern)
				}
			}
		})
	}
}

func TestGuard_WhenTheGuardAnswersNoHandlerRuns(t *testing.T) {
	t.Parallel()
	ran := false
	for version, h := range served(&guarded.Guard{Refuse: true}, func(context.Context, func(int, string) error) error { ran = true; return nil }) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/shops/7/charges", nil))
		if ran || w.Code != http.StatusConflict {
			t.Errorf("%s: the handler ran: %v; the answer is %d", version, ran, w.Code)
		}
	}
}

// Who has answered and then fails has failed: the guard sees a panic, and rolls back. Echo gets the error, and what stands outside has its own
// request and response.
func TestGuard_AnErrorAfterAnAnswerKeepsNothing(t *testing.T) {
	t.Parallel()
	sold := errors.New("sold out")
	for name, do := range map[string]func(context.Context, func(int, string) error) error{
		"it answers, and fails": func(_ context.Context, answer func(int, string) error) error {
			_ = answer(http.StatusCreated, "made")
			return sold
		},
		"it panics": func(context.Context, func(int, string) error) error { panic(sold) },
		"it answers": func(_ context.Context, answer func(int, string) error) error {
			return answer(http.StatusCreated, "made")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got [2]error // what the middleware outside of the guard of v4 and v5 got
			var same [2]bool
			k := &guarded.Guard{}
			five, four := echo.New(), echofour.New()
			five.POST("/charges", func(c *echo.Context) error { return do(c.Request().Context(), c.String) }, func(next echo.HandlerFunc) echo.HandlerFunc {
				return func(c *echo.Context) error {
					request, response := c.Request(), c.Response()
					defer func() { same[1] = c.Request() == request && c.Response() == response }()
					got[1] = recovered(func() error { return next(c) })
					return got[1]
				}
			}, holdfastecho.Guard(k.Middleware))
			four.POST("/charges", func(c echofour.Context) error { return do(c.Request().Context(), c.String) }, func(next echofour.HandlerFunc) echofour.HandlerFunc {
				return func(c echofour.Context) error {
					request, response := c.Request(), c.Response()
					defer func() { same[0] = c.Request() == request && c.Response() == response }()
					got[0] = recovered(func() error { return next(c) })
					return got[0]
				}
			}, echo4.Guard(k.Middleware))
			want, status := sold, http.StatusInternalServerError
			if name == "it answers" {
				want, status = nil, http.StatusCreated
			}
			for i, h := range []http.Handler{four, five} {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", nil))
				if w.Code != status || !errors.Is(got[i], want) || !same[i] {
					t.Errorf("v%d: %d %q, with %v; the request and response outside are the same: %v", 4+i, w.Code, w.Body, got[i], same[i])
				}
			}
		})
	}
}

// recovered makes an error of a panic that is one.
func recovered(next func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = p.(error)
		}
	}()
	return next()
}
