package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/holdfast-go/holdfast/examples/internal/exampletest"
	"github.com/holdfast-go/holdfast/examples/internal/servers"
	"github.com/holdfast-go/holdfast/internal/test/kafkaclient"
	"github.com/holdfast-go/holdfast/internal/test/logtest"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
	"github.com/holdfast-go/holdfast/rig/kafkaserver"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

func TestEmbedded_WithoutAnyServerTheDemoRunsToItsEnd(t *testing.T) {
	skip.InShort(t, "it takes 4 s beside the others")
	t.Parallel()
	text, err := exampletest.Told(t, func(ctx context.Context, out io.Writer) error { return run(ctx, out, config{Demo: true}) })
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"20 orders answered with 201", "20 events published", "part=requests", "part=relay", "requests, relay and pool stopped in that order"}
	rest := text
	for _, line := range want {
		_, after, ok := strings.Cut(rest, line)
		if !ok {
			t.Fatalf("the output does not say %q, or not in this order: %q", line, want)
		}
		rest = after
	}
}

func TestEmbedded_TheDemoLeavesServersThatAreNamedAsTheyWere(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if err := run(t.Context(), io.Discard, config{Demo: true, DatabaseURL: db.DSN, Brokers: strings.Join(exampletest.Cluster(t).Brokers, ",")}); err != nil {
		t.Fatal(err)
	}
	exampletest.NoSchemas(t, db, "demo")
}

// site is what one start of the service after the other works on.
type site struct {
	*testing.T
	db    *pgtest.DB
	kafka *kafkaclient.Cluster
	name  string
}

func newSite(t *testing.T, k *kafkaclient.Cluster) *site {
	s := &site{T: t, db: pgtest.New(t), kafka: k, name: servers.NewName("embedded")}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = k.DeleteTopic(ctx, s.topic())
	})
	return s
}

// refuseConnections has the database let nobody in, until allow is called. A pool that is closed would end the relay, and so the service.
func (s *site) refuseConnections() (allow func()) {
	s.Helper()
	c, err := pgx.ParseConfig(s.db.DSN)
	if err != nil {
		s.Fatal(err)
	}
	name := c.Database
	c.Database = "postgres"
	admin, err := pgx.ConnectConfig(s.Context(), c)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = admin.Close(context.Background()) })
	allowing := func(yes bool) {
		if _, err := admin.Exec(context.Background(), fmt.Sprintf("alter database %s allow_connections %t", pgx.Identifier{name}.Sanitize(), yes)); err != nil {
			s.Error(err)
		}
	}
	allowing(false)
	if _, err := admin.Exec(s.Context(), "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", name); err != nil {
		s.Error(err)
	}
	return func() { allowing(true) }
}

func (s *site) topic() string { return s.name + ".orders" }

// started is a service that runs in this process.
type started struct {
	url   string
	addr  string
	stop  func()
	ended chan error
	steps logtest.Log
}

func (s *site) start(change ...func(*shop)) *started {
	s.Helper()
	on, err := servers.Start(s.Context(), servers.Config{DatabaseURL: s.db.DSN, Brokers: strings.Join(s.kafka.Brokers, ","), Name: s.name, Keep: true})
	if err != nil {
		s.Fatal(err)
	}
	r := &started{}
	v, err := newShop(s.Context(), on.Pool, on.Brokers, on.Schema, on.Topic, slog.New(slog.DiscardHandler), slog.New(slog.NewJSONHandler(&r.steps, nil)))
	if err != nil {
		s.Fatal(err)
	}
	for _, f := range change {
		f(v)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	r.url, r.addr, r.stop, r.ended = "http://"+l.Addr().String(), l.Addr().String(), cancel, make(chan error, 1)
	go func() {
		err := v.run(ctx, l)
		r.ended <- errors.Join(err, on.Stop())
	}()
	s.Cleanup(func() { cancel() })
	return r
}

// stopped are the parts that have stopped, in that order.
func (s *started) stopped(t testing.TB) (parts []string) {
	for _, line := range logtest.Lines[struct{ Msg, Part string }](t, s.steps.String()) {
		if line.Msg == "part stopped" {
			parts = append(parts, line.Part)
		}
	}
	return parts
}

func (s *site) wantEnd(r *started, want string) {
	s.Helper()
	select {
	case err := <-r.ended:
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			s.Errorf("it ended with %v, want %q", err, want)
		}
	case <-time.After(time.Minute):
		s.Fatal("it did not stop")
	}
}

func (s *site) post(url, customer string) (order, error) {
	body := fmt.Sprintf(`{"customer":%q,"cents":1200}`, customer)
	client := http.Client{Timeout: time.Minute}
	resp, err := client.Post(url+"/orders", "application/json", strings.NewReader(body))
	if err != nil {
		return order{}, err
	}
	defer resp.Body.Close()
	var o order
	if resp.StatusCode != http.StatusCreated {
		text, _ := io.ReadAll(resp.Body)
		return o, fmt.Errorf("%s: %s", resp.Status, text)
	}
	return o, json.NewDecoder(resp.Body).Decode(&o)
}

// ordersInTopic are the ids of the orders that were published, by customer, in the order of the topic.
func (s *site) ordersInTopic() map[string][]int64 {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	records, err := s.kafka.ReadAll(ctx, s.topic())
	if err != nil {
		s.Fatal(err)
	}
	orders := map[string][]int64{}
	for _, r := range records {
		var o order
		if err := json.Unmarshal(r.Value, &o); err != nil {
			s.Fatal(err)
		}
		if !slices.Contains(orders[o.Customer], o.ID) { // else it was published again
			orders[o.Customer] = append(orders[o.Customer], o.ID)
		}
	}
	return orders
}

