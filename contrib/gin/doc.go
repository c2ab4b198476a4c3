// Package holdfastgin puts a guard of package idempotency in front of routes of gin.
//
//	r.POST("/refunds/:charge", holdfastgin.Guard(guard.Middleware), errorsToAnswers, refund)
//
// The operation of a request is its method and its route's whole path, "POST /refunds/:charge", unless Route.Operation or
// Config.OperationFunc says otherwise.
//
// What turns c.Errors into an answer has to stand behind Guard, as above. What is written outside of it comes too late: the client gets
// the status that the handler has set (c.Status, AbortWithStatus, AbortWithError) without a body, which is kept, or a 503 if it has set none. Put
// Guard on routes or groups. A request that has no route passes.
//
// A webhook.Endpoint needs nothing of this package: gin.WrapH(endpoint) is a handler of gin.
package holdfastgin
