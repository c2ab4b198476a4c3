package holdfastecho_test

import (
	"net/http"

	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	holdfastecho "github.com/holdfast-go/holdfast/contrib/echo"
	"github.com/holdfast-go/holdfast/idempotency"
)

func Example() {
	_ = func(guard *idempotency.Guard, refund echo.HandlerFunc) http.Handler {
		// snippet: echo
		e := echo.New()
		e.Use(middleware.Recover())
		e.POST("/refunds/:charge", refund, holdfastecho.Guard(guard.Middleware))
		// end snippet
		return e
	}
}
