package kafkago

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/kafkafault"
	"github.com/holdfast-go/holdfast/internal/murmur2"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

// javasMurmur2 is Utils.murmur2 as Java has it, in signed numbers, from bytes.
func javasMurmur2(data []byte) int32 {
	const m, r = int32(0x5bd1e995), 24
	h := int32(-1756908916) ^ int32(len(data)) // 0x9747b28c
	for i := range len(data) / 4 {
		k := int32(data[4*i]) + int32(data[4*i+1])<<8 + int32(data[4*i+2])<<16 + int32(data[4*i+3])<<24
		k *= m
		k ^= int32(uint32(k) >> r)
		k *= m
		h *= m
		h ^= k
	}
	rest := data[len(data)&^3:]
	if len(rest) == 3 {
		h ^= int32(rest[2]) << 16
	}
	if len(rest) >= 2 {
		h ^= int32(rest[1]) << 8
	}
	if len(rest) >= 1 {
		h ^= int32(rest[0])
		h *= m
	}
	h ^= int32(uint32(h) >> 13)
	h *= m
	return h ^ int32(uint32(h)>>15)
}

func FuzzKeysGoWhereJavaPutsThem(f *testing.F) {
	for key := range murmurVectors {
		f.Add([]byte(key), uint8(7))
	}
	f.Add([]byte{0x80, 0xff, 0x80}, uint8(0))
	f.Fuzz(func(t *testing.T, key []byte, more uint8) {
		partitions := int(more) + 1
		if got, want := int32(murmur2.Sum(string(key))), javasMurmur2(key); got != want {
			t.Fatalf("murmur2(%x) = %d, Java's is %d", key, got, want)
		}
		if len(key) == 0 {
			return
		}
		all := make([]int, partitions)
		for i := range all {
			all[i] = i
		}
		want := kafka.Murmur2Balancer{}.Balance(kafka.Message{Key: key}, all...)
		if got := Murmur2(holdfast.Event{Key: string(key), ID: "other"}, partitions); got != want || got < 0 || got >= partitions {
			t.Fatalf("%x goes to %d of %d, kafka-go says %d", key, got, partitions, want)
		}
	})
}

// Every code of Kafka's has one fault and one class, and neither wrapping nor what is joined to it changes them.
func FuzzEveryErrorIsSomebodysFault(f *testing.F) {
	for code := range 110 {
		f.Add(code, byte(0), "text")
	}
	f.Add(-1, byte(1), "")
	f.Add(1<<30, byte(255), "x\x00\xff")
	f.Add(0, byte(2), "no code at all")
	faults := []publish.Fault{publish.FaultRecord, publish.FaultTopic, publish.FaultPartition, publish.FaultBroker}
	f.Fuzz(func(t *testing.T, code int, shape byte, text string) {
		var err error = kafka.Error(code)
		if shape&1 != 0 {
			err = errors.New(text)
		}
		if shape&2 != 0 {
			err = retry.Permanent(err)
		}
		fault := FaultOf(err)
		if !slices.Contains(faults, fault) {
			t.Fatalf("%v is the fault of %q", err, fault)
		}
		wrapped := fmt.Errorf("%s: %w", text, err)
		if got := FaultOf(wrapped); got != fault {
			t.Fatalf("%v: %q, and wrapped %q", err, fault, got)
		}
		if got := FaultOf(errors.Join(errors.New(text), err)); got != fault {
			t.Fatalf("%v: %q, and joined %q", err, fault, got)
		}
		for _, said := range faults {
			e := publishError(text, code, said, err)
			if got := FaultOf(fmt.Errorf("publish: %w", e)); got != said {
				t.Fatalf("a publish.Error says %q, and FaultOf %q", said, got)
			}
			class := retry.Classify(e)
			if class == "" || said != publish.FaultRecord && class == retry.Validation || said == publish.FaultRecord && class != retry.Validation {
				t.Fatalf("%v, the fault of %q, has the class %q", err, said, class)
			}
		}
		if shape&3 == 0 && fault != kafkafault.Of(code).Fault {
			t.Fatalf("%v is the fault of %q, which the table does not say", err, fault)
		}
	})
}
