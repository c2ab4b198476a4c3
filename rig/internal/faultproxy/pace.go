package faultproxy

import "time"

// pacer says when bytes arrive that go through a slow fault: a narrow pipe that they leave one after the other, and a
// long way behind it that they go side by side.
type pacer struct {
	free time.Time // when the pipe is free again
}

// due is when n bytes arrive that come at now.
func (p *pacer) due(f Fault, now time.Time, n int) time.Time {
	if p.free.Before(now) {
		p.free = now
	}
	if f.rate > 0 {
		p.free = p.free.Add(time.Duration(float64(n) / float64(f.rate) * float64(time.Second)))
	}
	return p.free.Add(f.latency)
}

// piece is how many bytes travel together: what the pipe passes in 20 ms, so that a large write does not arrive as one.
func (f Fault) piece() int {
	if f.rate == 0 {
		return bufferSize
	}
	return int(min(max(1, f.rate/50), bufferSize))
}
