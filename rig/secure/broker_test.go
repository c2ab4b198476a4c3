// Package secure has the tests of relays and consumers at listeners of Kafka with TLS and SASL. It has no code but tests.
package secure

import (
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"hash"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/holdfast-go/holdfast/internal/test/certtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/kafkago/oauthbearer"
	"github.com/holdfast-go/holdfast/rig/docker"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

// The listeners of the broker. Its certificate is for 127.0.0.1; at elsewhere it is for kafka.internal.
const (
	secure    = "SECURE"    // SASL over TLS
	short     = "SHORT"     // the same, with sessions of shortSession
	mutual    = "MUTUAL"    // TLS that asks for a certificate
	elsewhere = "ELSEWHERE" // TLS
	open      = "OPEN"      // SASL without TLS
)

const shortSession = 3 * time.Second

// The one user.
const user, password = "shop", "hunter2-4711"

// broker is a Kafka that lets nobody in without a certificate, a password or a token.
type broker struct {
	*kafkaserver.Server
	authority, foreign *certtest.Authority // the broker trusts the first one
}

var started struct {
	sync.Once
	broker *broker
	err    error
}

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func() {
		if started.broker != nil {
			started.broker.Stop()
		}
	}))
}

// theBroker is the broker of all tests: it takes ten seconds to start.
func theBroker(t *testing.T) *broker {
	t.Helper()
	started.Do(func() {
		b := &broker{authority: certtest.New(t), foreign: certtest.New(t)}
		if b.Server, started.err = b.start(t); started.err != nil {
			return
		}
		started.broker = b
		started.err = b.addUser(context.Background())
	})
	if errors.Is(started.err, docker.ErrNoDocker) {
		skip.Without(t, "Kafka in a container", "start Docker", started.err)
	}
	if started.err != nil {
		t.Fatal(started.err)
	}
	return started.broker
}

func (b *broker) start(t *testing.T) (*kafkaserver.Server, error) {
	t.Helper()
	const dir = "/tmp/holdfast-"
	pem := func(hosts ...string) []byte {
		issued := b.authority.Issue(t, "a broker", time.Hour, hosts...)
		return append(issued.Key, issued.Certificate...)
	}
	settings := map[string]string{
		"ssl.keystore.type": "PEM", "ssl.keystore.location": dir + "broker.pem",
		"ssl.truststore.type": "PEM", "ssl.truststore.location": dir + "authority.pem",
		"listener.name.mutual.ssl.client.auth":                        "required",
		"listener.name.elsewhere.ssl.keystore.type":                   "PEM",
		"listener.name.elsewhere.ssl.keystore.location":               dir + "elsewhere.pem",
		"listener.name.short.plain.connections.max.reauth.ms":         "3000",
		"listener.name.short.scram-sha-512.connections.max.reauth.ms": "3000",
		"listener.name.short.oauthbearer.connections.max.reauth.ms":   "3000",
	}
	for _, listener := range []string{"secure", "short", "open"} {
		prefix := "listener.name." + listener + "."
		settings[prefix+"sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
		settings[prefix+"plain.sasl.jaas.config"] = `org.apache.kafka.common.security.plain.PlainLoginModule required user_` + user + `="` + password + `";`
		for _, name := range []string{"scram-sha-256", "scram-sha-512"} {
			settings[prefix+name+".sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
		}
		settings[prefix+"oauthbearer.sasl.jaas.config"] = `org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`
	}
	return kafkaserver.Container(context.Background(), kafkaserver.ContainerOptions{
		Settings: settings,
		Files:    map[string][]byte{dir + "broker.pem": pem("127.0.0.1", "localhost"), dir + "elsewhere.pem": pem("kafka.internal"), dir + "authority.pem": b.authority.PEM},
		Listeners: []kafkaserver.Listener{{Name: secure, Protocol: "SASL_SSL"}, {Name: short, Protocol: "SASL_SSL"}, {Name: mutual, Protocol: "SSL"},
			{Name: elsewhere, Protocol: "SSL"}, {Name: open, Protocol: "SASL_PLAINTEXT"}},
	})
}

// addUser makes the user for SCRAM. Kafka takes one mechanism of a user in a request.
func (b *broker) addUser(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	const iterations = 4096
	salt := []byte("a salt of tests")
	for mechanism, hash := range map[kafka.ScramMechanism]func() hash.Hash{kafka.ScramMechanismSha256: sha256.New, kafka.ScramMechanismSha512: sha512.New} {
		salted, err := pbkdf2.Key(hash, password, salt, iterations, hash().Size())
		if err != nil {
			return err
		}
		res, err := b.Client.AlterUserScramCredentials(ctx, &kafka.AlterUserScramCredentialsRequest{Addr: kafka.TCP(b.Brokers...),
			Upsertions: []kafka.UserScramCredentialsUpsertion{{Name: user, Mechanism: mechanism, Iterations: iterations, Salt: salt, SaltedPassword: salted}}})
		if err != nil {
			return err
		}
		for _, r := range res.Results {
			if r.Error != nil {
				return r.Error
			}
		}
	}
	return nil
}

// token is one that Kafka takes without a signature, for tests: it has none.
func token(t testing.TB, subject string, life time.Duration) oauthbearer.Token {
	t.Helper()
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	now := time.Now()
	claims := map[string]any{"sub": subject, "iat": now.Unix(), "exp": now.Add(life).Unix()}
	return oauthbearer.Token{Value: part(map[string]string{"alg": "none"}) + "." + part(claims) + ".", ExpiresAt: now.Add(life)}
}

// mechanism makes one by its name. A wrong secret is one that the broker refuses.
func mechanism(t testing.TB, name string, right bool) sasl.Mechanism {
	t.Helper()
	secret := password
	if !right {
		secret = "wrong-" + password
	}
	switch name {
	case "PLAIN":
		return plain.Mechanism{Username: user, Password: secret}
	case "OAUTHBEARER":
		return oauthbearer.Mechanism(func(context.Context) (oauthbearer.Token, error) {
			all := token(t, user, time.Hour)
			if !right {
				all.Value += "c2lnbmVk" // a signature, which an unsigned token must not have
			}
			return all, nil
		})
	}
	algorithm := scram.SHA256
	if name == "SCRAM-SHA-512" {
		algorithm = scram.SHA512
	}
	m, err := scram.Mechanism(algorithm, user, secret)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
