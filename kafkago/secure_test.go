package kafkago

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/holdfast-go/holdfast/internal/test/certtest"
	"github.com/holdfast-go/holdfast/relay/publish"
	"github.com/holdfast-go/holdfast/retry"
)

func TestSecure_CredentialsDoNotTravelInPlainText(t *testing.T) {
	brokers := []string{"localhost:9092"}
	for _, row := range []struct {
		name       string
		connection Connection
		want       []string
	}{
		{"a password", Connection{SASL: saying{name: "PLAIN"}}, []string{`sasl is "PLAIN", without tls`}},
		{"a token", Connection{SASL: saying{name: "OAUTHBEARER"}}, []string{`sasl is "OAUTHBEARER", without tls`}},
		{"who knows what", Connection{SASL: saying{name: "AWS_MSK_IAM"}}, []string{`sasl is "AWS_MSK_IAM", without tls`}},
		{"a password, if it is asked for", Connection{SASL: saying{name: "PLAIN"}, AllowPlaintextCredentials: true}, nil},
		{"a password over TLS", Connection{SASL: saying{name: "PLAIN"}, TLS: &tls.Config{}}, nil},
		{"the proof of a password", Connection{SASL: saying{name: "SCRAM-SHA-256"}}, nil},
		{"the better proof", Connection{SASL: saying{name: "scram-sha-512"}}, nil},
		{"a Kerberos ticket", Connection{SASL: saying{name: "GSSAPI"}}, nil},
		{"TLS that believes everybody", Connection{TLS: &tls.Config{InsecureSkipVerify: true}}, []string{"insecure skip verify of tls is true"}},
		{"TLS that verifies by itself", Connection{TLS: &tls.Config{InsecureSkipVerify: true, VerifyConnection: func(tls.ConnectionState) error { return nil }}}, nil},
		{"TLS that verifies by itself, the old way", Connection{TLS: &tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: func([][]byte, [][]*x509.Certificate) error { return nil }}}, nil},
		{"TLS of old", Connection{TLS: &tls.Config{MinVersion: tls.VersionTLS11}}, []string{"min version of tls is TLS 1.1"}},
		{"TLS of today", Connection{TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, nil},
		{"everything at once", Connection{SASL: saying{name: "PLAIN"}, DialTimeout: -1}, []string{"sasl is", "dial timeout is"}},
		{"everything of TLS at once", Connection{TLS: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10}}, []string{"insecure skip verify of tls is", "min version of tls is"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			row.connection.Brokers = brokers
			_, publisher := NewPublisher(row.connection, PublisherConfig{})
			_, group := NewGroup(row.connection, GroupConfig{GroupID: "g", Topics: []string{"t"}})
			for _, err := range []error{publisher, group} {
				if row.want == nil {
					if err != nil {
						t.Error(err)
					}
					continue
				}
				wantAll(t, err, row.want...)
			}
		})
	}
}

