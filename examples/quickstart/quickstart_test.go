package quickstart

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/holdfasttest"
	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/kafkago"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func TestQuickstart_EveryOrderGetsOneInvoice(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, tablesOfTheREADME(t))
	cluster := kafkatest.InProcess(t)
	if _, err := cluster.Client.CreateTopics(t.Context(), &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: "orders", NumPartitions: 2, ReplicationFactor: 1}}}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, db.Pool, kafkago.Connection{Brokers: cluster.Brokers}) }()
	const orders = 10
	for i := range orders {
		if err := PlaceOrder(ctx, db.Pool, Order{ID: int64(i), Customer: string(rune('a' + i%3)), Cents: 100}); err != nil {
			t.Fatal(err)
		}
	}
	if err := holdfasttest.WaitIdle(ctx, db.Pool, holdfasttest.Idle{Consumers: []string{"billing"}, Topics: []string{"orders"}, Within: time.Minute}); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := pgtest.Count(t, db.Pool, "select count(distinct order_id) from invoices"); n != orders || n != pgtest.Count(t, db.Pool, "select count(*) from invoices") {
		t.Errorf("%d orders of %d have an invoice, or one has two", n, orders)
	}
}

// tablesOfTheREADME are the statements in a comment of its code: a reader has no others.
func tablesOfTheREADME(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var statements strings.Builder
	for _, m := range regexp.MustCompile(`(?m)^//\t(create table .*)$`).FindAllStringSubmatch(string(page), -1) {
		statements.WriteString(m[1])
	}
	return statements.String()
}

func TestQuickstart_ARefundThatIsSentTwiceIsMadeOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := holdfast.Migrate(t.Context(), db.Pool, holdfast.SchemaConfig{}); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, db.Pool, "create table refunds (charge text)")
	h, err := Refunds(db.Pool, func(*http.Request) (string, error) { return "ann", nil })
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/refunds", strings.NewReader("charge=c1"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Idempotency-Key", "refund-1")
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != http.StatusCreated {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	}
	if n := pgtest.Count(t, db.Pool, "select count(*) from refunds where charge = 'c1'"); n != 1 {
		t.Errorf("the charge was refunded %d times", n)
	}
}

// The block of Go in the README is a package that compiles: no name comes out of nowhere.
func TestQuickstart_TheCodeOfTheREADMECompilesAsItStands(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("quickstart.go")
	if err != nil {
		t.Fatal(err)
	}
	imports := regexp.MustCompile(`(?ms)^import \(.*?^\)`).FindString(string(source))
	code := "package quickstart\n\n" + imports + "\n"
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```").FindAllStringSubmatch(string(page), -1)
	for _, b := range blocks {
		code += "\n" + b[1]
	}
	if len(blocks) != 1 {
		t.Errorf("the README has %d blocks of Go, want one: producer, relay and consumer", len(blocks))
	}
	if out, err := compile(t, code); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if out, err := compile(t, code+"\nvar _ = attempts\n"); err == nil || !strings.Contains(out, "undefined: attempts") {
		t.Errorf("a name that nobody declares goes unnoticed: %v: %s", err, out)
	}
}

// compile builds code in place of this package.
func compile(t *testing.T, code string) (string, error) {
	t.Helper()
	here, err := filepath.Abs("quickstart.go")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "readme.go")
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {here: file}})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{file: code, filepath.Join(dir, "overlay.json"): string(overlay)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), "go", "build", "-overlay", filepath.Join(dir, "overlay.json"), ".").CombinedOutput()
	return string(out), err
}
