package webhook

import (
	"fmt"
	"runtime"
	"sync"
	"weak"

	"github.com/holdfast-go/holdfast/inbox"
)

// sources remembers which sources the endpoints of each inbox have. An id is unique within its source: if two tenants' endpoints
// share one, an event of one tenant is a duplicate, or a conflict, of the other's, and never takes effect.
var sources struct {
	mu sync.Mutex
	of map[weak.Pointer[inbox.Inbox]]map[string]bool // whether its endpoints say that they share it
}

// claimSource notes that an endpoint of in has this source. The error says that another one has it, unless both share it.
func claimSource(in *inbox.Inbox, source string, shared bool) error {
	p := weak.Make(in)
	sources.mu.Lock()
	defer sources.mu.Unlock()
	of := sources.of[p]
	if of == nil {
		of = map[string]bool{}
		if sources.of == nil {
			sources.of = map[weak.Pointer[inbox.Inbox]]map[string]bool{}
		}
		sources.of[p] = of
		runtime.AddCleanup(in, forgetSources, p)
	}
	if other, taken := of[source]; taken && !(shared && other) {
		return fmt.Errorf("source is %q: it must be another one than that of another endpoint of this inbox, because ids are unique within a source; "+
			"if both get the events of one account of one provider, set shared source on both", source)
	}
	of[source] = shared
	return nil
}

func forgetSources(p weak.Pointer[inbox.Inbox]) {
	sources.mu.Lock()
	defer sources.mu.Unlock()
	delete(sources.of, p)
}
