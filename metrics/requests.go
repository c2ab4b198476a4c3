package metrics

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/idempotency"
	"github.com/holdfast-go/holdfast/retry"
	"github.com/holdfast-go/holdfast/webhook"
)

// results maps each result of a guarded request to its counter. The names are those of package idempotency.
var results = map[idempotency.Result]Instrument{
	idempotency.Created:     byOperation("idempotent.created", "Requests whose handler ran and whose answer is kept"),
	idempotency.Replayed:    byOperation("idempotent.replayed", "Requests that got the answer of an earlier one"),
	idempotency.Conflict:    byOperation("idempotent.conflict", "Requests whose key a different request had used"),
	idempotency.InProgress:  byOperation("idempotent.in_progress", "Requests whose key another request was using"),
	idempotency.Forgotten:   byOperation("idempotent.forgotten", "Requests whose handler ran, with nothing kept"),
	idempotency.Lost:        byOperation("idempotent.lost", "Requests whose lease another request took over while their handler ran"),
	idempotency.Bypassed:    byOperation("idempotent.bypassed", "Requests without a key, on routes where keys are optional"),
	idempotency.Refused:     byOperation("idempotent.refused", "Requests without a valid key, a principal or a readable body"),
	idempotency.Unavailable: byOperation("idempotent.unavailable", "Requests that were not carried out because the database could not be reached"),
	idempotency.Unknown:     byOperation("idempotent.unknown", "Requests that may or may not have been carried out"),
	idempotency.Unusable:    byOperation("idempotent.unusable", "Requests whose stored answer cannot be read or trusted"),
}

// codeTooManyKeys is the code of a request that Config.MaxKeys refused (docs/reference/http.md).
const codeTooManyKeys = "idempotency.too_many_keys"

func byOperation(name, description string) Instrument {
	return counter(name, "{request}", description, "operation")
}

var (
	idempotentOther     = byOperation("idempotent.other", "Requests with a result that this version does not know")
	idempotentExpired   = byOperation("idempotent.expired", "Requests whose key had an answer that had expired")
	idempotentOmitted   = byOperation("idempotent.omitted", "Requests whose answer's body is too long to store, and their repeats")
	idempotentLimited   = byOperation("idempotent.limited", "Requests refused because their principal has too many keys")
	idempotentDuration  = histogram("idempotent.duration", "How long guarded requests took", ofWork, "operation", "outcome")
	idempotentAbandoned = byOperation("idempotent.abandoned", "Requests that were begun, have no answer, and will not be completed")
	idempotentCleaned   = counter("idempotent.cleaned", "{key}", "Expired keys that were removed")
	idempotentCleaning  = histogram("idempotent.cleaning.duration", "How long a round of removing expired keys took", ofWork)

	webhookRefused    = counter("holdfast.webhook.refused", "{request}", "Requests that were refused as no delivery of the provider", "source", "reason")
	webhookDeliveries = counter("holdfast.webhook.deliveries", "{delivery}", "Deliveries that were answered", "source", "outcome", "status", "secret")
	webhookDuration   = histogram("holdfast.webhook", "How long a delivery took, from the first byte of its body", ofWork, "source")

	waitDuration = histogram("holdfast.wait", "How long a request waited for a consumer to settle its event", ofWork, "consumer", "result")

	retryAttempts = counter("holdfast.retry.attempts", "{attempt}", "Attempts at HTTP requests", "met", "repeat")
	retryDelay    = histogram("holdfast.retry.delay", "How long the transport waited before a repeated attempt", ofWork)
)

