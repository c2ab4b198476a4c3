package quickstart

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/kafkago/oauthbearer"
)

// The code of docs/guides/kafka-connections.md.

// snippet: mutual-tls

// MutualTLS trusts the brokers' certificate authority, and shows them a client certificate. Its files are read for each
// connection, so a renewed certificate needs no restart.
func MutualTLS(authorityFile, certificateFile, keyFile string, brokers ...string) (kafkago.Connection, error) {
	authority, err := os.ReadFile(authorityFile)
	if err != nil {
		return kafkago.Connection{}, err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(authority) {
		return kafkago.Connection{}, fmt.Errorf("%s has no certificate in PEM", authorityFile)
	}
	config := &tls.Config{RootCAs: trusted}
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(certificateFile, keyFile)
		return &pair, err
	}
	return kafkago.Connection{Brokers: brokers, TLS: config}, nil
}

// end snippet

// snippet: rotating

// FromFile authenticates by SCRAM with a password that something else keeps fresh in a file.
func FromFile(user, passwordFile string, brokers ...string) kafkago.Connection {
	mechanism := kafkago.Rotating(scram.SHA512.Name(), func(context.Context) (sasl.Mechanism, error) {
		password, err := os.ReadFile(passwordFile)
		if err != nil {
			return nil, err
		}
		return scram.Mechanism(scram.SHA512, user, strings.TrimRight(string(password), "\r\n"))
	})
	return kafkago.Connection{Brokers: brokers, TLS: &tls.Config{}, SASL: mechanism}
}

// end snippet

// snippet: oauthbearer

// ByToken authenticates by a token that something else keeps fresh in a file, as Kubernetes does with those of service
// accounts.
func ByToken(tokenFile string, brokers ...string) kafkago.Connection {
	mechanism := oauthbearer.Mechanism(func(context.Context) (oauthbearer.Token, error) {
		token, err := os.ReadFile(tokenFile)
		return oauthbearer.Token{Value: strings.TrimSpace(string(token))}, err
	})
	return kafkago.Connection{Brokers: brokers, TLS: &tls.Config{}, SASL: mechanism}
}

// end snippet

// snippet: plain

// OnMyMachine sends a password without TLS, and says so.
func OnMyMachine(user, password string) kafkago.Connection {
	return kafkago.Connection{Brokers: []string{"localhost:9092"}, AllowPlaintextCredentials: true,
		SASL: plain.Mechanism{Username: user, Password: password}}
}

// end snippet
