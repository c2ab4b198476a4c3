package holdfastecho

import (
	"net/http"

	"github.com/labstack/echo/v5"

	"github.com/holdfast-go/holdfast/contrib/echo/internal/rollback"
)

// Guard makes a middleware of Echo v5 from one of net/http: Guard.Middleware of package idempotency, or what Guard.Route of that package
// returns. What the handlers behind it return as an error is written inside the guard, by Echo's HTTPErrorHandler, and not returned. If they
// have answered before, nothing of that is kept: the error goes to Echo, and the next request with the key runs anew. Many goroutines may
// use it at once.
func Guard(guarded func(http.Handler) http.Handler) echo.MiddlewareFunc {
	guard := echo.WrapMiddleware(guarded)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		inside := guard(func(c *echo.Context) error {
			err := next(c)
			if err == nil {
				return nil
			}
			if w, unwrap := echo.UnwrapResponse(c.Response()); unwrap == nil && w.Committed {
				rollback.Panic(err)
			}
			c.Echo().HTTPErrorHandler(c, err)
			return nil
		})
		return func(c *echo.Context) (err error) {
			request, response := c.Request(), c.Response()
			defer rollback.Recover(&err)
			defer func() {
				c.SetRequest(request)
				c.SetResponse(response)
			}()
			return inside(c)
		}
	}
}