// wantAllPublished waits until the topic has all orders that are in the database, and of no
// other, each customer's in order.
func (s *site) wantAllPublished() {
	s.Helper()
	want := int(pgtest.Count(s, s.db, "select count(*) from "+s.name+".orders"))
	got := 0
	if !wait.For(wait.Limit(), func() bool {
		got = 0
		orders := s.ordersInTopic()
		for customer, ids := range orders {
			got += len(ids)
			if !slices.IsSorted(ids) {
				s.Fatalf("the orders of %s were published in the order %v", customer, ids)
			}
		}
		return got >= want
	}) || got > want {
		s.Fatalf("%d orders are in the database, and %d in the topic", want, got)
	}
}

func TestEmbedded_ARequestInHandEndsWellWhileTheServiceStops(t *testing.T) {
	t.Parallel()
	s := newSite(t, exampletest.Cluster(t).Server.Cluster)
	r := s.start()

	// The handler has begun when the server asks for the body.
	conn, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"customer":"ann","cents":1200}`
	fmt.Fprintf(conn, "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	reader := bufio.NewReader(conn)
	if line, err := reader.ReadString('\n'); err != nil || !strings.Contains(line, "100") {
		t.Fatalf("the server answered %q, %v", line, err)
	}
	_, _ = reader.ReadString('\n')

	r.stop()
	wait.Until(t, "it accepts no connection any more", func() bool {
		conn, err := net.Dial("tcp", r.addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	if stages := r.stopped(t); len(stages) > 0 {
		t.Errorf("with a request in progress it went on to %q", stages)
	}
	fmt.Fprint(conn, body)
	resp, err := http.ReadResponse(reader, nil)
	if err != nil || resp.StatusCode != http.StatusCreated {
		t.Fatalf("the request in progress was answered with %v, %v", resp, err)
	}
	s.wantEnd(r, "")
	if got, want := r.stopped(t), []string{"requests", "relay"}; !slices.Equal(got, want) {
		t.Errorf("it stopped in the order %q, want %q", got, want)
	}
	if n := pgtest.Count(t, s.db, "select count(*) from "+s.name+".orders"); n != 1 {
		t.Errorf("%d orders, want 1", n)
	}
	next := s.start()
	s.wantAllPublished()
	next.stop()
	s.wantEnd(next, "")
}

func TestEmbedded_ARequestThatDoesNotEndIsCutOffAndRolledBack(t *testing.T) {
	t.Parallel()
	s := newSite(t, exampletest.Cluster(t).Server.Cluster)
	r := s.start(func(v *shop) { v.service.DrainTimeout = 200 * time.Millisecond })

	// A transaction elsewhere holds the table: the request waits for it in the middle of its own.
	tx, err := s.db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), "lock table "+s.name+".orders in share mode"); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := s.post(r.url, "ann")
		answered <- err
	}()
	wait.Until(t, "the request waits for the table", func() bool {
		return pgtest.Count(t, s.db, "select count(*) from pg_locks where not granted and relation = '"+s.name+".orders'::regclass") > 0
	})
	r.stop()
	s.wantEnd(r, "requests: some took longer than 200ms to end, and were cut off")
	if err := <-answered; err == nil {
		t.Error("the request was answered with 201")
	}
	if got, want := r.stopped(t), []string{"requests", "relay"}; !slices.Equal(got, want) {
		t.Errorf("it stopped in the order %q, want %q", got, want)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Count(t, s.db, "select count(*) from "+s.name+".orders"); n != 0 {
		t.Errorf("%d orders, want none", n)
	}
}

func TestEmbedded_OrdersTakenWhileKafkaIsAwayArePublishedByTheNextStart(t *testing.T) {
	t.Parallel()
	k, err := kafkaserver.InProcess()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	s := newSite(t, k.Cluster)
	var mu sync.Mutex
	away := true
	k.Fake().ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		mu.Lock()
		defer mu.Unlock()
		k.Fake().KeepControl()
		return nil, errors.New("the broker is away"), away
	})

	r := s.start()
	for range 5 {
		if _, err := s.post(r.url, "ann"); err != nil {
			t.Fatalf("an order was refused: %v", err)
		}
	}
	resp, err := http.Get(r.url + "/readyz")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("it is not ready: %v, %v", resp, err)
	}
	r.stop()
	s.wantEnd(r, "")
	if got := s.ordersInTopic(); len(got) != 0 {
		t.Fatalf("the topic has %v", got)
	}

	mu.Lock()
	away = false
	mu.Unlock()
	next := s.start()
	s.wantAllPublished()
	next.stop()
	s.wantEnd(next, "")
}

func TestEmbedded_ItIsNotReadyWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	s := newSite(t, exampletest.Cluster(t).Server.Cluster)
	r := s.start()
	ready := func() (int, string) {
		resp, err := http.Get(r.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	if status, text := ready(); status != http.StatusOK {
		t.Errorf("it is not ready: %d %s", status, text)
	}
	allow := s.refuseConnections()
	if status, text := ready(); status != http.StatusServiceUnavailable || !strings.Contains(text, "the database does not answer") {
		t.Errorf("without a database: %d %s", status, text)
	}
	if _, err := s.post(r.url, "ann"); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("an order without a database: %v", err)
	}
	allow()
	r.stop()
	<-r.ended
}
