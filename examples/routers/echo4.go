package routers

import (
	"net/http"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"

	"github.com/holdfast-go/holdfast/idempotency"
)

// Echo4 guards a route of Echo v4. Echo knows its pattern, and http.Request does not, so Route names the operation.
func Echo4(guard *idempotency.Guard, h echo.HandlerFunc) http.Handler {
	e := echo.New()
	e.Use(middleware.Recover())
	e.POST("/charges", h, GuardEcho4(guard.Route(idempotency.Route{Operation: "POST /charges"})))
	return e
}

// GuardEcho4 makes a middleware of Echo v4. Echo writes what a handler returns when all middlewares have returned. Here it is
// written inside the guard, by the same HTTPErrorHandler.
func GuardEcho4(guarded func(http.Handler) http.Handler) echo.MiddlewareFunc {
	guard := echo.WrapMiddleware(guarded)
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return guard(func(c echo.Context) error {
			if err := next(c); err != nil {
				c.Error(err)
			}
			return nil
		})
	}
}
