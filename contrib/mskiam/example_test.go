package mskiam_test

import (
	"crypto/tls"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"

	"github.com/holdfast-go/holdfast/contrib/mskiam"
	"github.com/holdfast-go/holdfast/kafkago"
)

// snippet: msk

// connect reaches an MSK cluster. credentials come from config.LoadDefaultConfig, usually.
func connect(region string, credentials aws.CredentialsProvider, brokers ...string) (kafkago.Connection, error) {
	mechanism, err := mskiam.New(region, credentials)
	if err != nil {
		return kafkago.Connection{}, err
	}
	return kafkago.Connection{Brokers: brokers, TLS: &tls.Config{}, SASL: mechanism}, nil
}

// end snippet

func Example() {
	connection, err := connect("eu-west-1", credentials.NewStaticCredentialsProvider("AKIDEXAMPLE", "secret", ""), "b-1.shop.kafka.eu-west-1.amazonaws.com:9098")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = kafkago.NewPublisher(connection, kafkago.PublisherConfig{})
	fmt.Println(connection.SASL.Name(), err)
	// Output: OAUTHBEARER <nil>
}