// Whatever a broker leaves unanswered ends the attempt, with an error that says how far it came.
func TestSecure_ABrokerThatFallsSilentEndsTheAttemptInTime(t *testing.T) {
	for _, row := range []struct{ at, doing string }{
		{"tls", "start TLS"},
		{"versions", "ask for its versions"},
		{"handshake", "authenticate by PLAIN"},
		{"authenticate", "authenticate by PLAIN"},
	} {
		t.Run(row.at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				authority := certtest.New(t)
				d := &doorman{tls: &tls.Config{Certificates: []tls.Certificate{authority.Issue(t, "kafka-1", time.Hour, "kafka-1").Pair(t)}},
					mutters: func(request string) bool { return request == row.at }}
				began := time.Now()
				_, err := d.enter(t, Connection{TLS: &tls.Config{RootCAs: authority.Pool()}, SASL: saying{name: "PLAIN"}, DialTimeout: 3 * time.Second})
				if err == nil || !strings.HasPrefix(err.Error(), "connect to kafka-1:9092: "+row.doing+": ") || retry.Classify(err) != retry.Timeout {
					t.Errorf("%s: %v", retry.Classify(err), err)
				}
				if took := time.Since(began); took != 3*time.Second {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}

func TestSecure_AnAttemptEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doorman{mutters: func(request string) bool { return request == "authenticate" }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := Connection{SASL: saying{name: "PLAIN"}}.secured(d.dial, time.Minute)(ctx, "tcp", "kafka-1:9092")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

func TestSecure_WhatABrokerRefusesIsSaidWithItsRemedy(t *testing.T) {
	refuses := func(text, code string) func(string) (string, string) {
		return func(string) (string, string) { return text, code }
	}
	for _, row := range []struct {
		name  string
		d     *doorman
		m     sasl.Mechanism
		class retry.Class
		want  string
	}{
		{"the password", &doorman{judges: refuses("", "Authentication failed: Invalid username or password")}, saying{name: "PLAIN"}, retry.Auth,
			"authenticate by PLAIN: [58] SASL Authentication Failed: SASL Authentication failed: Authentication failed: Invalid username or password: check user and password, or the token"},
		{"the mechanism", &doorman{offers: []string{"SCRAM-SHA-512", "OAUTHBEARER"}}, saying{name: "PLAIN"}, retry.Auth, `; it offers "SCRAM-SHA-512, OAUTHBEARER": use a mechanism that this listener has`},
		{"what it hears, and hangs up", &doorman{judges: refuses("", "hang up")}, saying{name: "PLAIN"}, retry.Auth, "the broker ended the connection: "},
		{"by an answer that the mechanism reads", &doorman{judges: refuses("no", "")}, saying{name: "PLAIN", next: func(said string) (string, error) { return "", errors.New("it says " + said) }}, retry.Auth,
			"authenticate by PLAIN: it says no"},
		{"nothing, but there is no password", &doorman{}, Rotating("PLAIN", func(context.Context) (sasl.Mechanism, error) { return nil, io.ErrNoProgress }), retry.Transient,
			"authenticate by PLAIN: get the credentials: multiple Read calls return no data or error"},
		{"nothing, but the password is for another mechanism", &doorman{}, Rotating("PLAIN", func(context.Context) (sasl.Mechanism, error) { return saying{name: "OTHER"}, nil }), retry.Transient, `mechanism is "OTHER": it must be PLAIN`},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := row.d.enter(t, Connection{SASL: row.m})
			if err == nil || !strings.HasPrefix(err.Error(), "connect to kafka-1:9092: authenticate by PLAIN: ") || !strings.Contains(err.Error(), row.want) || retry.Classify(err) != row.class {
				t.Errorf("%s: %v", retry.Classify(err), err)
			}
			if FaultOf(err) != publish.FaultBroker {
				t.Errorf("the fault is %q", FaultOf(err))
			}
			if !unanswered(err) {
				t.Error("that other brokers may be reached is not looked at")
			}
		})
	}
}

// Kafka waits for the client's last message to an answer that says why a token is refused, and logs it then.
func TestSecure_AMechanismThatIsRefusedHasTheLastWord(t *testing.T) {
	d := &doorman{judges: func(said string) (string, string) {
		if said == "\x01" {
			return "", "so be it"
		}
		return "no", ""
	}}
	_, err := d.enter(t, Connection{SASL: saying{name: "OTHER", message: "please", next: func(string) (string, error) { return "\x01", errors.New("it says no") }}})
	if want := []string{"please", "\x01"}; err == nil || !strings.HasSuffix(err.Error(), "it says no") || !slices.Equal(d.said, want) {
		t.Errorf("%q, %v", d.said, err)
	}
}

func TestSecure_CredentialsAreMadeForEachConnection(t *testing.T) {
	d, words := &doorman{}, []string{"one", "two"}
	m := Rotating("PLAIN", func(ctx context.Context) (sasl.Mechanism, error) {
		if at := sasl.MetadataFromContext(ctx); at == nil || at.Host != "kafka-1" || at.Port != 9092 {
			t.Errorf("it is not said which broker it is for: %v", at)
		}
		return saying{name: "PLAIN", message: words[len(d.said)]}, nil
	})
	for range words {
		if _, err := d.enter(t, Connection{SASL: m}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(d.said, words) {
		t.Errorf("it heard %q", d.said)
	}
}

func TestSecure_WhatTLSRefusesIsSaidWithItsRemedy(t *testing.T) {
	authority, another := certtest.New(t), certtest.New(t)
	pair := func(i certtest.Issued) []tls.Certificate { return []tls.Certificate{i.Pair(t)} }
	ours, theirs := pair(authority.Issue(t, "kafka-1", time.Hour, "kafka-1")), pair(another.Issue(t, "kafka-1", time.Hour, "kafka-1"))
	other, over := pair(authority.Issue(t, "kafka-7", time.Hour, "kafka-7")), pair(authority.Issue(t, "kafka-1", -time.Minute, "kafka-1"))
	trust := &tls.Config{RootCAs: authority.Pool()}
	strict := &tls.Config{Certificates: ours, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: authority.Pool()}
	for _, row := range []struct {
		name   string
		broker *tls.Config
		client *tls.Config
		class  retry.Class
		want   string // "" where it is let in
	}{
		{"the right certificate", &tls.Config{Certificates: ours}, trust, "", ""},
		{"another authority", &tls.Config{Certificates: theirs}, trust, retry.Auth, "trust the certificate authority of the brokers"},
		{"another name", &tls.Config{Certificates: other}, trust, retry.Auth, "certificate is valid for kafka-7, not kafka-1: the certificate is for other names"},
		{"another name that is expected", &tls.Config{Certificates: other}, &tls.Config{RootCAs: authority.Pool(), ServerName: "kafka-7"}, "", ""},
		{"a certificate that is over", &tls.Config{Certificates: over}, trust, retry.Auth, "look at the broker's certificate and at this machine's clock"},
		{"a broker that wants a certificate", strict, trust, retry.Auth, "it may want a client certificate that it trusts"},
		{"a client certificate of another authority", strict, &tls.Config{RootCAs: authority.Pool(), Certificates: theirs}, retry.Auth, "it may want a client certificate that it trusts"},
		{"a client certificate", strict, &tls.Config{RootCAs: authority.Pool(), Certificates: ours}, "", ""},
		{"a client certificate, in TLS 1.2", strict, &tls.Config{RootCAs: authority.Pool(), Certificates: ours, MaxVersion: tls.VersionTLS12}, "", ""},
		{"a broker that wants a certificate, in TLS 1.2", strict, &tls.Config{RootCAs: authority.Pool(), MaxVersion: tls.VersionTLS12}, retry.Auth, "it may want a client certificate that it trusts"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := new(doorman).enter(t, Connection{TLS: row.client, Dial: (&doorman{tls: row.broker}).overTCP(t)})
			switch {
			case row.want == "" && err == nil:
			case row.want == "", err == nil, !strings.Contains(err.Error(), row.want), !strings.HasPrefix(err.Error(), "connect to kafka-1:9092: "), retry.Classify(err) != row.class:
				t.Errorf("%s: %v", retry.Classify(err), err)
			}
		})
	}
	if trust.ServerName != "" {
		t.Error("the configuration that was given is changed")
	}
}

// A port that does not speak TLS ends the connection, or answers with something else.
func TestSecure_APortWithoutTLSIsNamedAsTheCause(t *testing.T) {
	for name, answer := range map[string]string{"it hangs up": "", "it speaks something else": "HTTP/1.1 400 Bad Request\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			dial := func(context.Context, string, string) (net.Conn, error) {
				ours, theirs := net.Pipe()
				go func() {
					defer ours.Close()
					_, _ = ours.Read(make([]byte, 10_000))
					_, _ = ours.Write([]byte(answer))
				}()
				return theirs, nil
			}
			_, err := Connection{TLS: &tls.Config{}}.secured(dial, time.Minute)(t.Context(), "tcp", "kafka-1:9092")
			if err == nil || !strings.Contains(err.Error(), "speak TLS on this port: use that of its TLS listener") {
				t.Error(err)
			}
		})
	}
}

