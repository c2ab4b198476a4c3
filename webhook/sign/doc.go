// Package sign signs webhooks as five providers do, for a service that sends them and for tests of one that receives them.
//
//	h, err := sign.Standard(id, time.Now(), body, secret)
//
// The headers that a function returns are those of the request, beside Content-Type. Package webhook verifies them.
// All functions are pure: they may be called from many goroutines.
package sign
