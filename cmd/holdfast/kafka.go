package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/holdfast-go/holdfast/kafkago"
	"github.com/holdfast-go/holdfast/kafkago/oauthbearer"
)

// kafkaFlags say how to reach Kafka. No flag takes a password or a token: a list of processes shows flags to everybody.
type kafkaFlags struct {
	TLS        bool   `help:"Encrypt the connections to Kafka." name:"tls" env:"KAFKA_TLS"`
	CA         string `help:"PEM file with the certificates to trust. Defaults to those of the system. Needs --tls." name:"tls-ca" env:"KAFKA_TLS_CA" placeholder:"FILE"`
	Cert       string `help:"PEM file with the client certificate, for brokers that ask for one. It is read for each connection. Needs --tls and --tls-key." name:"tls-cert" env:"KAFKA_TLS_CERT" placeholder:"FILE"`
	Key        string `help:"PEM file with the key of --tls-cert." name:"tls-key" env:"KAFKA_TLS_KEY" placeholder:"FILE"`
	ServerName string `help:"Name that the brokers' certificates must have. Defaults to the host of each broker's address. Needs --tls." name:"tls-server-name" env:"KAFKA_TLS_SERVER_NAME" placeholder:"NAME"`

	Mechanism    string            `help:"plain, scram-sha-256, scram-sha-512 or oauthbearer." placeholder:"NAME" name:"sasl-mechanism" env:"KAFKA_SASL_MECHANISM" enum:",plain,scram-sha-256,scram-sha-512,oauthbearer" default:""`
	User         string            `help:"User of --sasl-mechanism, unless it is oauthbearer." name:"sasl-user" env:"KAFKA_USER" placeholder:"NAME"`
	PasswordFile string            `help:"File with the password of --sasl-user. It is read for each connection." name:"sasl-password-file" env:"KAFKA_PASSWORD_FILE" placeholder:"FILE"`
	TokenFile    string            `help:"File with the token of oauthbearer. It is read for each connection." name:"sasl-token-file" env:"KAFKA_TOKEN_FILE" placeholder:"FILE"`
	Extensions   map[string]string `help:"Pairs that a broker wants in addition to the token of oauthbearer, as logicalCluster=lkc-1;identityPoolId=pool-1." name:"sasl-extension" env:"KAFKA_SASL_EXTENSIONS" placeholder:"NAME=VALUE"`
	Plaintext    bool              `help:"Send the password or token without TLS, for anybody on the way to read." name:"allow-plaintext-credentials" env:"KAFKA_ALLOW_PLAINTEXT_CREDENTIALS"`
}

// connection is what the flags say, and an error with every problem of theirs.
func (k *kafkaFlags) connection(brokers []string, env func(string) string) (kafkago.Connection, error) {
	c := kafkago.Connection{
		Brokers:                   brokers,
		ClientID:                  "holdfast",
		AllowPlaintextCredentials: k.Plaintext,
	}
	encryption, problems := k.encryption()
	mechanism, more := k.mechanism(env)
	c.TLS, c.SASL = encryption, mechanism
	return c, errors.Join(append(problems, more...)...)
}

// encryption is nil without --tls.
func (k *kafkaFlags) encryption() (*tls.Config, []error) {
	var found []error
	if !k.TLS {
		for _, f := range []struct{ name, value string }{{"tls-ca", k.CA}, {"tls-cert", k.Cert}, {"tls-key", k.Key}, {"tls-server-name", k.ServerName}} {
			if f.value != "" {
				found = append(found, fmt.Errorf("--%s is %s: it must be with --tls: add --tls", f.name, f.value))
			}
		}
		return nil, found
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: k.ServerName}
	if k.CA != "" {
		config.RootCAs = x509.NewCertPool()
		text, err := os.ReadFile(k.CA)
		if err != nil {
			found = append(found, fmt.Errorf("--tls-ca is %s: it must be a file that can be read: %w", k.CA, err))
		} else if !config.RootCAs.AppendCertsFromPEM(text) {
			found = append(found, fmt.Errorf("--tls-ca is %s: it must have a certificate in PEM", k.CA))
		}
	}
	switch {
	case k.Cert == "" && k.Key == "":
	case k.Cert == "" || k.Key == "":
		found = append(found, fmt.Errorf("--tls-cert is %q, --tls-key is %q: it must be both or none", k.Cert, k.Key))
	default:
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(k.Cert, k.Key)
			return &pair, err
		}
		if _, err := config.GetClientCertificate(nil); err != nil {
			found = append(found, fmt.Errorf("--tls-cert is %s: it must be a certificate in PEM, with its key in --tls-key: %w", k.Cert, err))
		}
	}
	return config, found
}

