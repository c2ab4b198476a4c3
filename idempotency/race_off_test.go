//go:build !race

package idempotency

// slowdown is what tests that measure time allow for the race detector.
const slowdown = 1
