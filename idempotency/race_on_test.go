//go:build race

package idempotency

const slowdown = 20
