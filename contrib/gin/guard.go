package holdfastgin

import (
	"bufio"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"
)

// Guard makes a middleware of gin from one of net/http: Guard.Middleware of package idempotency, or what Guard.Route of that package returns.
// The handlers behind it run inside the guard: c.Request has its context, c.Writer writes to it, and c.Errors is theirs to answer.
// When the guard answers by itself, they do not run. Many goroutines may use it at once.
func Guard(guarded func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		path := c.FullPath()
		if path == "" { // no route: there is nothing to guard
			c.Next()
			return
		}
		outer, request := c.Writer, c.Request
		defer func(r *http.Request) { c.Writer, c.Request = outer, r }(request) // also for gin.Recovery
		request = request.WithContext(request.Context())
		request.Pattern = path
		ran := false
		guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inner := &writer{ResponseWriter: outer, to: w, size: -1}
			c.Request, c.Writer, ran = r, inner, true
			c.Next()
			if inner.status != 0 { // c.Status alone
				inner.WriteHeaderNow()
			}
		})).ServeHTTP(outer, request)
		if !ran { // the guard has answered
			c.Abort()
		}
	}
}

// writer is a gin.ResponseWriter that writes to the guard's http.ResponseWriter. Like gin's own it notes a status, and
// writes it with the first byte of the body.
type writer struct {
	gin.ResponseWriter // for what has no effect on the answer: CloseNotify, Pusher
	to                 http.ResponseWriter
	status, size       int
}

func (w *writer) Header() http.Header { return w.to.Header() }
func (w *writer) Size() int           { return w.size }
func (w *writer) Written() bool       { return w.size >= 0 }
func (w *writer) Flush()              {}

// WriteHeader notes a status. For gin -1 means that the status stays as it is.
func (w *writer) WriteHeader(code int) {
	if code > 0 && !w.Written() {
		w.status = code
	}
}

// Hijack refuses: code that has the connection could answer what is not stored.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

func (w *writer) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.to.WriteHeader(w.Status())
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.to.Write(p)
	w.size += n
	return n, err
}

func (w *writer) WriteString(s string) (int, error) { return w.Write([]byte(s)) }