// kafka-go bounds no SASL in time: with it, Close would wait for a broker that says nothing for ever.
func TestSecure_AGroupClosesWhileABrokerSaysNothing(t *testing.T) {
	for _, at := range []string{"versions", "handshake", "authenticate"} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &doorman{mutters: func(request string) bool { return request == at }}
				g, err := NewGroup(Connection{Brokers: []string{"kafka-1:9092"}, Dial: d.dial, DialTimeout: 2 * time.Second, SASL: saying{name: "SCRAM-SHA-512"}}, GroupConfig{GroupID: "g", Topics: []string{"t"}})
				if err != nil {
					t.Fatal(err)
				}
				s, err := g.Open(t.Context(), time.Second)
				if err != nil {
					t.Fatal(err)
				}
				_, err = s.Next(t.Context())
				if err == nil || !strings.Contains(err.Error(), "connect to kafka-1:9092: ") || retry.Classify(err) != retry.Timeout {
					t.Errorf("%s: %v", retry.Classify(err), err)
				}
				began := time.Now()
				s.Close()
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("it took %s to close", took)
				}
			})
		})
	}
}

// A member of a group learns the reason, and so does a publisher.
func TestSecure_AWrongPasswordIsSaidToPublisherAndGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &doorman{judges: func(string) (string, string) { return "", "no such user" }}
		c := Connection{Brokers: []string{"kafka-1:9092"}, Dial: d.dial, SASL: saying{name: "SCRAM-SHA-512"}}
		g, err := NewGroup(c, GroupConfig{GroupID: "g", Topics: []string{"t"}})
		if err != nil {
			t.Fatal(err)
		}
		s, err := g.Open(t.Context(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		k, err := NewPublisher(c, PublisherConfig{})
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		began := time.Now()
		_, member := s.Next(t.Context())
		published := k.Publish(t.Context(), keyed("a"))[0]
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %s", took)
		}
		for _, err := range []error{member, published} {
			if !errors.Is(err, kafka.SASLAuthenticationFailed) || !strings.Contains(err.Error(), "no such user: check user and password") || retry.Classify(err) != retry.Auth {
				t.Errorf("%s: %v", retry.Classify(err), err)
			}
		}
	})
}
