package routers

import (
	"net/http"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/gofiber/fiber/v3/middleware/recover"

	"github.com/holdfast-go/holdfast/idempotency"
)

// Fiber guards a route of Fiber. The handler is one of net/http. Do not use adaptor.HTTPMiddleware: it calls the next handler
// when the middleware has returned, so there is no transaction any more, and its answer cannot be kept.
func Fiber(guard *idempotency.Guard, h http.Handler) http.Handler {
	app := fiber.New()
	app.Use(recover.New())
	app.Post("/charges", adaptor.HTTPHandler(guard.Route(idempotency.Route{Operation: "POST /charges"})(h)))
	return adaptor.FiberApp(app)
}
