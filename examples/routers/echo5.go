package routers

import (
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	"github.com/holdfast-go/holdfast/idempotency"
)

// Echo5 guards a route of Echo v5, which tells http.Request its pattern without the method.
func Echo5(guard *idempotency.Guard, h echo.HandlerFunc) http.Handler {
	e := echo.New()
	e.Use(middleware.Recover())
	e.POST("/charges", h, GuardEcho5(guard.Middleware))
	return e
}

// GuardEcho5 makes a middleware of Echo v5, as GuardEcho4 does.
func GuardEcho5(guarded func(http.Handler) http.Handler) echo.MiddlewareFunc {
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
