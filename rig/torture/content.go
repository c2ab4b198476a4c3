//go:build linux

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/wire"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// canary is at the beginning of every payload and must be in no log.
const canary = "c4n4ry"

// payload is unique and has at least size bytes. It is random, so that a large one stays large when it is compressed.
func payload(rng *rand.Rand, id string, size int) []byte {
	text := []byte(canary + " " + id + " ")
	for len(text) < size {
		n := rng.Uint64()
		text = append(text, byte(n), byte(n>>8), byte(n>>16), byte(n>>24), byte(n>>32), byte(n>>40), byte(n>>48), byte(n>>56))
	}
	return text
}

// content is a hash of what an event carries. A missing payload differs from an empty one.
func content(e holdfast.Event) string {
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %v %d ", e.Source, e.Type, e.Payload == nil, len(e.Payload))
	h.Write(e.Payload)
	for _, name := range slices.Sorted(maps.Keys(e.Headers)) {
		fmt.Fprintf(h, " %q=%q", name, e.Headers[name])
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// eventOf is what a consumer reads from a record.
func eventOf(topic string, r kafkaserver.Record) (holdfast.Event, error) {
	headers := make([]wire.Header, len(r.Headers))
	for i, h := range r.Headers {
		headers[i] = wire.Header(h)
	}
	e, err := wire.Parse(topic, r.Key, r.Value, headers, r.Time)
	if err != nil {
		return e, fmt.Errorf("read %s: %w", topic, err)
	}
	return e, nil
}
