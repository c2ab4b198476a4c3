package schemaregistry

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/holdfast-go/holdfast"
)

// JSONConfig configures a codec for JSON with a JSON Schema.
type JSONConfig struct {
	// Schema is the JSON Schema of what Encode writes, as it is registered. Without one, Encode takes the newest schema of the subject, as it is when it is first asked for: a process keeps it until it ends.
	// Decode needs none. Defaults to "".
	Schema string

	// Subject is where Encode looks for its schema. Defaults to the event's topic with "-value" added.
	Subject string

	// Register lets Encode register the Schema under the subject. Otherwise it must be there. Defaults to false.
	Register bool

	// Strict makes a field that the type does not have an error: see holdfast.JSON. Defaults to false.
	Strict bool
}

// JSON returns a codec for JSON in the registry's wire format. Like Confluent's own by default, it does not check data against the
// schema: values are checked by their Go types.
func (r *Registry) JSON(c JSONConfig) (holdfast.Codec, error) {
	if c.Register && c.Schema == "" {
		return nil, errors.New("json config: register is set without a schema: there must be one to register")
	}
	return jsonCodec{r, c, holdfast.JSON{Strict: c.Strict}}, nil
}

type jsonCodec struct {
	registry *Registry
	c        JSONConfig
	json     holdfast.JSON
}

func (j jsonCodec) Encode(ctx context.Context, e holdfast.Event, v any) (holdfast.Event, error) {
	id, err := j.registry.id(ctx, subjectOf(j.c.Subject, e), sr.Schema{Schema: j.c.Schema, Type: sr.TypeJSON}, j.c.Register)
	if err != nil {
		return e, err
	}
	if e, err = j.json.Encode(ctx, e, v); err != nil {
		return e, err
	}
	e.Payload, err = framed(id, nil, e.Payload)
	return e, err
}

func (j jsonCodec) Decode(ctx context.Context, e holdfast.Event, v any) error {
	id, data, err := unframed(e.Payload)
	if err != nil {
		return err
	}
	if _, err := j.registry.schema(ctx, id, sr.TypeJSON); err != nil {
		return err
	}
	e.Payload = data
	return j.json.Decode(ctx, e, v)
}
