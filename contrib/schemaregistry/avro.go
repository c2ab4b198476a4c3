package schemaregistry

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/holdfast-go/holdfast"
)

// AvroConfig configures a codec for Avro.
type AvroConfig struct {
	// Schema is what Encode writes, and what Decode makes of each payload, whatever schema that was written with: fields that it lacks
	// are skipped, and fields that the payload lacks have their defaults. Without a Schema, Decode takes payloads as they were written,
	// and Encode writes with the schema that is the newest of the subject when it is first asked for: a process keeps it until it ends. Defaults to "".
	Schema string

	// Subject is where Encode looks for its schema. Defaults to the event's topic with "-value" added.
	Subject string

	// Register lets Encode register the Schema under the subject. Otherwise it must be there. Defaults to false.
	Register bool
}

// Avro returns a codec for Avro. Values are structs with avro tags, or maps: see github.com/twmb/avro. An error says what is wrong with
// the schema.
func (r *Registry) Avro(c AvroConfig) (holdfast.Codec, error) {
	a := &avroCodec{registry: r, c: c, read: map[int]*avro.Schema{}}
	if c.Schema == "" {
		if c.Register {
			return nil, errors.New("avro config: register is set without a schema: there must be one to register")
		}
		return a, nil
	}
	var err error
	if a.own, err = avro.Parse(c.Schema); err != nil {
		return nil, fmt.Errorf("avro config: schema: %w", err)
	}
	return a, nil
}

type avroCodec struct {
	registry *Registry
	c        AvroConfig
	own      *avro.Schema // nil without one

	mu   sync.Mutex
	read map[int]*avro.Schema // by id of what was written: what reads that
}

func (a *avroCodec) Encode(ctx context.Context, e holdfast.Event, v any) (holdfast.Event, error) {
	id, err := a.registry.id(ctx, subjectOf(a.c.Subject, e), sr.Schema{Schema: a.c.Schema, Type: sr.TypeAvro}, a.c.Register)
	if err != nil {
		return e, err
	}
	schema := a.own
	if schema == nil {
		if schema, err = a.schema(ctx, id); err != nil {
			return e, err
		}
	}
	data, err := schema.Encode(v)
	if err != nil {
		return e, fmt.Errorf("encode avro: %w", err)
	}
	if e.Payload, err = framed(id, nil, data); err != nil {
		return e, err
	}
	return contentType(e, "application/avro"), nil
}

func (a *avroCodec) Decode(ctx context.Context, e holdfast.Event, v any) error {
	id, data, err := unframed(e.Payload)
	if err != nil {
		return err
	}
	schema, err := a.schema(ctx, id)
	if err != nil {
		return err
	}
	rest, err := schema.Decode(data, v)
	if err != nil {
		return misfit(err)
	}
	if len(rest) > 0 {
		return &holdfast.PayloadError{Problem: fmt.Sprintf("%d bytes are left after its Avro data", len(rest))}
	}
	return nil
}

// schema is what reads data that was written with the schema of an id.
func (a *avroCodec) schema(ctx context.Context, id int) (*avro.Schema, error) {
	a.mu.Lock()
	schema := a.read[id]
	a.mu.Unlock()
	if schema != nil {
		return schema, nil
	}
	written, err := a.registry.schema(ctx, id, sr.TypeAvro)
	if err != nil {
		return nil, err
	}
	names := &avro.SchemaCache{}
	if err := a.refer(ctx, names, written.References, 0); err != nil {
		return nil, err
	}
	if schema, err = names.Parse(written.Schema); err != nil {
		return nil, &holdfast.PayloadError{Problem: fmt.Sprintf("its schema %d cannot be read", id), Err: err}
	}
	if a.own != nil {
		if schema, err = avro.Resolve(schema, a.own); err != nil {
			return nil, &holdfast.PayloadError{Problem: fmt.Sprintf("its schema %d does not fit the one that is wanted", id), Err: err}
		}
	}
	a.mu.Lock()
	a.read[id] = schema
	a.mu.Unlock()
	return schema, nil
}

// maxReferences is how deep schemas may refer to others.
const maxReferences = 16

// refer reads the schemas that another refers to, the innermost first.
func (a *avroCodec) refer(ctx context.Context, names *avro.SchemaCache, references []sr.SchemaReference, depth int) error {
	if depth > maxReferences {
		return &holdfast.PayloadError{Problem: fmt.Sprintf("its schema refers to others more than %d deep", maxReferences)}
	}
	for _, ref := range references {
		s, err := a.registry.reference(ctx, ref)
		if err != nil {
			return err
		}
		if err := a.refer(ctx, names, s.References, depth+1); err != nil {
			return err
		}
		if _, err := names.Parse(s.Schema); err != nil {
			return &holdfast.PayloadError{Problem: "a schema that its schema refers to cannot be read", Err: err}
		}
	}
	return nil
}

// misfit is why data does not decode. The names of fields are those of the schema.
func misfit(err error) error {
	fault := &holdfast.PayloadError{Problem: "its Avro data cannot be read", Err: err}
	var inner *avro.SemanticError
	for at := err; errors.As(at, &inner); at = inner.Err {
		if inner.Field != "" {
			fault.Field = inner.Field
		}
		if inner.AvroType != "" && inner.AvroType != "record" && inner.GoType != nil {
			fault.Problem = "an Avro " + inner.AvroType + " where a " + inner.GoType.String() + " is wanted"
		}
	}
	return fault
}
