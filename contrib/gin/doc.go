// Package holdfastgin puts a guard of package idempotency in front of routes of gin.
//
//	r.POST("/refunds/:charge", holdfastgin.Guard(guard.Middleware), errorsToAnswers, refund)
//
// The operation of a request is its method and its route's whole path, "POST /refunds/:charge", unless Route.Operation or
// Config.OperationFunc says otherwise.
//
// What turns c.Errors into an answer has to stand behind Guard, as above: what is written outside of it comes too late, so the client gets
// a 503 and nothing is kept. Put Guard on routes or groups, not around the engine: gin writes an empty 200 where a handler wrote nothing.
//
// A webhook.Endpoint needs nothing of this package: gin.WrapH(endpoint) is a handler of gin.
package holdfastgin
