package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/holdfast-go/holdfast/internal/test/kafkatest"
	"github.com/holdfast-go/holdfast/internal/test/migrated"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/skip"
	"github.com/holdfast-go/holdfast/internal/test/wait"
)

var listening = regexp.MustCompile(`msg=listening address=(\S+)`)

// address waits until a sidecar says where it listens.
func (s *sidecarProcess) address(t *testing.T) string {
	t.Helper()
	var found []string
	wait.Until(t, "the sidecar listens", func() bool {
		found = listening.FindStringSubmatch(s.log.String())
		return found != nil
	})
	return found[1]
}

// get asks a sidecar. The status is 0 where nobody answers.
func get(t *testing.T, address, path string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(text)
}

// verdict is the body of /livez and /readyz.
type verdict struct {
	Well      bool
	Reason    string
	Databases map[string]struct {
		Live, Ready bool
		Reasons     []string
	}
}

// probed is a probe's answer.
func probed(t *testing.T, address, path string) (status int, v verdict) {
	t.Helper()
	status, body := get(t, address, path)
	if err := json.Unmarshal([]byte(body), &v); status != 0 && err != nil {
		t.Fatalf("%s answers %d: %s", path, status, body)
	}
	return status, v
}

// scraped are the metrics of a sidecar by name, as Prometheus' own parser reads them.
func scraped(t *testing.T, address string) map[string]*dto.MetricFamily {
	t.Helper()
	status, body := get(t, address, "/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if status != 200 || err != nil {
		t.Fatalf("%d, %v: %s", status, err, body)
	}
	return families
}

// of returns the value of a database's metric with these further labels, and whether it is there.
func of(families map[string]*dto.MetricFamily, name, database string, labels ...string) (float64, bool) {
	for _, m := range families[name].GetMetric() {
		var has []string
		for _, l := range m.GetLabel() {
			has = append(has, l.GetName()+"="+l.GetValue())
		}
		if !slices.Contains(has, "database="+database) || slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(has, l) }) {
			continue
		}
		return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount()), true
	}
	return 0, false
}

func TestSidecar_ProbesAndMetricsOfTheSidecarFollowTheDatabase(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	server := pgtest.Own(t, pgtest.Options{Settings: pgtest.NoSync()})
	db := pgtest.On(t, server.DSN)
	migrate(t, db)
	cluster := kafkatest.New(t)
	orders := cluster.Topic(t, 1)
	s := startSidecar(t, db, nil, "--brokers", strings.Join(cluster.Brokers, ","), "--listen", "127.0.0.1:0", "--lease", "2s")
	address := s.address(t)
	ready := func(want int, says string) func() bool {
		return func() bool {
			status, v := probed(t, address, "/readyz")
			return status == want && v.Well == (want == 200) && strings.Contains(strings.Join(v.Databases["main"].Reasons, "\n"), says)
		}
	}
	wait.Until(t, "it is ready", ready(200, ""))
	pgtest.Exec(t, db.Pool, "select holdfast.write($1, 'k', 'order.placed', '{}')", orders)
	wait.Until(t, "the event is counted", func() bool {
		n, _ := of(scraped(t, address), "holdfast_relay_published_total", "main", "topic="+orders)
		return n > 0
	})
	for name, kind := range map[string]dto.MetricType{
		"holdfast_relay_claimed_total": dto.MetricType_COUNTER, "holdfast_relay_lag_seconds": dto.MetricType_HISTOGRAM, "holdfast_backlog_age_seconds": dto.MetricType_GAUGE,
		"holdfast_backlog_lanes": dto.MetricType_GAUGE, "holdfast_table_size_bytes": dto.MetricType_GAUGE, "db_client_connection_max": dto.MetricType_GAUGE,
		"holdfast_sample_failures_total": dto.MetricType_COUNTER,
	} {
		wait.Until(t, name+" is there", func() bool { _, ok := of(scraped(t, address), name, "main"); return ok }) // Samples are taken beside the relay.
		if got := scraped(t, address)[name].GetType(); got != kind {
			t.Errorf("%s is a %s", name, got)
		}
	}
	found := scraped(t, address)
	wait.Until(t, "all 8 lanes are claimed, and those again that a busy machine has lost", func() bool {
		found := scraped(t, address)
		claimed, _ := of(found, "holdfast_relay_claimed_total", "main")
		lost, _ := of(found, "holdfast_relay_lost_total", "main")
		return claimed-lost == 8
	})
	for _, name := range []string{"go_goroutines", "process_open_fds", "go_build_info"} {
		if found[name] == nil && (name != "process_open_fds" || runtime.GOOS == "linux") {
			t.Errorf("%s is missing", name)
		}
	}
	if status, _ := get(t, address, "/debug/pprof/"); status != 404 {
		t.Errorf("profiles are served unasked: %d", status)
	}

	if err := server.StopFast(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "it is not ready, and says why", ready(503, "the database has not answered for"))
	if status, v := probed(t, address, "/livez"); status != 200 || !v.Well || !v.Databases["main"].Live {
		t.Errorf("without its database it is to be killed: %d, %+v", status, v)
	}
	scraped(t, address) // The rest of the process is still measured.
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	db.Reset() // The test's own connections have ended with the server.
	wait.Until(t, "it is ready again", ready(200, ""))
	s.stop(t, db)
	if status, body := get(t, address, "/readyz"); status != 0 {
		t.Errorf("after the stop it answers %d: %s", status, body)
	}
}

