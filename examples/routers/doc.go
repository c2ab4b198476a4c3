// Package routers shows how the middleware of package idempotency stands in the routers of the field: net/http, chi, Echo v4
// and v5, gin and Fiber. The test runs the same requests through all.
//
// What they need differs because they differ in who writes an error. The middleware stores an answer only if the handler gave
// one before it returned. So what turns errors into answers has to run inside the middleware.
package routers
