package holdfastgin_test

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"

	"github.com/gin-gonic/gin"

	holdfastgin "github.com/holdfast-go/holdfast/contrib/gin"
	"github.com/holdfast-go/holdfast/internal/test/guarded"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	os.Exit(m.Run())
}

// connection has a connection that can be taken.
type connection struct {
	*httptest.ResponseRecorder
	taken bool
}

func (c *connection) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.taken = true
	return nil, nil, nil
}

func TestGuard_WhatAHandlerAnswersIsInsideTheGuard(t *testing.T) {
	t.Parallel()
	errorsToAnswers := func(c *gin.Context) {
		if c.Next(); len(c.Errors) > 0 {
			c.JSON(http.StatusTeapot, gin.H{"error": c.Errors.Last().Error()})
		}
	}
	for name, of := range map[string]struct {
		handler gin.HandlerFunc
		status  int
		body    string
		inside  int // the status that the guard saw, 0 for none
	}{
		"an answer":           {func(c *gin.Context) { c.String(http.StatusCreated, "made") }, 201, "made", 201},
		"a status":            {func(c *gin.Context) { c.Status(http.StatusNoContent) }, 204, "", 204},
		"an error":            {func(c *gin.Context) { _ = c.Error(errors.New("sold out")) }, 418, `{"error":"sold out"}`, 418},
		"an abort":            {func(c *gin.Context) { c.AbortWithStatus(http.StatusForbidden) }, 403, "", 403},
		"nothing":             {func(*gin.Context) {}, 503, "no answer\n", 0},
		"a status that stays": {func(c *gin.Context) { c.Status(http.StatusConflict); c.JSON(-1, gin.H{}) }, 409, "{}", 409},
		"a status too late": {func(c *gin.Context) {
			c.String(http.StatusCreated, "made")
			if c.Status(http.StatusInternalServerError); c.Writer.Status() != http.StatusCreated {
				panic("it says that it sent something else")
			}
		}, 201, "made", 201},
		"two headers": {func(c *gin.Context) { c.Status(202); c.String(http.StatusAccepted, "yes") }, 202, "yes", 202},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, e := &guarded.Guard{}, gin.New()
			e.POST("/shops/:shop/charges", holdfastgin.Guard(k.Middleware), errorsToAnswers, of.handler)
			w := httptest.NewRecorder()
			e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/shops/7/charges", nil))
			if w.Code != of.status || w.Body.String() != of.body || k.Answer.Code != of.inside {
				t.Errorf("got %d %q, inside %d; want %d %q, inside %d", w.Code, w.Body, k.Answer.Code, of.status, of.body, of.inside)
			}
			if k.Pattern != "/shops/:shop/charges" {
				t.Errorf("the guard has the pattern %q", k.Pattern)
			}
		})
	}
}

func TestGuard_WhenTheGuardAnswersNoHandlerRuns(t *testing.T) {
	t.Parallel()
	k, e, ran := &guarded.Guard{Refuse: true}, gin.New(), false
	e.POST("/charges", holdfastgin.Guard(k.Middleware), func(*gin.Context) { ran = true })
	w := httptest.NewRecorder()
	e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", nil))
	if ran || w.Code != http.StatusConflict {
		t.Errorf("the handler ran: %v; the answer is %d", ran, w.Code)
	}
}

func TestGuard_AHandlerCannotTakeTheConnection(t *testing.T) {
	t.Parallel()
	k, e := &guarded.Guard{}, gin.New()
	var failed error
	e.POST("/charges", holdfastgin.Guard(k.Middleware), func(c *gin.Context) { _, _, failed = c.Writer.Hijack() })
	w := &connection{ResponseRecorder: httptest.NewRecorder()}
	e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", nil))
	if w.taken || !errors.Is(failed, http.ErrNotSupported) {
		t.Errorf("the connection is taken: %v; the handler got %v", w.taken, failed)
	}
}

// What stands outside the guard has its own writer and request again, also after a panic.
func TestGuard_MiddlewaresOutsideSeeWhatTheyHad(t *testing.T) {
	t.Parallel()
	for _, panics := range []bool{false, true} {
		k, e := &guarded.Guard{}, gin.New()
		e.Use(func(c *gin.Context) {
			writer, request := c.Writer, c.Request
			defer func() {
				if recovered := recover(); (recovered != nil) != panics {
					t.Errorf("it panicked with %v", recovered)
				}
				if c.Writer != writer || c.Request != request {
					t.Errorf("after a panic %v: the writer is %T, the same %v; the request is the same %v", panics, c.Writer, c.Writer == writer, c.Request == request)
				}
			}()
			c.Next()
		})
		e.POST("/charges", holdfastgin.Guard(k.Middleware), func(c *gin.Context) {
			if panics {
				panic("planned")
			}
			c.Status(http.StatusOK)
		})
		e.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", nil))
	}
}

// A group's guard is called for paths without a route, if it stands around the engine: they pass. What has run is not aborted.
func TestGuard_WhatHasNoRoutePasses(t *testing.T) {
	t.Parallel()
	k, e, aborted := &guarded.Guard{}, gin.New(), false
	e.Use(func(c *gin.Context) {
		c.Next()
		aborted = c.IsAborted()
	}, holdfastgin.Guard(k.Middleware))
	e.POST("/charges", func(c *gin.Context) { c.Status(http.StatusOK) })
	for path, want := range map[string]int{"/charges": http.StatusOK, "/other": http.StatusNotFound} {
		k.Answer = nil
		w := httptest.NewRecorder()
		e.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil))
		if w.Code != want || (k.Answer == nil) != (want == http.StatusNotFound) || aborted {
			t.Errorf("%s: %d, guarded %v, aborted %v", path, w.Code, k.Answer != nil, aborted)
		}
	}
}
