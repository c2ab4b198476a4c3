package main

import (
	"crypto/tls"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/certtest"
)

func TestKafka_WrongFlagsOfTheConnectionToKafkaAreSaidAllAtOnce(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://u@127.0.0.1:1/x")
	client := certtest.New(t).Issue(t, "a client", time.Hour)
	cert, key := certtest.File(t, "cert.pem", client.Certificate), certtest.File(t, "key.pem", client.Key)
	empty := certtest.File(t, "empty", []byte("\n"))
	for _, row := range []struct {
		name  string
		flags string
		env   string
		want  []string
	}{
		{"what needs TLS", "--tls-ca ca.pem --tls-cert c --tls-key k --tls-server-name n", "",
			[]string{"--tls-ca is ca.pem: it must be with --tls", "--tls-cert is c: it must be with --tls", "--tls-key is k: it must be with --tls", "--tls-server-name is n: it must be with --tls"}},
		{"files that are none", "--tls --tls-ca missing.pem --tls-cert missing.pem --tls-key missing.pem", "", []string{"--tls-ca is missing.pem: it must be a file that can be read", "--tls-cert is missing.pem: it must be a certificate"}},
		{"a file without a certificate", "--tls --tls-ca kafka.go --tls-cert kafka.go --tls-key " + key, "", []string{"--tls-ca is kafka.go: it must have a certificate in PEM", "--tls-cert is kafka.go: it must be a certificate"}},
		{"a certificate without its key", "--tls --tls-cert " + cert, "", []string{`--tls-key is "": it must be both or none`}},
		{"a key without its certificate", "--tls --tls-key " + key, "", []string{`--tls-cert is "", `}},
		{"no user and no password", "--tls --sasl-mechanism scram-sha-512", "", []string{"--sasl-user is empty", "--sasl-password-file is empty: it must be a file with the password: set it, or KAFKA_PASSWORD"}},
		{"two passwords", "--tls --sasl-mechanism plain --sasl-user u --sasl-password-file p", "KAFKA_PASSWORD=hunter2", []string{"--sasl-password-file is p, and KAFKA_PASSWORD has a value: it must be one of them"}},
		{"an empty file", "--tls --sasl-mechanism plain --sasl-user u --sasl-password-file " + empty, "", []string{"empty, which is empty: it must have the password"}},
		{"pairs for a token that is none", "--tls --sasl-mechanism plain --sasl-user u --sasl-extension a=b", "KAFKA_PASSWORD=hunter2", []string{"--sasl-extension is set, and --sasl-mechanism is plain: it must be with oauthbearer"}},
		{"pairs without a mechanism", "--sasl-extension a=b", "", []string{"--sasl-extension is set: it must be with --sasl-mechanism oauthbearer"}},
		{"no token", "--tls --sasl-mechanism oauthbearer", "", []string{"--sasl-token-file is empty: it must be a file with the token: set it, or KAFKA_TOKEN"}},
		{"a token whose file is missing", "--tls --sasl-mechanism oauthbearer --sasl-token-file missing", "", []string{"--sasl-token-file is missing: it must be a file that can be read"}},
		{"a password without TLS", "--sasl-mechanism plain --sasl-user u", "KAFKA_PASSWORD=hunter2", []string{`sasl is "PLAIN", without tls`}},
		{"a token without TLS", "--sasl-mechanism oauthbearer", "KAFKA_TOKEN=hunter2", []string{`sasl is "OAUTHBEARER", without tls`}},
		{"files without a mechanism", "--sasl-password-file p --sasl-token-file t", "", []string{"--sasl-password-file is p: it must be with --sasl-mechanism", "--sasl-token-file is t: it must be with --sasl-mechanism"}},
		{"of TLS, SASL, the brokers and the database", "--tls-ca ca.pem --sasl-mechanism plain --brokers nowhere --database-url postgres://u:hunter2@127.0.0.1:1/x", "", []string{"--database-url has a password", "--tls-ca is ca.pem", "--sasl-user is empty", "--sasl-password-file is empty", `sasl is "PLAIN", without tls`, `broker is "nowhere"`}},
	} {
		t.Run(row.name, func(t *testing.T) {
			if name, value, ok := strings.Cut(row.env, "="); ok {
				t.Setenv(name, value)
			}
			args := append([]string{"relay"}, strings.Fields(row.flags)...)
			if !strings.Contains(row.flags, "--brokers") {
				args = append(args, "--brokers", "b:9092")
			}
			status, out, errOut := call(t, args...)
			for _, want := range row.want {
				if !strings.Contains(errOut, want) {
					t.Errorf("it does not say %q", want)
				}
			}
			if lines := strings.Count(strings.TrimSpace(errOut), "\n"); status != 2 || lines != len(row.want) || strings.Contains(out+errOut, "hunter2") {
				t.Errorf("status %d, %d problems, or the secret is shown:\n%s%s", status, lines, out, errOut)
			}
		})
	}
}

