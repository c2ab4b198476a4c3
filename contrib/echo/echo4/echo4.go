// Package echo4 puts a guard of package idempotency in front of routes of Echo v4, as package holdfastecho does for v5.
//
//	e.POST("/refunds/:charge", refund, echo4.Guard(guard.Middleware))
package echo4

import (
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/holdfast-go/holdfast/contrib/echo/internal/rollback"
)

// Guard makes a middleware of Echo v4 from one of net/http: Guard.Middleware of package idempotency, or what Guard.Route of that package
// returns. What the handlers behind it return as an error is written inside the guard, by Echo's HTTPErrorHandler, and not returned. If they
// have answered before, nothing of that is kept: the error goes to Echo, and the next request with the key runs anew. Many goroutines may
// use it at once.
func Guard(guarded func(http.Handler) http.Handler) echo.MiddlewareFunc {
	guard := echo.WrapMiddleware(guarded)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		inside := guard(func(c echo.Context) error {
			err := next(c)
			if err == nil {
				return nil
			}
			if c.Response().Committed {
				rollback.Panic(err)
			}
			c.Echo().HTTPErrorHandler(err, c)
			return nil
		})
		return func(c echo.Context) (err error) {
			request, response := c.Request(), c.Response()
			defer rollback.Recover(&err)
			defer func() {
				c.SetRequest(request)
				c.SetResponse(response)
			}()
			if path := c.Path(); path != "" { // Echo v5 says it itself
				r := request.WithContext(request.Context())
				r.Pattern = path
				c.SetRequest(r)
			}
			return inside(c)
		}
	}
}
