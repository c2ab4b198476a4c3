package relay

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

func TestNewKafkaRefusesWhatWouldLoseEventsOrHang(t *testing.T) {
	done, cancel := context.WithCancel(t.Context())
	cancel()
	var nilTransport *kafka.Transport
	addr := kafka.TCP("host:9092")
	for _, test := range []struct {
		name   string
		client *kafka.Client
		config KafkaConfig
		want   []string
	}{
		{"a nil client", nil, KafkaConfig{}, []string{"kafka.Client is nil", "pass &kafka.Client"}},
		{"no address", &kafka.Client{}, KafkaConfig{}, []string{"Addr is empty"}},
		{"an empty list of addresses", &kafka.Client{Addr: kafka.TCP()}, KafkaConfig{}, []string{"Addr is empty"}},
		{"a client that gives up before us", &kafka.Client{Addr: addr, Timeout: time.Second}, KafkaConfig{}, []string{"kafka.Client.Timeout is 1s", "leave it 0"}},
		{"a negative time limit", &kafka.Client{Addr: addr, Timeout: -1}, KafkaConfig{}, []string{"kafka.Client.Timeout"}},
		{"a nil transport in an interface", &kafka.Client{Addr: addr, Transport: nilTransport}, KafkaConfig{}, []string{"nil *kafka.Transport"}},
		{"a transport that learns of new leaders too late", &kafka.Client{Addr: addr, Transport: &kafka.Transport{MetadataTTL: time.Hour}}, KafkaConfig{}, []string{"kafka.Transport.MetadataTTL is 1h"}},
		{"a transport that is over", &kafka.Client{Addr: addr, Transport: &kafka.Transport{Context: done}}, KafkaConfig{}, []string{"kafka.Transport.Context is done"}},
		{"everything at once", nil, KafkaConfig{Compression: 9, ProduceTimeout: -1, MaxRequestBytes: 1, MetadataTTL: time.Hour, Parallel: -1},
			[]string{"Compression is 9", "ProduceTimeout is -1ns", "MaxRequestBytes is 1:", "MetadataTTL is 1h", "Parallel is -1", "kafka.Client is nil"}},
		{"too much of everything", &kafka.Client{Addr: addr}, KafkaConfig{ProduceTimeout: time.Hour, MaxRequestBytes: 1 << 30, MetadataTTL: 1, Parallel: 5000},
			[]string{"ProduceTimeout is 1h", "MaxRequestBytes is 1073741824", "MetadataTTL is 1ns", "Parallel is 5000"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewKafka(test.client, test.config)
			if err == nil {
				t.Fatal("it is accepted")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
			if lines := strings.Count(err.Error(), "\n") + 1; lines > 1 && lines != len(test.want) {
				t.Errorf("%d problems: %v", lines, err)
			}
		})
	}
}

func TestTheZeroKafkaConfigWorks(t *testing.T) {
	client := &kafka.Client{Addr: kafka.TCP("host:9092")}
	k, err := NewKafka(client, KafkaConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if client.Timeout != 0 || client.Transport != nil {
		t.Error("the caller's client was changed")
	}
	if k.client.Timeout != defaultProduceTimeout || k.client.Transport == nil || k.config.Compression != kafka.Snappy {
		t.Errorf("%+v", k.config)
	}
	if k, _ := NewKafka(client, KafkaConfig{Compression: NoCompression}); k.config.Compression != 0 {
		t.Error("compression cannot be turned off")
	}
}
