package inbox

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/inbox/internal/failure"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/private"
	"github.com/holdfast-go/holdfast/internal/wire"
)

// This file makes an event of a Kafka record.

// delivery makes an event of a record. bad is not nil if the tables cannot hold the record. dispositionOf decides whether it then
// becomes a dead letter.
func (p *partition) delivery(r source.Record) (d *delivery, bad *badRecord) {
	e, err := wire.Read(p.tp.Topic, r.Key, r.Value, r.Headers, r.Time)
	structured := r.LeftOut == 0 && wire.Structured(e)
	if structured {
		opened, malformed := wire.Open(e)
		// With the headers of another event it is one in binary mode, whose payload a CloudEvent happens to be: what a service passes on.
		if structured = e.ID == "" || malformed == nil && opened.ID == e.ID && opened.Source == e.Source; structured {
			e, err = opened, malformed
		}
	}
	e.Headers = textHeaders(e.Headers)
	if year := e.Time.UTC().Year(); year < 1 || year > 9999 { // The producer's clock uses other units. Take the event without a time.
		e.Time = time.Time{}
	}
	if e.ID == "" {
		e.ID = kafkaID(p.tp.Topic, p.tp.Partition, r.Offset)
	}
	typed := e
	if typed.Type == "" { // Records of other programs may have none: a type that nobody handles.
		typed.Type = "none"
	}
	if err == nil {
		err = checkEvent(typed)
	}
	if err == nil {
		err = p.c.checkSource(e)
	}
	if err == nil && r.LeftOut > 0 {
		err = p.errLeftOut(r)
	}
	if err == nil {
		d = p.receiver.registry.newDelivery(e)
		d.from = &origin{fence: p.fence, offset: r.Offset}
		return d, nil
	}
	untrusted := errors.As(err, new(errUntrusted))
	if untrusted || len(e.ID) > 255 || checkText("id", e.ID, 1, 255) != nil {
		e.ID = kafkaID(p.tp.Topic, p.tp.Partition, r.Offset)
	}
	keyed := checkText("key", e.Key, 0, 1024) == nil // No other event has a key that the tables cannot hold.
	e.Topic, e.Payload = p.tp.Topic, r.Value
	if r.LeftOut > 0 {
		e.Headers = maps.Clone(e.Headers)
		if e.Headers == nil {
			e.Headers = map[string]string{}
		}
		e.Headers[wire.HeaderValueLeftOut] = strconv.FormatInt(r.LeftOut, 10)
	}
	d = p.receiver.registry.newDelivery(sanitized(e))
	d.h = p.receiver.registry.handlers[e.Type]
	d.from = &origin{fence: p.fence, offset: r.Offset}
	why := failure.BoundedError(err)
	if p.c.withholds() {
		why = private.Kind(why)
	}
	l := letter{
		reason: "invalid record: " + why,
		holds:  p.of(e.Type).HoldKey && keyed && !untrusted && !d.stale(),
		errors: []string{failure.BoundedError(err)},
		err:    err,
		reopen: true,
	}
	s := func(ctx context.Context, tx pgx.Tx) (Outcome, error) {
		return p.receiver.ledger.deadLetter(ctx, tx, d, l, Dead)
	}
	return d, &badRecord{s, checkText("type", e.Type, 0, 255) != nil || structured && e.Type == ""}
}

// badRecord is a record that the tables cannot hold.
type badRecord struct {
	letter  task // dead-letters it
	garbled bool // not even its type can be read
}

// sanitized is the event, cut to what the tables can hold.
func sanitized(e holdfast.Event) holdfast.Event {
	clean := func(s string, longest int) string {
		if len(s) > longest {
			s = s[:longest-3]
		}
		s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
		return s
	}
	headers := make(map[string]string, len(e.Headers))
	for name, value := range e.Headers {
		headers[clean(name, 1<<10)] = clean(value, 64<<10)
	}
	e.Source, e.Type, e.Key, e.Headers = clean(e.Source, 255), clean(e.Type, 255), shortKey(e.Key), headers
	return e
}

// shortKey is a key, or the beginning of one that is too long and a hash of all of it: the dead letters of two keys have two keys.
func shortKey(key string) string {
	if len(key) <= 1024 {
		return key
	}
	return fmt.Sprintf("%s…sha256:%x", strings.ToValidUTF8(key[:900], ""), sha256.Sum256([]byte(key)))
}
