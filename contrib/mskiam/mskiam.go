// Package mskiam authenticates with Amazon MSK by IAM: SASL OAUTHBEARER with a token that AWS's own signer makes,
// github.com/aws/aws-msk-iam-sasl-signer-go. It is a module of its own, so that nobody else links the AWS SDK.
//
//	cfg, err := config.LoadDefaultConfig(ctx) // of github.com/aws/aws-sdk-go-v2/config
//	mechanism, err := mskiam.New("eu-west-1", cfg.Credentials)
//	connection := kafkago.Connection{Brokers: brokers, TLS: &tls.Config{}, SASL: mechanism}
//
// A token is a presigned URL for the action kafka-cluster:Connect, good for 15 minutes. Signing needs no network. kafkago
// makes another one for each connection, and renews the session of a connection before it ends.
package mskiam

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/aws/aws-msk-iam-sasl-signer-go/signer"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/holdfast-go/holdfast/kafkago/oauthbearer"
)

// region is what AWS calls regions, "eu-west-1". It becomes part of a host's name.
var region = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)+$`)

// New is a mechanism for kafkago.Connection, or for kafka-go alone, for the brokers of a region. Each connection asks
// credentials, which must be quick and may be called by many goroutines at once: those that the SDK loads are kept until
// they expire. It returns one error with every problem, and does not touch the network.
func New(regionName string, credentials aws.CredentialsProvider) (sasl.Mechanism, error) {
	var found []error
	if !region.MatchString(regionName) {
		found = append(found, fmt.Errorf("region is %s: it must be that of the cluster, such as eu-west-1", strconv.QuoteToASCII(regionName)))
	}
	if credentials == nil {
		found = append(found, errors.New("credentials is nil: it must be a provider, such as Credentials of config.LoadDefaultConfig"))
	}
	if err := errors.Join(found...); err != nil {
		return nil, err
	}
	return oauthbearer.Mechanism(func(ctx context.Context) (oauthbearer.Token, error) {
		value, expires, err := signer.GenerateAuthTokenFromCredentialsProvider(ctx, regionName, credentials)
		if err != nil {
			return oauthbearer.Token{}, fmt.Errorf("sign for region %s: %w", regionName, err)
		}
		return oauthbearer.Token{Value: value, ExpiresAt: time.UnixMilli(expires)}, nil
	}), nil
}
