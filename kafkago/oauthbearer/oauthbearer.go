// Package oauthbearer authenticates with Kafka by a token: SASL OAUTHBEARER, RFC 7628 and KIP-255. It is a mechanism for
// kafkago.Connection, and works with kafka-go alone as well:
//
//	connection := kafkago.Connection{Brokers: brokers, TLS: &tls.Config{}, SASL: oauthbearer.Mechanism(token)}
//
// Where tokens come from is up to a function of yours: a file that somebody keeps fresh, golang.org/x/oauth2, or
// contrib/mskiam for AWS.
package oauthbearer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/sasl"
)

// Token is what a broker is shown.
type Token struct {
	// Value is the token: a JWT, usually. It is never part of an error.
	Value string

	// ExpiresAt is when it ends; the zero time says nothing of it. A token that has expired is not sent. The broker reads
	// from the token itself when it ends, and ends the connection's session then.
	ExpiresAt time.Time

	// Extensions are further names and values for the broker (KIP-342), "logicalCluster" of Confluent, say. A name has
	// letters only and is not "auth"; a value is printable ASCII.
	Extensions map[string]string
}

// Mechanism is SASL OAUTHBEARER. Each connection, and each renewal of its session, asks token for a token. It must return
// soon, when ctx is done at the latest; keep a token that is still good rather than fetching one each time. Many connections
// may call it at once.
func Mechanism(token func(ctx context.Context) (Token, error)) sasl.Mechanism {
	return mechanism{token}
}

type mechanism struct {
	token func(ctx context.Context) (Token, error)
}

func (mechanism) Name() string { return "OAUTHBEARER" }

func (m mechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	t, err := m.token(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("get a token: %w", err)
	}
	if err := t.check(time.Now()); err != nil {
		return nil, nil, err
	}
	return exchange{t}, t.response(), nil
}

// The characters of RFC 6750, section 2.1, and of RFC 7628, section 3.1. kvsep ends each pair.
var (
	tokenText     = regexp.MustCompile(`^[A-Za-z0-9._~+/-]+=*$`)
	extensionName = regexp.MustCompile(`^[A-Za-z]+$`)
	extensionText = regexp.MustCompile(`^[\x20-\x7e\t\r\n]*$`)
)

const kvsep = "\x01"

// check reports all that is wrong with a token, and does not repeat it.
func (t Token) check(now time.Time) error {
	var found []error
	switch {
	case t.Value == "":
		found = append(found, errors.New("token is empty: it must be what the issuer gave"))
	case !tokenText.MatchString(t.Value):
		found = append(found, fmt.Errorf("token has %d characters, and not all are allowed: it must have letters, digits and -._~+/ only, and = at its end", len(t.Value)))
	}
	if !t.ExpiresAt.IsZero() && !t.ExpiresAt.After(now) {
		found = append(found, fmt.Errorf("token is expired since %s: it must be a newer one", t.ExpiresAt.UTC().Format(time.RFC3339)))
	}
	for _, name := range slices.Sorted(maps.Keys(t.Extensions)) {
		if !extensionName.MatchString(name) || strings.EqualFold(name, "auth") {
			found = append(found, fmt.Errorf("extension is %s: it must have letters only, and not be auth", excerpt(name)))
		}
		if !extensionText.MatchString(t.Extensions[name]) {
			found = append(found, fmt.Errorf("extension is %s, with a value of other characters: it must have printable ASCII only", excerpt(name)))
		}
	}
	return errors.Join(found...)
}

// response is the client's first and only message: a header that says "no channel binding, no other user", then pairs.
func (t Token) response() []byte {
	var b strings.Builder
	b.WriteString("n,," + kvsep + "auth=Bearer " + t.Value + kvsep)
	for _, name := range slices.Sorted(maps.Keys(t.Extensions)) {
		b.WriteString(name + "=" + t.Extensions[name] + kvsep)
	}
	b.WriteString(kvsep)
	return []byte(b.String())
}

// exchange reads the broker's answer.
type exchange struct{ token Token }

// Next has accepted an empty answer. Any other says why the token is refused; the server then waits for a single kvsep, by
// which it ends the exchange and logs it. kafkago sends that, although there is an error too; kafka-go alone closes the
// connection.
func (e exchange) Next(_ context.Context, challenge []byte) (done bool, response []byte, err error) {
	if len(challenge) == 0 {
		return true, nil, nil
	}
	return false, []byte(kvsep), e.token.refused(challenge)
}

// refused is the server's answer in words: RFC 7628, section 3.2.2.
func (t Token) refused(challenge []byte) error {
	var says struct {
		Status        string `json:"status"`
		Scope         string `json:"scope"`
		Configuration string `json:"openid-configuration"`
	}
	show := func(text string) string { return excerpt(t.without(text)) }
	text := "the broker refused the token"
	if err := json.Unmarshal(challenge, &says); err != nil || says.Status == "" {
		return errors.New(text + ", and says " + show(string(challenge)))
	}
	text += ": " + show(says.Status)
	if says.Scope != "" {
		text += "; it needs the scope " + show(says.Scope)
	}
	if says.Configuration != "" {
		text += "; its issuer is described at " + show(says.Configuration)
	}
	return errors.New(text)
}

// without takes the token out of a text of the server's, before it is cut.
func (t Token) without(text string) string {
	escaped := strings.ReplaceAll(t.Value, "/", `\/`) // as JSON may have it
	return strings.NewReplacer(t.Value, "…", escaped, "…").Replace(text)
}

// excerpt quotes the beginning of a text for an error.
func excerpt(text string) string {
	if len(text) > 256 {
		return strconv.QuoteToASCII(text[:256]) + "…"
	}
	return strconv.QuoteToASCII(text)
}