func noEnv(string) string { return "" }

func TestKafka_NoFlagTakesAPasswordOrAToken(t *testing.T) {
	for _, flag := range []string{"--sasl-password", "--sasl-token"} {
		wantStatus(t, 2, "unknown flag "+flag, "relay", "--brokers", "b:9092", flag+"=hunter2")
	}
}

func TestKafka_ACertificateIsReadForEachConnection(t *testing.T) {
	authority := certtest.New(t)
	first, second := authority.Issue(t, "first", time.Hour), authority.Issue(t, "second", time.Hour)
	cert, key := certtest.File(t, "cert.pem", first.Certificate), certtest.File(t, "key.pem", first.Key)
	c, err := (&kafkaFlags{TLS: true, Cert: cert, Key: key, ServerName: "kafka.internal"}).connection(nil, noEnv)
	if err != nil || c.TLS.ServerName != "kafka.internal" || c.TLS.MinVersion != tls.VersionTLS12 {
		t.Fatalf("%+v, %v", c.TLS, err)
	}
	for _, issued := range []certtest.Issued{first, second} {
		for path, text := range map[string][]byte{cert: issued.Certificate, key: issued.Key} {
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		pair, err := c.TLS.GetClientCertificate(nil)
		if err != nil || string(pair.Certificate[0]) != string(issued.Pair(t).Certificate[0]) {
			t.Errorf("another certificate is shown: %v", err)
		}
	}
}

func TestKafka_SecretsAreReadForEachConnection(t *testing.T) {
	for _, row := range []struct {
		flags kafkaFlags
		want  string
	}{
		{kafkaFlags{TLS: true, Mechanism: "plain", User: "shop"}, "\x00shop\x00SECRET"},
		{kafkaFlags{TLS: true, Mechanism: "oauthbearer", Extensions: map[string]string{"logicalCluster": "lkc-1"}}, "n,,\x01auth=Bearer SECRET\x01logicalCluster=lkc-1\x01\x01"},
	} {
		t.Run(row.flags.Mechanism, func(t *testing.T) {
			file := certtest.File(t, "secret", nil)
			if row.flags.PasswordFile = file; row.flags.Mechanism == "oauthbearer" {
				row.flags.PasswordFile, row.flags.TokenFile = "", file
			}
			if err := os.WriteFile(file, []byte("at the start"), 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := row.flags.connection(nil, noEnv)
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range []string{"first", "second"} {
				if err := os.WriteFile(file, []byte(secret+"\r\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				_, first, err := c.SASL.Start(t.Context())
				if want := strings.Replace(row.want, "SECRET", secret, 1); err != nil || string(first) != want {
					t.Errorf("it sends %q, %v, want %q", first, err, want)
				}
			}
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
			if _, _, err := c.SASL.Start(t.Context()); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("without its file it is %v", err)
			}
		})
	}
}

func TestKafka_SecretsComeFromTheEnvironmentToo(t *testing.T) {
	env := func(name string) string {
		return map[string]string{"KAFKA_PASSWORD": "hunter2", "KAFKA_TOKEN": "hunter3"}[name]
	}
	for mechanism, want := range map[string]string{"plain": "\x00shop\x00hunter2", "oauthbearer": "n,,\x01auth=Bearer hunter3\x01\x01"} {
		c, err := (&kafkaFlags{Mechanism: mechanism, User: "shop", Plaintext: true}).connection(nil, env)
		if err != nil || !c.AllowPlaintextCredentials {
			t.Fatal(err)
		}
		if _, first, err := c.SASL.Start(t.Context()); err != nil || string(first) != want {
			t.Errorf("it sends %q, %v", first, err)
		}
	}
	if c, err := new(kafkaFlags).connection(nil, env); err != nil || c.SASL != nil { // another program's
		t.Errorf("without a mechanism: %v, %v", c.SASL, err)
	}
}
