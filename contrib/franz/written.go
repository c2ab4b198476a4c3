package franz

import (
	"crypto/sha256"
	"time"

	"github.com/holdfast-go/holdfast"
)

// This file decides which events need not be sent. It knows no clock, client or broker.

const (
	// rememberedFor bounds what is remembered of a partition: a relay publishes again what has failed within seconds.
	rememberedFor = 5 * time.Minute

	// writtenMost bounds how many records a partition remembers, unless one batch has more.
	writtenMost = 50_000
)

// recordHash is of all that an event's record has. Another event under the same id has another one.
type recordHash [sha256.Size]byte

// hashOf returns the hash of an event's record. It uses w's memory.
func (w *batchWriter) hashOf(e *holdfast.Event) recordHash {
	w.begin()
	w.append(e)
	return sha256.Sum256(w.records)
}

// written are records that a call was told had failed, and that were found written since, with the time of that. Who publishes them
// again has an answer, once. What was acknowledged in the call that sent it is not among them: who publishes that again wants it
// written again.
type written map[recordHash]time.Time

// add takes in records that were found written.
func (w *written) add(records []recordHash, now time.Time) {
	for h, at := range *w {
		if now.Sub(at) >= rememberedFor {
			delete(*w, h)
		}
	}
	if *w == nil || len(*w)+len(records) > writtenMost {
		*w = make(written, len(records))
	}
	for _, h := range records {
		(*w)[h] = now
	}
}

// has says that a record was found written of late.
func (w written) has(h recordHash, now time.Time) bool {
	at, ok := w[h]
	return ok && now.Sub(at) < rememberedFor
}
