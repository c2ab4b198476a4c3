package oauthbearer

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/problems"
)

func always(t Token) func(context.Context) (Token, error) {
	return func(context.Context) (Token, error) { return t, nil }
}

// The bytes are those of RFC 7628, section 4.1, without its authorization identity, which Kafka takes from the token.
func TestOAuthBearer_TheFirstMessageIsThatOfTheRFC(t *testing.T) {
	for _, row := range []struct {
		name  string
		token Token
		want  string
	}{
		{"a token", Token{Value: "vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg=="}, "n,,\x01auth=Bearer vF9dft4qmTc2Nvb3RlckBhbHRhdmlzdGEuY29tCg==\x01\x01"},
		{"a token that ends later", Token{Value: "t", ExpiresAt: time.Now().Add(time.Minute)}, "n,,\x01auth=Bearer t\x01\x01"},
		{"extensions, in the order of their names", Token{Value: "t", Extensions: map[string]string{"logicalCluster": "lkc-1", "identityPoolId": "pool 1"}},
			"n,,\x01auth=Bearer t\x01identityPoolId=pool 1\x01logicalCluster=lkc-1\x01\x01"},
	} {
		t.Run(row.name, func(t *testing.T) {
			m := Mechanism(always(row.token))
			state, first, err := m.Start(t.Context())
			if err != nil || string(first) != row.want || m.Name() != "OAUTHBEARER" {
				t.Fatalf("%s sends %q, %v, want %q", m.Name(), first, err, row.want)
			}
			if done, more, err := state.Next(t.Context(), nil); !done || len(more) > 0 || err != nil {
				t.Errorf("after an empty answer: %t, %q, %v", done, more, err)
			}
		})
	}
}

func TestOAuthBearer_EachConnectionAsksForAToken(t *testing.T) {
	type key struct{}
	asked := 0
	m := Mechanism(func(ctx context.Context) (Token, error) {
		asked++
		if ctx.Value(key{}) != "this attempt" {
			t.Error("the context of the attempt is not passed on")
		}
		return Token{Value: strings.Repeat("t", asked)}, nil
	})
	for _, want := range []string{"Bearer t\x01", "Bearer tt\x01"} {
		if _, first, err := m.Start(context.WithValue(t.Context(), key{}, "this attempt")); err != nil || !strings.Contains(string(first), want) {
			t.Errorf("it sends %q, %v", first, err)
		}
	}
	away := errors.New("the issuer is away")
	m = Mechanism(func(context.Context) (Token, error) { return Token{Value: "t"}, away })
	if _, first, err := m.Start(t.Context()); !errors.Is(err, away) || first != nil {
		t.Errorf("without a token it sends %q, %v", first, err)
	}
}

func TestOAuthBearer_ATokenThatCannotBeSentIsRefusedWithEveryProblem(t *testing.T) {
	const secret = "c2VjcmV0\x01auth=x"
	_, first, err := Mechanism(always(Token{Value: secret, ExpiresAt: time.Unix(1700000000, 0),
		Extensions: map[string]string{"auth": "x", "a b": "y", "scope": "über"}})).Start(t.Context())
	problems.HaveForm(t, err)
	if first != nil || strings.Contains(err.Error(), "c2VjcmV0") {
		t.Errorf("it sends %q, and says %v", first, err)
	}
	for _, want := range []string{"token has 15 characters", "token is expired since 2023-11-14T22:13:20Z", `extension is "auth"`, `extension is "a b"`, `extension is "scope", with a value`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	if lines := strings.Count(err.Error(), "\n") + 1; lines != 5 {
		t.Errorf("%d problems: %v", lines, err)
	}
	for _, value := range []string{"", "a\n", "a b", "=a", "a=b", "ü"} {
		if _, _, err := Mechanism(always(Token{Value: value})).Start(t.Context()); err == nil {
			t.Errorf("the token %q is sent", value)
		}
	}
	now := time.Now()
	if (Token{Value: "t", ExpiresAt: now}).check(now) == nil || (Token{Value: "t", ExpiresAt: now.Add(1)}).check(now) != nil {
		t.Error("a token ends at another moment than it says")
	}
}

func TestOAuthBearer_TheBrokersRefusalIsReadableAndWithoutTheToken(t *testing.T) {
	const token = "eyJhbGciOiJub25lIn0/abc"
	for _, row := range []struct{ name, answer, want string }{
		{"as Kafka says it", `{"status":"invalid_token"}`, `the broker refused the token: "invalid_token"`},
		{"with a scope and an issuer", `{"status":"insufficient_scope","scope":"orders","openid-configuration":"https://id.example/.well-known"}`,
			`the broker refused the token: "insufficient_scope"; it needs the scope "orders"; its issuer is described at "https://id.example/.well-known"`},
		{"with the token in it", `{"status":"no: ` + token + `"}`, `the broker refused the token: "no: \u2026"`},
		{"with the token as JSON escapes it", `{"status":"", "token":"eyJhbGciOiJub25lIn0\/abc"}`, `the broker refused the token, and says "{\"status\":\"\", \"token\":\"\u2026\"}"`},
		{"no JSON", "go away, " + token, `the broker refused the token, and says "go away, \u2026"`},
		{"endless, with the token at the cut", strings.Repeat("x", 250) + token, `the broker refused the token, and says "` + strings.Repeat("x", 250) + `\u2026"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			state, _, err := Mechanism(always(Token{Value: token})).Start(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			done, last, err := state.Next(t.Context(), []byte(row.answer))
			if done || string(last) != "\x01" || err == nil || err.Error() != row.want {
				t.Errorf("%t, %q, %v, want %s", done, last, err, row.want)
			}
		})
	}
}
