package schemaregistry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/holdfast-go/holdfast"
)

// ProtobufConfig configures a codec for Protobuf.
type ProtobufConfig struct {
	// Schema is the text of the .proto file of what Encode writes, as it is registered. Without one, Encode takes the newest schema of the
	// subject, as it is when it is first asked for: a process keeps it until it ends. Decode needs none. Defaults to "".
	Schema string

	// Subject is where Encode looks for its schema. Defaults to the event's topic with "-value" added.
	Subject string

	// Register lets Encode register the Schema under the subject. Otherwise it must be there. Defaults to false.
	Register bool
}

// Protobuf returns a codec for generated messages: inbox.On takes a handler of *pb.Order. A payload is of the wanted message if its
// indexes are those that the message has in its .proto file; so new messages are added at the end of a file. Fields that the message
// does not have are kept as unknown fields, as always in Protobuf.
func (r *Registry) Protobuf(c ProtobufConfig) (holdfast.Codec, error) {
	if c.Register && c.Schema == "" {
		return nil, errors.New("protobuf config: register is set without a schema: there must be one to register")
	}
	return protobufCodec{r, c}, nil
}

type protobufCodec struct {
	registry *Registry
	c        ProtobufConfig
}

func (p protobufCodec) Encode(ctx context.Context, e holdfast.Event, v any) (holdfast.Event, error) {
	m, ok := v.(proto.Message)
	if !ok || !m.ProtoReflect().IsValid() {
		return e, fmt.Errorf("encode protobuf: %T is no message, or nil", v)
	}
	id, err := p.registry.id(ctx, subjectOf(p.c.Subject, e), sr.Schema{Schema: p.c.Schema, Type: sr.TypeProtobuf}, p.c.Register)
	if err != nil {
		return e, err
	}
	data, err := proto.Marshal(m)
	if err != nil {
		return e, fmt.Errorf("encode protobuf: %w", err)
	}
	if e.Payload, err = framed(id, indexesOf(m.ProtoReflect().Descriptor()), data); err != nil {
		return e, err
	}
	return contentType(e, "application/protobuf"), nil
}

func (p protobufCodec) Decode(ctx context.Context, e holdfast.Event, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode protobuf: %T is no message: the handler must take a pointer to a generated type", v)
	}
	id, data, err := unframed(e.Payload)
	if err != nil {
		return err
	}
	if _, err := p.registry.schema(ctx, id, sr.TypeProtobuf); err != nil {
		return err
	}
	indexes, message, err := unindexed(data)
	if err != nil {
		return err
	}
	d := m.ProtoReflect().Descriptor()
	if want := indexesOf(d); !slices.Equal(indexes, want) {
		return &holdfast.PayloadError{Problem: fmt.Sprintf("the message %v of its schema %d where %v, %s, is wanted", indexes, id, want, d.FullName())}
	}
	if err := proto.Unmarshal(message, m); err != nil {
		return &holdfast.PayloadError{Problem: "its data is no " + string(d.FullName()), Err: err}
	}
	return nil
}

// indexesOf are the places of a message and of those around it, the outermost first.
func indexesOf(d protoreflect.MessageDescriptor) []int {
	indexes := []int{d.Index()}
	for parent, ok := d.Parent().(protoreflect.MessageDescriptor); ok; parent, ok = parent.Parent().(protoreflect.MessageDescriptor) {
		indexes = append(indexes, parent.Index())
	}
	slices.Reverse(indexes)
	return indexes
}
