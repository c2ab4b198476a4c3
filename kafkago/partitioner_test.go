package kafkago

import (
	"fmt"
	"testing"

	"github.com/segmentio/kafka-go"
	"pgregory.net/rapid"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/murmur2"
)

// The vectors of Kafka's own UtilsTest.testMurmur2.
var murmurVectors = map[string]int32{
	"21":                         -973932308,
	"foobar":                     -790332482,
	"a-little-bit-long-string":   -985981536,
	"a-little-bit-longer-string": -1486304829,
	"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
	"abc": 479470107,
}

func TestPartitioner_Murmur2IsJavas(t *testing.T) {
	for key, want := range murmurVectors {
		if got := int32(murmur2.Sum(key)); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestPartitioner_KeysGoWhereAJavaProducerPutsThem(t *testing.T) {
	// toPositive masks the sign away: -973932308 & 0x7fffffff is 1173551340.
	if got := Murmur2(holdfast.Event{Key: "21"}, 7); got != 1173551340%7 {
		t.Errorf("partition %d", got)
	}
	theirs := kafka.Murmur2Balancer{}
	rapid.Check(t, func(t *rapid.T) {
		key := string(rapid.SliceOfN(rapid.Byte(), 1, 100).Draw(t, "key"))
		n := rapid.IntRange(1, 100).Draw(t, "partitions")
		all := make([]int, n)
		for i := range all {
			all[i] = i
		}
		want := theirs.Balance(kafka.Message{Key: []byte(key)}, all...)
		if got := Murmur2(holdfast.Event{ID: "other", Key: key}, n); got != want {
			t.Fatalf("partition %d, kafka-go's Murmur2Balancer says %d", got, want)
		}
	})
}

func TestPartitioner_EventsWithoutAKeySpreadByIDAndStayWhereTheyWere(t *testing.T) {
	const partitions, events = 8, 8000
	counts := make([]int, partitions)
	for i := range events {
		e := holdfast.Event{ID: fmt.Sprintf("018f6a52-7f2c-7a10-8c4e-%012d", i)}
		p := Murmur2(e, partitions)
		if again := Murmur2(e, partitions); again != p {
			t.Fatalf("event %d goes to %d and then to %d", i, p, again)
		}
		counts[p]++
	}
	for p, n := range counts {
		if n < events/partitions/2 || n > events/partitions*2 {
			t.Errorf("partition %d got %d of %d events", p, n, events)
		}
	}
}

func TestPartitioner_ABinaryKeyGoesWhereItsBytesGo(t *testing.T) {
	e := holdfast.Event{ID: "1", Key: "data:;base64,AAAAAAAAACo="}
	if got, want := Murmur2(e, 7), murmur2.Partition("\x00\x00\x00\x00\x00\x00\x00\x2a", 7); got != want {
		t.Errorf("partition %d, want %d", got, want)
	}
}
