//go:build unix

package idempotency

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/idempotency/store"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

const mib = 1 << 20

// hostileJSON are documents that cost much more to canonicalise than to send.
func hostileJSON(size int) map[string]string {
	fill := func(begin, part, end string) string {
		return begin + strings.Repeat(part, (size-len(begin)-len(end))/len(part)) + end
	}
	return map[string]string{
		"many values":       fill("[1", ",1", "]"),
		"many empty arrays": fill("[[]", ",[]", "]"),
		"many names":        fill(`{"a":1`, `,"a":1`, "}"),
		"deep":              fill("", "[", ""),
		"escapes":           fill(`"`, `\u0001`, `"`),
		"quotes":            fill(`"`, `\"`, `"`),
		"a long number":     fill("1", "1", ""),
		"a long fraction":   fill("0.", "0", "1"),
		"a long exponent":   fill("1e", "0", "1"),
		"white space":       fill("[", " ", "]"),
		"short strings":     fill(`["a"`, `,"a"`, "]"),
	}
}

func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// Not parallel: what others allocate would count.
func TestHostileJSON_HostileDocumentsTakeLittleMemoryAndTime(t *testing.T) {
	skip.InShort(t, "it judges how long something takes")
	const atOnce = 32
	g, err := NewEphemeral(&memory{rows: map[store.Key]*memoryRow{}}, Config{Principal: func(*http.Request) (string, error) { return "a", nil }})
	if err != nil {
		t.Fatal(err)
	}
	h := g.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusCreated) }))
	for _, size := range []int{mib, maxDocument, 19_000} {
		for name, document := range hostileJSON(size) {
			send := func(key string) int {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/charges", io.NopCloser(strings.NewReader(document)))
				r.ContentLength = int64(len(document))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Idempotency-Key", key)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				return w.Code
			}
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			before, most, cpu := m.HeapAlloc, uint64(0), cpuTime(t)
			done, watched := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(watched)
				for {
					runtime.ReadMemStats(&m)
					most = max(most, m.HeapAlloc)
					select {
					case <-done:
						return
					case <-time.After(5 * time.Millisecond):
					}
				}
			}()
			var wg sync.WaitGroup
			for i := range atOnce {
				wg.Go(func() {
					if code := send(fmt.Sprint(strings.ReplaceAll(name, " ", "-"), "-", size, "-", i)); code != http.StatusCreated {
						t.Errorf("%s: got %d", name, code)
					}
				})
			}
			wg.Wait()
			close(done)
			<-watched
			took, took1 := (int64(most)-int64(before))/mib, cpuTime(t)-cpu
			t.Logf("%d requests with %s in %d KiB: %d MiB, %s of CPU", atOnce, name, size>>10, took, took1.Round(time.Millisecond))
			if took > 100 || took1 > time.Second*slowdown {
				t.Errorf("%s in %d KiB: %d MiB and %s of CPU", name, size>>10, took, took1)
			}
		}
	}
}

// What is too large for the canonical form is compared by its bytes, and is never taken for the same document in its form.
func TestHostileJSON_LargeDocumentsAreComparedByTheirBytes(t *testing.T) {
	many := func(n int) string { return `{"a":[1` + strings.Repeat(",1", n-1) + `],"b":2}` }
	swapped := func(n int) string { return `{"b":2,"a":[1` + strings.Repeat(",1", n-1) + `]}` }
	of := func(document string) []byte {
		return subject{mediaType: "application/json", body: []byte(document)}.fingerprint()
	}
	for name, c := range map[string]struct {
		a, b string
		same bool
	}{
		"few values, in another order":  {many(100), swapped(100), true},
		"as many as are allowed":        {many(maxTokens - 5), swapped(maxTokens - 5), true},
		"many values, in another order": {many(maxTokens), swapped(maxTokens), false},
		"many values, twice":            {many(maxTokens), many(maxTokens), true},
		"as long as is allowed":         {`{"a":1,"b":"` + strings.Repeat("x", maxDocument-14) + `"}`, `{"b":"` + strings.Repeat("x", maxDocument-14) + `","a":1}`, true},
		"too long, in another order":    {`{"a":1,"b":"` + strings.Repeat("x", maxDocument) + `"}`, `{"b":"` + strings.Repeat("x", maxDocument) + `","a":1}`, false},
		"commas in a string":            {`{"a":1,"b":"` + strings.Repeat(`,\",`, maxTokens) + `"}`, `{"b":"` + strings.Repeat(`,\",`, maxTokens) + `","a":1}`, true},
	} {
		if got := bytes.Equal(of(c.a), of(c.b)); got != c.same {
			t.Errorf("%s: the same is %v", name, got)
		}
	}
}