// Idempotency makes the Observer of a Guard. By operation, it has a counter for each result and a histogram of durations. It also
// counts expired keys, answers too long to store, requests beyond Config.MaxKeys, and removed keys. An error means that an instrument
// could not be made.
//
// The operation is the route's or the router's pattern, "unnamed" if there is none.
func Idempotency(meter Meter) (idempotency.Observer, error) {
	m := maker{meter: meter}
	counts := map[idempotency.Result]*series{}
	for _, result := range slices.Sorted(maps.Keys(results)) { // in the order of the page
		counts[result] = m.of(results[result])
	}
	other, expired, omitted, limited := m.of(idempotentOther), m.of(idempotentExpired), m.of(idempotentOmitted), m.of(idempotentLimited)
	abandoned, duration, cleaned, cleaning := m.of(idempotentAbandoned), m.of(idempotentDuration), m.of(idempotentCleaned), m.of(idempotentCleaning)
	if m.err != nil {
		return idempotency.Observer{}, m.err
	}
	operations := &bounded{most: maxOperations, none: "unnamed", rest: "other"}
	return idempotency.Observer{
		OnOutcome: func(ctx context.Context, o idempotency.Outcome) {
			operation, result := operations.name(o.Route), string(o.Result)
			count, known := counts[o.Result]
			if !known {
				count, result = other, "other"
			}
			count.record(ctx, 1, operation)
			if o.Expired {
				expired.record(ctx, 1, operation)
			}
			if o.Omitted {
				omitted.record(ctx, 1, operation)
			}
			if o.Code == codeTooManyKeys {
				limited.record(ctx, 1, operation)
			}
			duration.record(ctx, o.Took.Seconds(), operation, result)
		},
		OnAbandoned: func(a idempotency.Abandoned) {
			abandoned.record(context.Background(), 1, operations.name(a.Operation))
		},
		OnCleaned: func(keys int, took time.Duration) {
			cleaned.record(context.Background(), float64(keys))
			cleaning.record(context.Background(), took.Seconds())
		},
	}, nil
}

// Webhook makes the Observer of webhook endpoints. It counts refused requests by source and reason. It counts deliveries by source,
// outcome, status and the secret that matched, and has a histogram of their duration. An error means that an instrument could not be
// made.
func Webhook(meter Meter) (webhook.Observer, error) {
	m := maker{meter: meter}
	refused, deliveries, took := m.of(webhookRefused), m.of(webhookDeliveries), m.of(webhookDuration)
	if m.err != nil {
		return webhook.Observer{}, m.err
	}
	return webhook.Observer{
		OnRefused: func(r webhook.Refused) {
			refused.record(within(r.Context), 1, r.Source, string(r.Reason))
		},
		OnDelivery: func(a webhook.Answered) {
			ctx := within(a.Context)
			deliveries.record(ctx, 1, a.Source, string(a.Outcome), strconv.Itoa(a.Status), strconv.Itoa(a.Delivery.Secret))
			took.record(ctx, a.Took.Seconds(), a.Source)
		},
	}, nil
}

// Wait makes the Observer of a holdfast.Waiter: how long calls waited, by consumer and result. The result is how the consumer had settled the event ("handled", "dead",
// "discarded"), or "unsettled" if the caller's context ended before that, or "error". An error means that an instrument could not be made.
func Wait(meter Meter) (holdfast.WaitObserver, error) {
	m := maker{meter: meter}
	took := m.of(waitDuration)
	if m.err != nil {
		return holdfast.WaitObserver{}, m.err
	}
	consumers := &bounded{most: maxConsumers, none: "unnamed", rest: "other"}
	return holdfast.WaitObserver{OnWaited: func(ctx context.Context, w holdfast.Waited) {
		result := string(w.Settlement)
		switch {
		case w.Err == nil:
		case ctx.Err() != nil:
			result = "unsettled"
		default:
			result = "error"
		}
		took.record(ctx, w.Took.Seconds(), consumers.name(w.Consumer), result)
	}}, nil
}

// Retry makes the Observer of a retry.Transport. It counts attempts by result, and has a histogram of the delays before repeats. An
// error means that an instrument could not be made.
func Retry(meter Meter) (retry.Observer, error) {
	m := maker{meter: meter}
	attempts, delays := m.of(retryAttempts), m.of(retryDelay)
	if m.err != nil {
		return retry.Observer{}, m.err
	}
	return retry.Observer{OnAttempt: func(a retry.Attempt) {
		ctx, met := a.Request.Context(), metOf(a)
		attempts.record(ctx, 1, met, strconv.FormatBool(a.Number > 1))
		if a.Number > 1 {
			delays.record(ctx, a.Delay.Seconds())
		}
	}}, nil
}

// metOf is the result of an attempt as the label met has it: "2xx" to "5xx", or "error" if there was no answer.
func metOf(a retry.Attempt) string {
	if classes := []string{"1xx", "2xx", "3xx", "4xx", "5xx"}; a.Err == nil && a.Status >= 100 && a.Status <= 599 {
		return classes[a.Status/100-1]
	}
	return "error"
}
