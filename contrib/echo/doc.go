// Package holdfastecho puts a guard of package idempotency in front of routes of Echo v5. Its package echo4 does the same for Echo v4.
//
//	e.POST("/refunds/:charge", refund, holdfastecho.Guard(guard.Middleware))
//
// The operation of a request is its method and its route's whole path, "POST /refunds/:charge", unless Route.Operation or
// Config.OperationFunc says otherwise.
//
// Echo writes the error that a handler returns when all middlewares have returned. Guard has Echo write it inside the guard, so that an
// error is an answer like any other. A middleware of yours that writes answers has to stand behind Guard too. Put Guard on routes: in a group
// Echo calls it for paths that have no route, too.
//
// A webhook.Endpoint needs nothing of this package: echo.WrapHandler(endpoint) is a handler of Echo.
package holdfastecho
