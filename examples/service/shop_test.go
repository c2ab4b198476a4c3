package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestShop_AnOrderIsPlacedPaidAndSent(t *testing.T) {
	db, cluster := pgtest.New(t), kafkatest.InProcess(t)
	if _, err := cluster.Client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: "shop", NumPartitions: 2, ReplicationFactor: 1}}}); err != nil {
		t.Fatal(err)
	}
	address := exampletest.FreeAddress(t)
	shop := exampletest.Command([]string{"DATABASE_URL=" + db.DSN, "KAFKA_BROKERS=" + cluster.Brokers[0], "STRIPE_SECRET=whsec_0123456789", "LISTEN=" + address})
	if err := shop.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = shop.Process.Kill() }()

	post := func(path, body string, header http.Header) int {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+path, strings.NewReader(body))
		r.Header = header
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	key := http.Header{"X-Customer": {"ann"}, "Idempotency-Key": {"4a9b7c1e-order-1"}}
	for range 2 { // The second gets the answer of the first.
		wait.Until(t, "the order is taken", func() bool { return post("/orders", `{"ID":"o-1"}`, key) == http.StatusCreated })
	}
	paid, at := `{"id":"evt_1","type":"payment_intent.succeeded","created":1,"data":{"object":{"metadata":{"order":"o-1"}}}}`, fmt.Sprint(time.Now().Unix())
	mac := hmac.New(sha256.New, []byte("whsec_0123456789"))
	fmt.Fprintf(mac, "%s.%s", at, paid)
	signed := http.Header{"Stripe-Signature": {fmt.Sprintf("t=%s,v1=%x", at, mac.Sum(nil))}}
	wait.Until(t, "the webhook is taken", func() bool { return post("/webhooks/stripe", paid, signed)/100 == 2 })
	wait.Until(t, "the parcel is sent", func() bool { return pgtest.Count(t, db.Pool, "select count(*) from orders where state = 'sent'") == 1 })
	for _, path := range []string{"/livez", "/readyz", "/metrics"} {
		wait.Until(t, path+" answers with 200", func() bool {
			answer, err := http.Get("http://" + address + path)
			return err == nil && answer.StatusCode == http.StatusOK
		})
	}
	_ = shop.Process.Signal(syscall.SIGTERM)
	if err := shop.Wait(); err != nil {
		t.Errorf("the shop ended: %v", err)
	}
}
