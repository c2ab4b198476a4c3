package routers

import (
	"net/http"

	"github.com/gin-gonic/gin"
	echo4 "github.com/labstack/echo/v4"
	middleware4 "github.com/labstack/echo/v4/middleware"
	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"

	holdfastecho "github.com/holdfast-go/holdfast/contrib/echo"
	guard4 "github.com/holdfast-go/holdfast/contrib/echo/echo4"
	holdfastgin "github.com/holdfast-go/holdfast/contrib/gin"
	"github.com/holdfast-go/holdfast/idempotency"
)

// Gin guards a route of gin. errors turns c.Errors into an answer, and stands inside the guard.
func Gin(guard *idempotency.Guard, h, errors gin.HandlerFunc) http.Handler {
	e := gin.New()
	e.Use(gin.Recovery())
	e.POST("/charges", holdfastgin.Guard(guard.Middleware), errors, h)
	return e
}

// Echo5 guards a route of Echo v5.
func Echo5(guard *idempotency.Guard, h echo.HandlerFunc) http.Handler {
	e := echo.New()
	e.Use(middleware.Recover())
	e.POST("/charges", h, holdfastecho.Guard(guard.Middleware))
	return e
}

// Echo4 guards a route of Echo v4.
func Echo4(guard *idempotency.Guard, h echo4.HandlerFunc) http.Handler {
	e := echo4.New()
	e.Use(middleware4.Recover())
	e.POST("/charges", h, guard4.Guard(guard.Middleware))
	return e
}
