package mskiam

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

const (
	keyID  = "AKIDEXAMPLE"
	secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
)

func fixed(token string) aws.CredentialsProviderFunc {
	return func(context.Context) (aws.Credentials, error) {
		return aws.Credentials{AccessKeyID: keyID, SecretAccessKey: secret, SessionToken: token}, nil
	}
}

// urlOf is the URL in the first message to a broker.
func urlOf(t *testing.T, region string, credentials aws.CredentialsProvider) *url.URL {
	t.Helper()
	m, err := New(region, credentials)
	if err != nil {
		t.Fatal(err)
	}
	_, first, err := m.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	value, ok := strings.CutPrefix(string(first), "n,,\x01auth=Bearer ")
	value, end := strings.CutSuffix(value, "\x01\x01")
	if m.Name() != "OAUTHBEARER" || !ok || !end {
		t.Fatalf("%s sends %q", m.Name(), first)
	}
	text, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), secret) {
		t.Error("the secret is in the token")
	}
	u, err := url.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestMSKIAM_ATokenIsAPresignedURLForTheRegion(t *testing.T) {
	for _, session := range []string{"", "a session/token+of=STS"} {
		before := time.Now().Add(-time.Second)
		u := urlOf(t, "eu-west-1", fixed(session))
		q := u.Query()
		if u.Scheme != "https" || u.Host != "kafka.eu-west-1.amazonaws.com" || u.Path != "/" {
			t.Errorf("it is for %s", u)
		}
		at, err := time.Parse("20060102T150405Z", q.Get("X-Amz-Date"))
		if err != nil || at.Before(before.Truncate(time.Second)) || at.After(time.Now()) {
			t.Errorf("it is of %s, %v", at, err)
		}
		day := at.Format("20060102")
		for name, want := range map[string]string{"Action": "kafka-cluster:Connect", "X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Expires": "900",
			"X-Amz-SignedHeaders": "host", "X-Amz-Credential": keyID + "/" + day + "/eu-west-1/kafka-cluster/aws4_request", "X-Amz-Security-Token": session} {
			if got := q.Get(name); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		if want := signature(u, day, "eu-west-1"); q.Get("X-Amz-Signature") != want {
			t.Errorf("the signature is %s, want %s", q.Get("X-Amz-Signature"), want)
		}
	}
}

// signature is that of AWS Signature Version 4 for a GET of u without a body, as the documentation of AWS describes it.
func signature(u *url.URL, day, region string) string {
	q := u.Query()
	q.Del("X-Amz-Signature")
	q.Del("User-Agent") // added after signing, and so to be left out by the server
	empty := sha256.Sum256(nil)
	request := strings.Join([]string{"GET", u.Path, strings.ReplaceAll(q.Encode(), "+", "%20"), "host:" + u.Host, "", "host", hex.EncodeToString(empty[:])}, "\n")
	hashed := sha256.Sum256([]byte(request))
	scope := day + "/" + region + "/kafka-cluster/aws4_request"
	text := strings.Join([]string{"AWS4-HMAC-SHA256", q.Get("X-Amz-Date"), scope, hex.EncodeToString(hashed[:])}, "\n")
	key := []byte("AWS4" + secret)
	for _, part := range []string{day, region, "kafka-cluster", "aws4_request", text} {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(part))
		key = mac.Sum(nil)
	}
	return hex.EncodeToString(key)
}

func TestMSKIAM_EachConnectionAsksForCredentials(t *testing.T) {
	asked := 0
	m, err := New("eu-west-1", aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		asked++
		return fixed("")(ctx)
	}))
	if err != nil || asked > 0 {
		t.Fatalf("asked %d times before a connection: %v", asked, err)
	}
	for range 2 {
		if _, _, err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if asked != 2 {
		t.Errorf("asked %d times", asked)
	}
}

func TestMSKIAM_AFailureSaysWhatFailed(t *testing.T) {
	away := errors.New("no role")
	for want, provider := range map[string]aws.CredentialsProviderFunc{
		"sign for region eu-west-1: failed to load credentials: no role": func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, away },
		"sign for region eu-west-1: aws credentials cannot be empty":     func(context.Context) (aws.Credentials, error) { return aws.Credentials{}, nil },
	} {
		m, err := New("eu-west-1", provider)
		if err != nil {
			t.Fatal(err)
		}
		if _, first, err := m.Start(t.Context()); err == nil || !strings.HasSuffix(err.Error(), want) || first != nil {
			t.Errorf("it sends %q, %v, want %s", first, err, want)
		}
	}
}

func TestMSKIAM_WhatCannotWorkIsRefusedWithEveryProblem(t *testing.T) {
	for _, name := range []string{"", "eu", "eu-west-1.evil.example/", "EU-WEST-1"} {
		_, err := New(name, nil)
		if err == nil || !strings.Contains(err.Error(), `region is "`+name+`": it must be`) || !strings.Contains(err.Error(), "credentials is nil: it must be") {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"eu-west-1", "us-gov-east-1", "cn-north-1", "ap-southeast-4"} {
		if _, err := New(name, fixed("")); err != nil {
			t.Error(err)
		}
	}
}
