package routers

import (
	"bufio"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-go/holdfast/idempotency"
)

// Gin guards a route of gin. errors turns c.Errors into an answer, and stands inside the guard.
func Gin(guard *idempotency.Guard, h, errors gin.HandlerFunc) http.Handler {
	e := gin.New()
	e.Use(gin.Recovery())
	e.POST("/charges", GuardGin(guard.Route(idempotency.Route{Operation: "POST /charges"})), errors, h)
	return e
}

// GuardGin makes a middleware of gin. Do not put the guard around the whole engine: gin writes an empty 200 where a handler
// wrote nothing.
func GuardGin(guarded func(http.Handler) http.Handler) gin.HandlerFunc {
	return func(c *gin.Context) {
		outer := c.Writer
		defer func() { c.Writer = outer }() // also for gin.Recovery
		guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inner := &ginWriter{ResponseWriter: outer, to: w, size: -1}
			c.Request, c.Writer = r, inner
			c.Next()
			if inner.status != 0 { // c.Status alone
				inner.WriteHeaderNow()
			}
		})).ServeHTTP(outer, c.Request)
		c.Abort() // The guard may have answered without calling the handlers.
	}
}

// ginWriter is a gin.ResponseWriter that writes to the guard's http.ResponseWriter. Like gin's own it notes a status, and
// writes it with the first byte of the body.
type ginWriter struct {
	gin.ResponseWriter // for what has no effect on the answer: CloseNotify, Pusher
	to                 http.ResponseWriter
	status, size       int
}

func (w *ginWriter) Header() http.Header  { return w.to.Header() }
func (w *ginWriter) WriteHeader(code int) { w.status = code }
func (w *ginWriter) Size() int            { return w.size }
func (w *ginWriter) Written() bool        { return w.size >= 0 }
func (w *ginWriter) Flush()               {}

// Hijack refuses: code that has the connection could answer what is not stored.
func (w *ginWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return nil, nil, http.ErrNotSupported
}

func (w *ginWriter) Status() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

func (w *ginWriter) WriteHeaderNow() {
	if !w.Written() {
		w.size = 0
		w.to.WriteHeader(w.Status())
	}
}

func (w *ginWriter) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.to.Write(p)
	w.size += n
	return n, err
}

func (w *ginWriter) WriteString(s string) (int, error) { return w.Write([]byte(s)) }
