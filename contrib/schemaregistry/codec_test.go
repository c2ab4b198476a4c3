package schemaregistry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/twmb/avro"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
)

const (
	orderV1 = `{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"gone","type":"int"}]}`
	orderV2 = `{"type":"record","name":"Order","fields":[{"name":"id","type":"string"},{"name":"cents","type":"long","default":7}]}`
)

type order struct {
	ID    string `avro:"id" json:"id"`
	Cents int64  `avro:"cents" json:"cents"`
}

func registryOf(t *testing.T, im *imitation) *Registry {
	t.Helper()
	r, err := New(Config{URLs: []string{im.URL}, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestCodec_PayloadsHaveConfluentsWireFormat(t *testing.T) {
	im := imitate(t)
	for range 258 { // so that the next id takes two bytes
		im.add("filler", registered{Schema: fmt.Sprint(len(im.schemas)), Type: "JSON"})
	}
	r := registryOf(t, im)
	for name, c := range map[string]struct {
		codec       holdfast.Codec
		v           any
		prefix      []byte
		contentType string
	}{
		"Avro": {must(r.Avro(AvroConfig{Schema: orderV2, Register: true})), order{"a", 1}, []byte{0, 0, 0, 1, 3, 2, 'a', 2}, "application/avro"},
		"Protobuf, the first message": {must(r.Protobuf(ProtobufConfig{Schema: "duration.proto", Subject: "s", Register: true})),
			&durationpb.Duration{Seconds: 5}, []byte{0, 0, 0, 1, 4, 0, 8, 5}, "application/protobuf"},
		// StringValue is the eighth message of its file: one index, 7.
		"Protobuf, another message": {must(r.Protobuf(ProtobufConfig{Schema: "wrappers.proto", Subject: "s", Register: true})),
			wrapperspb.String("a"), []byte{0, 0, 0, 1, 5, 2, 14, 10, 1, 'a'}, "application/protobuf"},
		// ExtensionRange is the first message inside the third.
		"Protobuf, a message in another": {must(r.Protobuf(ProtobufConfig{Schema: "descriptor.proto", Subject: "s", Register: true})),
			&descriptorpb.DescriptorProto_ExtensionRange{Start: proto.Int32(3)}, []byte{0, 0, 0, 1, 6, 4, 4, 0, 8, 3}, "application/protobuf"},
		"JSON": {must(r.JSON(JSONConfig{Schema: `{"type":"object"}`, Register: true})), order{"a", 1},
			append([]byte{0, 0, 0, 1, 7}, `{"id":"a","cents":1}`...), "application/json"},
	} {
		e, err := c.codec.Encode(t.Context(), holdfast.Event{Topic: "orders"}, c.v)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if id := int(e.Payload[3])<<8 | int(e.Payload[4]); id < 259 {
			t.Errorf("%s: its id is %d", name, id)
		}
		e.Payload[3], e.Payload[4] = c.prefix[3], c.prefix[4] // Ids are given in the order of the map.
		if !bytes.Equal(e.Payload, c.prefix) || e.Headers["content-type"] != c.contentType {
			t.Errorf("%s: % x %v, want % x", name, e.Payload, e.Headers, c.prefix)
		}
	}
}

func TestCodec_WhatIsEncodedIsDecoded(t *testing.T) {
	im := imitate(t)
	writer, reader := registryOf(t, im), registryOf(t, im)
	e := must(must(writer.Avro(AvroConfig{Schema: orderV2, Register: true})).Encode(t.Context(), holdfast.Event{Topic: "orders"}, order{"a", 9}))
	var o order
	if err := must(reader.Avro(AvroConfig{})).Decode(t.Context(), e, &o); err != nil || o != (order{"a", 9}) {
		t.Errorf("Avro: %+v, %v", o, err)
	}
	// The newest schema of the subject serves a writer that has none.
	e = must(must(writer.Avro(AvroConfig{})).Encode(t.Context(), holdfast.Event{Topic: "orders"}, order{"b", 8}))
	if err := must(reader.Avro(AvroConfig{})).Decode(t.Context(), e, &o); err != nil || o != (order{"b", 8}) {
		t.Errorf("Avro, newest: %+v, %v", o, err)
	}
	e = must(must(writer.JSON(JSONConfig{Schema: "{}", Register: true, Subject: "json"})).Encode(t.Context(), holdfast.Event{}, order{"c", 7}))
	if err := must(reader.JSON(JSONConfig{})).Decode(t.Context(), e, &o); err != nil || o != (order{"c", 7}) {
		t.Errorf("JSON: %+v, %v", o, err)
	}
	im.add("pb", registered{Schema: "descriptor.proto", Type: "PROTOBUF"})
	e = must(must(writer.Protobuf(ProtobufConfig{Schema: "descriptor.proto", Subject: "pb"})).Encode(t.Context(), holdfast.Event{}, &descriptorpb.DescriptorProto_ExtensionRange{Start: proto.Int32(3)}))
	var m descriptorpb.DescriptorProto_ExtensionRange
	if err := must(reader.Protobuf(ProtobufConfig{})).Decode(t.Context(), e, &m); err != nil || m.GetStart() != 3 {
		t.Errorf("Protobuf: %v, %v", &m, err)
	}
}

func TestCodec_AReaderTakesWhatWasWrittenWithAnotherSchema(t *testing.T) {
	im := imitate(t)
	id := im.add("orders-value", registered{Schema: orderV1})
	r := registryOf(t, im)
	codec := must(r.Avro(AvroConfig{Schema: orderV2}))
	payload := must(framed(id, nil, must(avro.MustParse(orderV1).Encode(map[string]any{"id": "a", "gone": 3}))))
	for range 3 {
		var o order
		if err := codec.Decode(t.Context(), holdfast.Event{Payload: payload}, &o); err != nil || o != (order{"a", 7}) {
			t.Fatalf("%+v, %v; want a, and the default", o, err)
		}
	}
	if asked := im.questions(); asked != "[GET /schemas/ids/1]" {
		t.Errorf("the registry was asked %s, want once", asked)
	}
}

func TestCodec_ASchemaMayReferToOthers(t *testing.T) {
	im := imitate(t)
	im.add("money", registered{Schema: `{"type":"record","name":"Money","fields":[{"name":"cents","type":"long"}]}`})
	id := im.add("bill", registered{Schema: `{"type":"record","name":"Bill","fields":[{"name":"total","type":"Money"}]}`,
		References: []map[string]any{{"name": "Money", "subject": "money", "version": 1}}})
	missing := im.add("other", registered{Schema: `{"type":"record","name":"Other","fields":[{"name":"total","type":"Nobody"}]}`,
		References: []map[string]any{{"name": "Nobody", "subject": "nobody", "version": 1}}})
	codec := must(registryOf(t, im).Avro(AvroConfig{}))
	var bill struct {
		Total struct {
			Cents int64 `avro:"cents"`
		} `avro:"total"`
	}
	if err := codec.Decode(t.Context(), holdfast.Event{Payload: must(framed(id, nil, []byte{10}))}, &bill); err != nil || bill.Total.Cents != 5 {
		t.Errorf("%+v, %v", bill, err)
	}
	err := codec.Decode(t.Context(), holdfast.Event{Payload: must(framed(missing, nil, []byte{10}))}, &bill)
	final(t, "a reference to nobody", err, "payload: its schema refers to one that the registry does not know")
}

// final checks that an error makes a dead letter, with a reason.
func final(t *testing.T, name string, err error, reason string) {
	t.Helper()
	var fault *holdfast.PayloadError
	if !errors.As(err, &fault) || fault.Reason() != reason {
		t.Errorf("%s: %v, want %q", name, err, reason)
	}
	var own interface{ RetryClass() retry.Class }
	if errors.As(err, &own) {
		t.Errorf("%s: it is of the class %s", name, own.RetryClass())
	}
}

func TestCodec_APayloadThatDoesNotFitIsFinal(t *testing.T) {
	im := imitate(t)
	av, pb, js := im.add("a", registered{Schema: orderV2}), im.add("p", registered{Schema: "x.proto", Type: "PROTOBUF"}), im.add("j", registered{Schema: "{}", Type: "JSON"})
	broken := im.add("b", registered{Schema: `{"type":"SECRET"}`})
	r := registryOf(t, im)
	avroC, pbC, jsC := must(r.Avro(AvroConfig{})), must(r.Protobuf(ProtobufConfig{})), must(r.JSON(JSONConfig{}))
	own := must(r.Avro(AvroConfig{Schema: `{"type":"record","name":"Order","fields":[{"name":"id","type":"int"}]}`}))
	for name, c := range map[string]struct {
		codec   holdfast.Codec
		payload []byte
		target  any
		reason  string
	}{
		"no header":                  {avroC, []byte(`{"a":1}`), new(order), "payload: it does not begin with the header of a schema registry: a zero byte and four bytes of an id"},
		"too short":                  {jsC, []byte{0, 0, 0, 0}, new(order), "payload: it does not begin with the header of a schema registry: a zero byte and four bytes of an id"},
		"empty":                      {pbC, []byte{}, new(durationpb.Duration), "payload: it does not begin with the header of a schema registry: a zero byte and four bytes of an id"},
		"an unknown id":              {avroC, must(framed(99, nil, nil)), new(order), "payload: the registry knows no schema with the id 99"},
		"another kind":               {avroC, must(framed(pb, nil, nil)), new(order), fmt.Sprintf("payload: its schema %d is of the kind PROTOBUF where AVRO is wanted", pb)},
		"another kind of JSON":       {jsC, must(framed(av, nil, nil)), new(order), fmt.Sprintf("payload: its schema %d is of the kind AVRO where JSON is wanted", av)},
		"another kind of Protobuf":   {pbC, must(framed(js, nil, nil)), new(durationpb.Duration), fmt.Sprintf("payload: its schema %d is of the kind JSON where PROTOBUF is wanted", js)},
		"a broken schema":            {avroC, must(framed(broken, nil, nil)), new(order), fmt.Sprintf("payload: its schema %d cannot be read", broken)},
		"a schema that does not fit": {own, must(framed(av, nil, nil)), new(order), fmt.Sprintf("payload: its schema %d does not fit the one that is wanted", av)},
		"Avro cut off":               {avroC, must(framed(av, nil, []byte{200})), new(order), `payload: field "id": its Avro data cannot be read`},
		"Avro with more":             {avroC, must(framed(av, nil, []byte{2, 'a', 2, 9, 9})), new(order), "payload: 2 bytes are left after its Avro data"},
		"an Avro field of another type": {avroC, must(framed(av, nil, []byte{2, 'a', 2})), &struct {
			ID    bool  `avro:"id"`
			Cents int64 `avro:"cents"`
		}{}, `payload: field "id": an Avro string where a bool is wanted`},
		"a JSON field of another type": {jsC, must(framed(js, nil, []byte(`{"cents":"SECRET"}`))), new(order), `payload: field "cents": a string where an int64 is wanted`},
		"another message":              {pbC, must(framed(pb, []int{1}, nil)), new(durationpb.Duration), fmt.Sprintf("payload: the message [1] of its schema %d where [0], google.protobuf.Duration, is wanted", pb)},
		"indexes cut off":              {pbC, must(framed(pb, nil, []byte{4, 2})), new(durationpb.Duration), "payload: its message indexes cannot be read"},
		"Protobuf cut off":             {pbC, must(framed(pb, []int{0}, []byte{8})), new(durationpb.Duration), "payload: its data is no google.protobuf.Duration"},
	} {
		final(t, name, c.codec.Decode(t.Context(), holdfast.Event{Payload: c.payload}, c.target), c.reason)
	}
}

func TestCodec_ARegistryThatDoesNotAnswerIsNoEventsFault(t *testing.T) {
	im := imitate(t)
	id := im.add("a", registered{Schema: orderV2})
	payload := must(framed(id, nil, []byte{2, 'a', 2}))
	var o order
	for _, status := range []int{500, 503, http.StatusTooManyRequests, http.StatusUnauthorized, http.StatusForbidden} {
		im.answers(status)
		err := must(registryOf(t, im).Avro(AvroConfig{})).Decode(t.Context(), holdfast.Event{Payload: payload}, &o)
		if retry.Classify(err) != retry.Unavailable {
			t.Errorf("%d: %v is of the class %s", status, err, retry.Classify(err))
		}
	}
	im.answers(0)
	r := registryOf(t, im)
	codec := must(r.Avro(AvroConfig{}))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := codec.Decode(ended, holdfast.Event{Payload: payload}, &o); retry.Classify(err) != retry.Unavailable {
		t.Errorf("a context that has ended: %v is of the class %s", err, retry.Classify(err))
	}
	if err := codec.Decode(t.Context(), holdfast.Event{Payload: payload}, &o); err != nil || o.ID != "a" { // It was not remembered.
		t.Errorf("%+v, %v", o, err)
	}
	im.Close()
	if err := codec.Decode(t.Context(), holdfast.Event{Payload: payload}, &o); err != nil {
		t.Errorf("a schema that is known was asked for again: %v", err)
	}
	err := codec.Decode(t.Context(), holdfast.Event{Payload: must(framed(5, nil, nil))}, &o)
	if retry.Classify(err) != retry.Unavailable {
		t.Errorf("no registry: %v is of the class %s", err, retry.Classify(err))
	}
	if _, err := must(registryOf(t, im).Avro(AvroConfig{Schema: orderV2})).Encode(t.Context(), holdfast.Event{Topic: "a"}, o); retry.Classify(err) != retry.Unavailable {
		t.Errorf("no registry to encode by: %v", err)
	}
}

func TestCodec_ASchemaIsRegisteredOnlyIfAskedFor(t *testing.T) {
	im := imitate(t)
	r := registryOf(t, im)
	_, err := must(r.Avro(AvroConfig{Schema: orderV2})).Encode(t.Context(), holdfast.Event{Topic: "orders"}, order{})
	if err == nil || !strings.Contains(err.Error(), "look up the schema under orders-value (register it there, or set Register)") || retry.Classify(err) == retry.Unavailable {
		t.Errorf("got %v", err)
	}
	codec := must(r.Avro(AvroConfig{Schema: orderV2, Register: true}))
	for range 3 {
		must(codec.Encode(t.Context(), holdfast.Event{Topic: "orders"}, order{}))
	}
	if want := "[POST /subjects/orders-value POST /subjects/orders-value/versions]"; im.questions() != want {
		t.Errorf("it was asked %s, want %s", im.questions(), want)
	}
}

func TestCodec_CredentialsAreSent(t *testing.T) {
	im := imitate(t)
	im.add("orders-value", registered{Schema: orderV2})
	for want, c := range map[string]Config{"me": {User: "me", Password: "x"}, "Bearer tok": {Token: "tok"}, "": {}} {
		c.URLs = []string{"http://127.0.0.1:1", im.URL} // The first does not answer.
		codec := must(must(New(c)).Avro(AvroConfig{Schema: orderV2}))
		must(codec.Encode(t.Context(), holdfast.Event{Topic: "orders"}, order{}))
		if im.user != want {
			t.Errorf("it came as %q, want %q", im.user, want)
		}
	}
}

func TestCodec_AllProblemsOfAConfigurationAreSaidAtOnce(t *testing.T) {
	_, err := New(Config{URLs: []string{"registry:8081", "https://me:SECRET@registry"}, User: "me", Token: "SECRET", Timeout: -1})
	for _, want := range []string{"urls has an address that is not like", "token and user are both set", "timeout is -1ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	if err != nil && strings.Contains(err.Error(), "SECRET") {
		t.Error("it quotes a password")
	}
	if _, err := New(Config{}); err == nil {
		t.Error("no address is needed")
	}
	r := must(New(Config{URLs: []string{"http://registry"}}))
	for name, err := range map[string]error{
		"avro": errOf(r.Avro(AvroConfig{Schema: "{"})), "avro, register": errOf(r.Avro(AvroConfig{Register: true})),
		"protobuf": errOf(r.Protobuf(ProtobufConfig{Register: true})), "json": errOf(r.JSON(JSONConfig{Register: true})),
	} {
		if err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func errOf(_ holdfast.Codec, err error) error { return err }
