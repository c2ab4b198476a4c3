package kafkago

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/internal/test/problems"
)

func TestConnection_NewPublisherRefusesWhatWouldLoseEventsOrHang(t *testing.T) {
	done, cancel := context.WithCancel(t.Context())
	cancel()
	var nilTransport *kafka.Transport
	brokers := []string{"host:9092"}
	for _, test := range []struct {
		name       string
		connection Connection
		config     PublisherConfig
		want       []string
	}{
		{"no broker", Connection{}, PublisherConfig{}, []string{"brokers is empty", "host:port"}},
		{"brokers without a port", Connection{Brokers: []string{"a", "b:1", "c"}}, PublisherConfig{}, []string{`broker is "a"`, `broker is "c"`}},
		{"a negative time limit", Connection{Brokers: brokers, DialTimeout: -1}, PublisherConfig{}, []string{"dial timeout is -1ns"}},
		{"no transport", Connection{Brokers: brokers, Wrap: via(nil)}, PublisherConfig{}, []string{"transport of wrap is nil"}},
		{"a nil transport in an interface", Connection{Brokers: brokers, Wrap: via(nilTransport)}, PublisherConfig{}, []string{"transport of wrap is nil"}},
		{"a transport that learns of new leaders too late", Connection{Brokers: brokers, Wrap: via(&kafka.Transport{MetadataTTL: time.Hour})}, PublisherConfig{}, []string{"metadata ttl of wrap's transport is 1h"}},
		{"a transport that is over", Connection{Brokers: brokers, Wrap: via(&kafka.Transport{Context: done})}, PublisherConfig{}, []string{"context of wrap's transport is done"}},
		{"everything at once", Connection{DialTimeout: -1, Wrap: via(nil)}, PublisherConfig{Compression: 9, ProduceTimeout: -1, MaxRequestBytes: 1, MetadataTTL: time.Hour, Parallel: -1},
			[]string{"compression is 9", "produce timeout is -1ns", "max request bytes is 1:", "metadata ttl is 1h", "parallel is -1", "brokers is empty", "dial timeout is -1ns", "transport of wrap is nil"}},
		{"too much of everything", Connection{Brokers: brokers}, PublisherConfig{ProduceTimeout: time.Hour, MaxRequestBytes: 1 << 30, MetadataTTL: 1, Parallel: 5000},
			[]string{"produce timeout is 1h", "max request bytes is 1073741824", "metadata ttl is 1ns", "parallel is 5000"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := NewPublisher(test.connection, test.config)
			if err == nil {
				t.Fatal("it is accepted")
			}
			problems.HaveForm(t, err)
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

func TestConnection_TheZeroPublisherConfigWorks(t *testing.T) {
	connection := Connection{Brokers: []string{"host:9092"}}
	k, err := NewPublisher(connection, PublisherConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if k.client.Timeout != defaultProduceTimeout || k.client.Transport != k.own || k.own.MetadataTTL != defaultMetadataTTL || k.config.Compression != kafka.Snappy {
		t.Errorf("%+v", k.config)
	}
	if k, _ := NewPublisher(connection, PublisherConfig{Compression: -1}); k.config.Compression != 0 {
		t.Error("compression cannot be turned off")
	}
}

func TestConnection_BothTransportsReachTheBrokersAsTheConnectionSays(t *testing.T) {
	dialed, said := false, ""
	c := Connection{
		Brokers: []string{"host:9092"}, ClientID: "shop", DialTimeout: time.Second,
		Dial: func(context.Context, string, string) (net.Conn, error) { dialed = true; return nil, net.ErrClosed },
	}
	own, _ := c.transport(Dial, time.Second)
	member := newDials(c.clientID()).name(c.dialer())
	if own.ClientID != "shop" || !strings.HasPrefix(member.ClientID, "shop-") || own.DialTimeout != time.Second || member.Timeout != time.Second {
		t.Errorf("transport %+v, dialer %+v", own, member)
	}
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){"transport": own.Dial, "dialer": member.DialFunc} {
		dialed = false
		if _, err := dial(t.Context(), "tcp", "host:9092"); err == nil || !dialed {
			t.Errorf("the %s does not connect by Connection.Dial", name)
		}
	}
	d := &doorman{judges: func(text string) (string, string) { said = text; return "", "" }}
	secure := Connection{Dial: d.dial, SASL: saying{name: "PLAIN", message: "it is me"}}
	own, _ = secure.transport(Dial, time.Second)
	member = newDials(c.clientID()).name(secure.dialer())
	for name, dial := range map[string]dialFunc{"transport": own.Dial, "dialer": member.DialFunc} {
		said = ""
		conn, err := dial(t.Context(), "tcp", "host:9092")
		if err != nil || said != "it is me" {
			t.Errorf("the %s does not authenticate: %q, %v", name, said, err)
		}
		_ = conn.Close()
	}
	var wrapped kafka.RoundTripper
	c.Wrap = func(t kafka.RoundTripper) kafka.RoundTripper { wrapped = t; return t }
	if own, use := c.transport(Dial, time.Second); wrapped != own || use != own {
		t.Error("Wrap was not given the transport, or what it returned is not used")
	}
	if own, _ := (Connection{}).transport(Dial, time.Second); own.ClientID != defaultClientID {
		t.Errorf("the client id is %q by default", own.ClientID)
	}
}
