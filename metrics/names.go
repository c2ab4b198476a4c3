package metrics

import "slices"

// maxTopics is the maximum number of values of the label for topics. Further topics are counted as "other". A quarter of them are for
// topics to which nothing was published.
const maxTopics = 200

// maxOperations is the maximum number of values of the label operation. Further operations are counted as "other".
const maxOperations = 200

// Labels of OpenTelemetry's conventions.
const (
	labelSystem      = "messaging.system"
	labelOperation   = "messaging.operation.name"
	labelDestination = "messaging.destination.name"
	labelGroup       = "messaging.consumer.group.name"
	labelError       = "error.type"
	labelPool        = "db.client.connection.pool.name"
	labelState       = "db.client.connection.state"
)

const systemHoldfast = "holdfast" // where there is no broker; else the publisher or the source says it

// The bucket bounds, in seconds. Those of messaging are what OpenTelemetry's conventions ask for.
var (
	ofMessaging = []float64{.005, .01, .025, .05, .075, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}
	ofWork      = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	ofWaits     = slices.Concat(ofWork, []float64{300, 1800, 3600})
)

// counter and histogram shorten the lists of instruments.
func counter(name, unit, description string, labels ...string) Instrument {
	return Instrument{
		Name:        name,
		Kind:        Counter,
		Unit:        unit,
		Description: description,
		Labels:      labels,
	}
}

func histogram(name, description string, buckets []float64, labels ...string) Instrument {
	return Instrument{
		Name:        name,
		Kind:        Histogram,
		Unit:        "s",
		Description: description,
		Buckets:     buckets,
		Labels:      labels,
	}
}

func gauge(name, unit, description string, labels ...string) Instrument {
	return Instrument{Name: name, Kind: Gauge, Unit: unit, Description: description, Labels: labels}
}

func total(name, unit, description string, labels ...string) Instrument {
	return Instrument{Name: name, Kind: Total, Unit: unit, Description: description, Labels: labels}
}

// What several parts measure, by OpenTelemetry's messaging conventions.
var (
	operationDuration = histogram("messaging.client.operation.duration", "How long a write of events, or a call of the broker, took", ofMessaging, labelSystem, labelOperation, labelDestination, labelError)
	sentMessages      = counter("messaging.client.sent.messages", "{message}", "Events that were given to the broker, by what it answered", labelSystem, labelOperation, labelDestination, labelError)
	consumedMessages  = counter("messaging.client.consumed.messages", "{message}", "Events that were given to a handler; each attempt counts", labelSystem, labelOperation, labelDestination, labelGroup, labelError)
	processDuration   = histogram("messaging.process.duration", "How long a handler ran, for one event or a batch", ofMessaging, labelSystem, labelOperation, labelDestination, labelGroup, labelError)
)
