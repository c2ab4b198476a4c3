package holdfastecho

import (
	"net/http"

	"github.com/labstack/echo/v5"
)

// Guard makes a middleware of Echo v5 from one of net/http: Guard.Middleware of package idempotency, or what Guard.Route of that package
// returns. What the handlers behind it return as an error is written inside the guard, by Echo's HTTPErrorHandler, and not returned. Many
// goroutines may use it at once.
func Guard(guarded func(http.Handler) http.Handler) echo.MiddlewareFunc {
	guard := echo.WrapMiddleware(guarded)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return guard(func(c *echo.Context) error {
			if err := next(c); err != nil {
				c.Echo().HTTPErrorHandler(c, err)
			}
			return nil
		})
	}
}
