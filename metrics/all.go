package metrics

import (
	"maps"
	"slices"
	"time"
)

// All returns every instrument of this package, in the order in which documentation lists them.
func All() []Instrument {
	all := []Instrument{
		outboxWritten, operationDuration, sentMessages,
		relayPublished, relayWaits, relayResumed, relayDead, relayLag, relayHeld, relayDelay, relayClaimed, relayReleased, relayLost, relayFenced, relaySaving,
		relayPoll, relayPage, relayRead, relayMoved, relayReclaimed,
		consumedMessages, processDuration,
		inboxEvents, inboxDuration, inboxLag, inboxDelay, inboxDead, inboxConflicts, inboxFull, inboxHeld, inboxErased, inboxUnknown, inboxHung, inboxLeases,
		inboxFenced, inboxAssigned, inboxRevoked, inboxReread, inboxPoll, inboxErrors, inboxCleaned, inboxCleaning,
	}
	all = append(all, ofDatabase...)
	all = append(all, ofLag...)
	all = append(all, ofPool...)
	for _, result := range slices.Sorted(maps.Keys(results)) {
		all = append(all, results[result])
	}
	return append(all, idempotentOther, idempotentExpired, idempotentOmitted, idempotentLimited, idempotentAbandoned, idempotentDuration, idempotentCleaned,
		idempotentCleaning, webhookRefused, webhookDeliveries, webhookDuration, retryAttempts, retryDelay)
}

// since is how old a sample is, in seconds.
func since(at time.Time) float64 { return max(time.Since(at).Seconds(), 0) }