// mechanism is nil without --sasl-mechanism.
func (k *kafkaFlags) mechanism(env func(string) string) (sasl.Mechanism, []error) {
	password := secret{
		what:  "password",
		name:  "KAFKA_PASSWORD",
		value: env("KAFKA_PASSWORD"),
		flag:  "--sasl-password-file",
		file:  k.PasswordFile,
	}
	token := secret{
		what:  "token",
		name:  "KAFKA_TOKEN",
		value: env("KAFKA_TOKEN"),
		flag:  "--sasl-token-file",
		file:  k.TokenFile,
	}
	var found []error
	switch k.Mechanism {
	case "":
		// What the environment has may be for another program.
		for _, f := range []struct{ name, value string }{{"sasl-password-file", k.PasswordFile}, {"sasl-token-file", k.TokenFile}} {
			if f.value != "" {
				found = append(found, fmt.Errorf("--%s is %s: it must be with --sasl-mechanism", f.name, f.value))
			}
		}
		if len(k.Extensions) > 0 {
			found = append(found, errors.New("--sasl-extension is set: it must be with --sasl-mechanism oauthbearer"))
		}
		return nil, found
	case "oauthbearer":
		found = append(found, token.problems()...)
		return oauthbearer.Mechanism(func(context.Context) (oauthbearer.Token, error) {
			text, err := token.read()
			return oauthbearer.Token{Value: text, Extensions: k.Extensions}, err
		}), found
	}
	if len(k.Extensions) > 0 {
		found = append(found, fmt.Errorf("--sasl-extension is set, and --sasl-mechanism is %s: it must be with oauthbearer", k.Mechanism))
	}
	if k.User == "" {
		found = append(found, errors.New("--sasl-user is empty: it must be the user's name: set it, or KAFKA_USER"))
	}
	found = append(found, password.problems()...)
	built := map[string]func(password string) (sasl.Mechanism, error){
		"plain": func(password string) (sasl.Mechanism, error) {
			return plain.Mechanism{Username: k.User, Password: password}, nil
		},
		"scram-sha-256": func(password string) (sasl.Mechanism, error) {
			return scram.Mechanism(scram.SHA256, k.User, password)
		},
		"scram-sha-512": func(password string) (sasl.Mechanism, error) {
			return scram.Mechanism(scram.SHA512, k.User, password)
		},
	}[k.Mechanism]
	return kafkago.Rotating(strings.ToUpper(k.Mechanism), func(context.Context) (sasl.Mechanism, error) {
		text, err := password.read()
		if err != nil {
			return nil, err
		}
		return built(text)
	}), found
}

// secret is a password or a token, from the environment or from a file.
type secret struct{ what, name, value, flag, file string }

// problems says what is wrong with it now.
func (s secret) problems() []error {
	switch {
	case s.value != "" && s.file != "":
		return []error{fmt.Errorf("%s is %s, and %s has a value: it must be one of them", s.flag, s.file, s.name)}
	case s.value == "" && s.file == "":
		return []error{fmt.Errorf("%s is empty: it must be a file with the %s: set it, or %s", s.flag, s.what, s.name)}
	}
	if _, err := s.read(); err != nil {
		return []error{err}
	}
	return nil
}

// read returns it, from the file without the end of its line.
func (s secret) read() (string, error) {
	if s.file == "" {
		return s.value, nil
	}
	text, err := os.ReadFile(s.file)
	if err != nil {
		return "", fmt.Errorf("%s is %s: it must be a file that can be read: %w", s.flag, s.file, err)
	}
	if value := strings.TrimRight(string(text), "\r\n"); value != "" {
		return value, nil
	}
	return "", fmt.Errorf("%s is %s, which is empty: it must have the %s", s.flag, s.file, s.what)
}