// A broker that never answers makes a stop last: until the publisher's own bound. That may be near when the signal comes: a stop that is over
// before all was asked shows nothing.
func TestSidecar_AStopFailsReadinessFirstAndClosesTheListenerLast(t *testing.T) {
	db := migrated.New(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	asked := make(chan net.Conn, 1000)
	go func() {
		for {
			conn, err := mute.Accept()
			if err != nil {
				return
			}
			asked <- conn
		}
	}()
	pgtest.Exec(t, db.Pool, "select holdfast.write('orders', 'k', 'order.placed', '{}')")
	const tries = 5
	for try := 1; !stopIsAsked(t, db, mute.Addr().String(), asked); try++ {
		if try == tries {
			t.Fatalf("%d times readiness had not failed, or nobody answered, before the relay had stopped", tries)
		}
	}
}

// stopIsAsked stops a sidecar whose publisher waits for a broker, and says whether it could be asked meanwhile.
func stopIsAsked(t *testing.T, db *pgtest.DB, broker string, asked <-chan net.Conn) (all bool) {
	t.Helper()
	for len(asked) > 0 { // of the one before
		(<-asked).Close()
	}
	s := startSidecar(t, db, nil, "--brokers", broker, "--listen", "127.0.0.1:0")
	address := s.address(t)
	first := <-asked
	defer first.Close()
	wait.Until(t, "it is ready", func() bool { status, _ := probed(t, address, "/readyz"); return status == 200 })
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	failed := false // readiness, before the relay had stopped
	wait.Until(t, "it is not ready", func() bool {
		stopped := strings.Contains(s.log.String(), `msg="relay stopped"`)
		status, v := probed(t, address, "/readyz")
		failed = status == 503 && v.Reason == "the process is stopping" && !stopped
		return failed || stopped || status == 0
	})
	live, _ := probed(t, address, "/livez")
	if live != 200 && live != 0 {
		t.Errorf("a process that stops in order is to be killed: %d", live)
	}
	measured, text := get(t, address, "/metrics")
	if measured != 200 && measured != 0 {
		t.Errorf("a process that stops is not measured: %d, %s", measured, text)
	}
	if err := s.Wait(); err != nil || !strings.Contains(s.log.String(), `msg="relay stopped"`) {
		t.Errorf("it ended with %v: %s", err, s.log.String())
	}
	return failed && live != 0 && measured != 0
}

func TestSidecar_AnAddressThatCannotBeHadEndsTheSidecarAtItsStart(t *testing.T) {
	db := migrated.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	wantStatus(t, 1, "listen for probes and metrics: listen tcp "+taken.Addr().String(), "relay", "--brokers", "127.0.0.1:1", "--listen", taken.Addr().String())
	wantStatus(t, 2, "--listen is nonsense: it must be an address and a port, as :9090", "relay", "--brokers", "127.0.0.1:1", "--listen", "nonsense")
	if n := pgtest.Count(t, db.Pool, "select count(*) from holdfast.relay"); n != 0 {
		t.Error("the relay ran before it could be watched")
	}
	wantStatus(t, 2, "--pprof is set: it must be with --listen", "relay", "--brokers", "127.0.0.1:1", "--pprof")
}

func TestSidecar_ProfilesAreServedWhenAskedFor(t *testing.T) {
	db := migrated.New(t)
	s := startSidecar(t, db, []string{"HOLDFAST_LISTEN=127.0.0.1:0"}, "--brokers", "127.0.0.1:1", "--pprof")
	address := s.address(t)
	if status, body := get(t, address, "/debug/pprof/goroutine?debug=1"); status != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("%d: %s", status, body)
	}
	if status, _ := get(t, address, "/readyz?database=other"); status != 404 {
		t.Errorf("a database that is not there: %d", status)
	}
	for _, path := range []string{"/metrics", "/livez"} {
		response, err := http.Post("http://"+address+path, "text/plain", strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if response.Body.Close(); response.StatusCode != 405 {
			t.Errorf("POST %s: %d", path, response.StatusCode)
		}
	}
	s.stop(t, db)
}

// One server is taken away, and one database has no schema yet. Neither costs the third anything.
func TestSidecar_ADatabaseThatFailsDoesNotStopTheOthers(t *testing.T) {
	skip.InShort(t, "it takes 7 s beside the others")
	server := pgtest.Own(t, pgtest.Options{Settings: pgtest.NoSync()})
	shop, billing, late := migrated.New(t), pgtest.On(t, server.DSN), pgtest.New(t)
	migrate(t, billing)
	cluster := kafkatest.New(t)
	orders := cluster.Topic(t, 1)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file := write("relay.yaml", fmt.Sprintf(`
listen: 127.0.0.1:0
brokers: [%s]
lease: 2s
databases:
  - name: shop
    url-file: %s
    lease: 2m
  - name: billing
    url-env: BILLING
  - name: late
    url-file: %s
    lease: 2m
`, strings.Join(cluster.Brokers, ", "), write("shop", shop.DSN+"\n"), write("late", late.DSN)))
	s := startProcess(t, []string{"BILLING=" + billing.DSN}, "--config", file)
	address := s.address(t)
	is := func(database string, ready bool, says string) func() bool {
		return func() bool {
			_, v := probed(t, address, "/readyz")
			h := v.Databases[database]
			return h.Ready == ready && strings.Contains(strings.Join(h.Reasons, "\n"), says)
		}
	}
	published := func(database string) float64 {
		n, _ := of(scraped(t, address), "holdfast_relay_published_total", database, "topic="+orders)
		return n
	}
	write1 := func(db *pgtest.DB) { pgtest.Exec(t, db.Pool, "select holdfast.write($1, 'k', 't', '')", orders) }

	wait.Until(t, "shop is ready", is("shop", true, ""))
	wait.Until(t, "billing is ready", is("billing", true, ""))
	wait.Until(t, "late says what it lacks, and that it is tried again", func() bool {
		return is("late", false, "run holdfast migrate")() && is("late", false, "it is started again within")()
	})
	if status, v := probed(t, address, "/livez"); status != 200 || len(v.Databases) != 3 {
		t.Errorf("%d, %+v", status, v)
	}
	if status, v := probed(t, address, "/readyz?database=shop"); status != 200 || len(v.Databases) != 1 {
		t.Errorf("shop alone: %d, %+v", status, v)
	}
	write1(shop)
	write1(billing)
	wait.Until(t, "one event of each is published", func() bool { return published("shop") == 1 && published("billing") >= 1 }) // A short lease may be lost, and billing's event come twice.

	if err := server.StopFast(); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "billing is away", is("billing", false, "the database has not answered"))
	write1(shop)
	wait.Until(t, "shop goes on", func() bool { return published("shop") == 2 })
	wait.Until(t, "shop is ready, though billing is away", is("shop", true, ""))
	migrate(t, late)
	wait.Until(t, "late is ready", is("late", true, ""))
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait.Until(t, "billing is back", is("billing", true, ""))
	billing.Reset()
	write1(billing)
	write1(late)
	// What was published just before the server stopped may be published again: its cursor was not saved.
	wait.Until(t, "the events are published", func() bool { return published("billing") >= 2 && published("late") == 1 })
	for _, database := range []string{"shop", "billing", "late"} {
		if !strings.Contains(s.log.String(), `msg="lane claimed" database=`+database) {
			t.Errorf("the log does not say that the lane is of %s: %s", database, s.log.String())
		}
	}
	s.stop(t, shop, billing, late)
}
