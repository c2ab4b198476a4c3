package retry

import (
	"bytes"
	"encoding/csv"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

func TestCSVLog_ThePlaybooksRetryLogComesOutOfARealServerFieldByField(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	t.Parallel()
	release := make(chan struct{})
	s, _, _ := realServer(t, func(http.ResponseWriter, *http.Request) { <-release }, status(502, "proxy"), status(201, "made"))
	t.Cleanup(func() { close(release) })
	want, err := os.ReadFile("testdata/client_retry_log.csv")
	if err != nil {
		t.Fatal(err)
	}
	var written bytes.Buffer
	log := NewCSVLog(&written)
	// The waits of the log are the upper half of full jitter from 200 ms; see Defaults.
	chance := []float64{0.685, 0.7025}
	resp := post(t, client(t, func(c *Transport) {
		c.Policy = Policy{Base: 200 * time.Millisecond, Budget: time.Minute}
		c.AttemptTimeout = 3 * time.Second // for the one that hangs: the others must have their answers within it
		c.Observer = Observer{OnAttempt: log.Attempt}
		c.random = func() (r float64) { r, chance = chance[0], chance[1:]; return r }
	}), s.URL, "x")
	if resp.StatusCode != 201 || log.Err() != nil {
		t.Fatalf("status %d, %v", resp.StatusCode, log.Err())
	}
	if diff := cmp.Diff(string(want), written.String()); diff != "" {
		t.Errorf("testdata/client_retry_log.csv (-want +got):\n%s", diff)
	}
}

func TestCSVLog_ThePlaybooksWaitsAreTheUpperHalfOfFullJitterFrom200ms(t *testing.T) {
	t.Parallel()
	table := []struct{ least, most time.Duration }{{100, 200}, {200, 400}, {400, 800}, {800, 1600}}
	for i, row := range table {
		least, most := row.least*time.Millisecond, row.most*time.Millisecond
		p := Policy{Base: 200 * time.Millisecond}
		if got := p.Delay(i+1, 0.5); got != least {
			t.Errorf("half of the longest wait before attempt %d is %s, want %s", i+2, got, least)
		}
		for _, random := range []float64{0.5, 0.6, 0.75, 0.9, almostOne} {
			if got := p.Delay(i+1, random); got < least || got > most {
				t.Errorf("the wait before attempt %d is %s, want %s to %s", i+2, got, least, most)
			}
		}
		// By default the longest wait is the least of those.
		if got := standard().Delay(i+1, 1); got != least {
			t.Errorf("the longest wait before attempt %d is %s by default, want %s", i+2, got, least)
		}
	}
	if p := standard(); !p.Last(5) || p.Last(4) || p.Budget != 10*time.Second || p.Cap != 2*time.Second || p.Base != 100*time.Millisecond {
		t.Errorf("the defaults are %+v", p)
	}
}

func TestCSVLog_ALineOfTheRetryLogSaysWhatKindOfEndAnAttemptHad(t *testing.T) {
	t.Parallel()
	for want, a := range map[string]Attempt{
		"1,0,timeout,,initial timeout":        {Number: 1, Err: os.ErrDeadlineExceeded},
		"4,800,timeout,,timeout":              {Number: 4, Err: os.ErrDeadlineExceeded, Delay: 800 * time.Millisecond},
		"2,137,error,,DEPENDENCY.unavailable": {Number: 2, Err: syscall.ECONNRESET, Delay: 137*time.Millisecond - 1},
		"2,0,error,,TRANSIENT":                {Number: 2, Err: errors.New("something, \"quoted\"")},
		"1,0,200,200,success":                 {Number: 1, Status: 200},
		"1,0,3xx,307,Temporary Redirect":      {Number: 1, Status: 307},
		"1,0,4xx,409,idempotency.in_progress": {Number: 1, Status: 409, Code: codeInProgress},
		"1,0,4xx,409,CONFLICT":                {Number: 1, Status: 409},
		"1,0,4xx,429,RATE_LIMIT":              {Number: 1, Status: 429},
		"1,0,5xx,503,DEPENDENCY.unavailable":  {Number: 1, Status: 503},
		"1,0,5xx,504,DEPENDENCY.timeout":      {Number: 1, Status: 504},
		"1,0,5xx,502,proxy error":             {Number: 1, Status: 502},
	} {
		if got := strings.Join(csvLine(a), ","); got != want {
			t.Errorf("%+v is written %s, want %s", a, got, want)
		}
	}
}

func TestCSVLog_ARetryLogTellsWhatCouldNotBeWritten(t *testing.T) {
	t.Parallel()
	full := errors.New("disk is full")
	log := NewCSVLog(writerFunc(func([]byte) (int, error) { return 0, full }))
	log.Attempt(Attempt{Number: 1})
	if err := log.Err(); !errors.Is(err, full) || !strings.HasPrefix(err.Error(), "write retry log: ") {
		t.Errorf("err = %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestCSVLog_LinesOfARetryLogStayWholeWhenManyWrite(t *testing.T) {
	t.Parallel()
	var written bytes.Buffer
	log := NewCSVLog(&written)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() { log.Attempt(Attempt{Number: i + 1, Status: 503}) })
	}
	all.Wait()
	lines, err := csv.NewReader(&written).ReadAll()
	if err != nil || len(lines) != 51 {
		t.Errorf("%d lines, %v, want 51", len(lines), err)
	}
}

func TestCSVLog_AnObserverIsNotifiedOfEveryAttempt(t *testing.T) {
	t.Parallel()
	var reported []Attempt
	s, _, connections := realServer(t, reset, status(503, ""), func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", problemKind)
		w.WriteHeader(409)
		_, _ = io.WriteString(w, runs)
	}, status(201, ""))
	post(t, client(t, func(c *Transport) { c.Observer.OnAttempt = func(a Attempt) { reported = append(reported, a) } }), s.URL, "x", keyHeader, "k1")
	if len(reported) != 4 {
		t.Fatalf("%d attempts are reported, want 4: %+v", len(reported), reported)
	}
	if n := connections.Load(); n != 2 { // the one that was reset, and another for all the rest
		t.Errorf("%d connections, want 2", n)
	}
	for i, want := range []Attempt{{Number: 1, Err: syscall.ECONNRESET}, {Number: 2, Status: 503}, {Number: 3, Status: 409, Code: codeInProgress}, {Number: 4, Status: 201}} {
		got := reported[i]
		if got.Number != want.Number || got.Status != want.Status || got.Code != want.Code || got.Key != "k1" || got.Request == nil || got.Took <= 0 ||
			(got.Err != nil) != (want.Err != nil) || i == 0 && got.Delay != 0 || i > 0 && got.Delay > time.Microsecond {
			t.Errorf("attempt %d is reported as %+v", i+1, got)
		}
	}
}
