package holdfastotel

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/holdfast-go/holdfast/metrics"
)

// Meter is a meter of OpenTelemetry as package metrics needs one, for all its functions. Many goroutines may use it at once.
func Meter(meter metric.Meter) metrics.Meter { return otelMeter{meter} }

type otelMeter struct{ meter metric.Meter }

// Recorder makes a counter, of whole numbers, or a histogram.
func (m otelMeter) Recorder(i metrics.Instrument) (metrics.Recorder, error) {
	unit, description := metric.WithUnit(i.Unit), metric.WithDescription(i.Description)
	if i.Kind == metrics.Histogram {
		h, err := m.meter.Float64Histogram(i.Name, unit, description, metric.WithExplicitBucketBoundaries(i.Buckets...))
		return func(labels ...string) func(context.Context, float64) {
			by := []metric.RecordOption{setBy(i.Labels, labels)}
			return func(ctx context.Context, value float64) { h.Record(ctx, value, by...) }
		}, err
	}
	c, err := m.meter.Int64Counter(i.Name, unit, description)
	return func(labels ...string) func(context.Context, float64) {
		by := []metric.AddOption{setBy(i.Labels, labels)}
		return func(ctx context.Context, value float64) { c.Add(ctx, int64(value), by...) }
	}, err
}

// setBy is attributesBy as an option that is made once: each call with attributes would sort them again.
func setBy(labels, values []string) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(attributesBy(labels, values)...))
}

// attributesBy are the labels that have a value.
func attributesBy(labels, values []string) []attribute.KeyValue {
	var set []attribute.KeyValue
	for i, value := range values {
		if value != "" {
			set = append(set, attribute.String(labels[i], value))
		}
	}
	return set
}

// Observe makes gauges and counters: of whole numbers, except for times.
func (m otelMeter) Observe(is []metrics.Instrument, read func(ctx context.Context) ([]metrics.Reading, error)) (stop func() error, err error) {
	whole, fractions := make([]metric.Int64Observable, len(is)), make([]metric.Float64Observable, len(is))
	all := make([]metric.Observable, len(is))
	for n, i := range is {
		unit, description := metric.WithUnit(i.Unit), metric.WithDescription(i.Description)
		switch {
		case i.Kind == metrics.Total && i.Unit == "s":
			fractions[n], err = m.meter.Float64ObservableCounter(i.Name, unit, description)
			all[n] = fractions[n]
		case i.Kind == metrics.Total:
			whole[n], err = m.meter.Int64ObservableCounter(i.Name, unit, description)
			all[n] = whole[n]
		case i.Unit == "s":
			fractions[n], err = m.meter.Float64ObservableGauge(i.Name, unit, description)
			all[n] = fractions[n]
		default:
			whole[n], err = m.meter.Int64ObservableGauge(i.Name, unit, description)
			all[n] = whole[n]
		}
		if err != nil {
			return nil, err
		}
	}
	registration, err := m.meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		values, err := read(ctx)
		for _, v := range values {
			by := metric.WithAttributes(attributesBy(is[v.Index].Labels, v.Labels)...)
			if whole[v.Index] != nil {
				o.ObserveInt64(whole[v.Index], int64(v.Value), by)
			} else {
				o.ObserveFloat64(fractions[v.Index], v.Value, by)
			}
		}
		return err
	}, all...)
	if err != nil {
		return nil, err
	}
	return registration.Unregister, nil
}
