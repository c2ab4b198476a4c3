package sidecar

import (
	"context"
	"net/http"
	"net/http/pprof"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/holdfast-go/holdfast/internal/probe"
)

// verdict is the body of /livez and /readyz.
type verdict struct {
	Well      bool                    `json:"well"`
	Reason    string                  `json:"reason,omitempty"` // of the whole process
	Databases map[string]probe.Health `json:"databases"`
}

// judgeLive decides /livez: only a new process helps a relay that is not live.
func judgeLive(of map[string]probe.Health) verdict {
	return verdict{Well: probe.AllLive(of), Databases: of}
}

// judgeReady decides /readyz: every database's events flow, and the process is not stopping.
func judgeReady(of map[string]probe.Health, stopping bool) verdict {
	v := verdict{Well: !stopping && probe.AllReady(of), Databases: of}
	if stopping {
		v.Reason = "the process is stopping"
	}
	return v
}

// probes answers what watches the process. Many goroutines may use it at once.
type probes struct {
	relays   []*databaseRelay
	stopping atomic.Bool
}

// handler serves /metrics, /livez and /readyz. A probe may ask for one database: /readyz?database=shop.
func (p *probes) handler(metrics prometheus.Gatherer, profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		p.answer(w, r, judgeLive)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		p.answer(w, r, func(of map[string]probe.Health) verdict { return judgeReady(of, p.stopping.Load()) })
	})
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

func (p *probes) answer(w http.ResponseWriter, r *http.Request, judge func(map[string]probe.Health) verdict) {
	only := r.URL.Query().Get("database")
	of := p.health(r.Context(), only)
	if only != "" && len(of) == 0 {
		http.Error(w, "no such database", http.StatusNotFound)
		return
	}
	v := judge(of)
	probe.Answer(w, v.Well, v)
}

// health asks the relays: all of them, or that of one database.
func (p *probes) health(ctx context.Context, only string) map[string]probe.Health {
	of := map[string]probe.Health{}
	for _, d := range p.relays {
		if only == "" || only == d.name {
			of[d.name] = d.health(ctx)
		}
	}
	return of
}
