package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/http"

	"github.com/holdfast-go/holdfast/internal/foreign"
)

const (
	tokenCookie = "holdfast_console"
	tokenField  = "token"
	largestForm = 2 << 20 // bytes: a payload may have 1 MiB
)

// policy allows the console's own files and nothing else.
const policy = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// guarded refuses requests from other origins and tells the browser what pages may do.
func (c *Console) guarded(next http.Handler) http.Handler {
	origins := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if err := origins.Check(r); err != nil {
			c.c.Logger.Warn("console request refused", "path", r.URL.Path, "origin", r.Header.Get("Origin"), "error", err)
			http.Error(w, "the request comes from another origin", http.StatusForbidden)
			return
		}
		if c.c.Prefix != "" && r.URL.Path == c.c.Prefix {
			http.Redirect(w, r, c.c.Prefix+"/", http.StatusMovedPermanently)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// tokenOf is the token of a user's forms in one browser. Only the console can make it: who plants a cookie has no token for it.
func (c *Console) tokenOf(user, cookie string) string {
	mac := hmac.New(sha256.New, c.c.Secret)
	mac.Write([]byte(cookie + "\x00" + user)) // A cookie has no NUL.
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// visit says who asks, and gives the browser a cookie. A request that changes something must bring it, and in its form the token that the
// console made of it and of the user. The visit is never nil.
func (c *Console) visit(w http.ResponseWriter, r *http.Request) (*visit, error) {
	v := &visit{Request: r}
	user, err := c.c.UserFunc(r)
	err = foreign.Error(err)
	if err == nil && user.Name == "" {
		err = refusal{http.StatusForbidden, "the user has no name"}
	}
	if err != nil {
		c.c.Logger.Warn("console request refused", "path", r.URL.Path, "error", err)
		return v, refusal{http.StatusForbidden, "you may not see this: the log says why"}
	}
	v.User = user
	cookie, err := r.Cookie(tokenCookie)
	if err != nil || len(cookie.Value) < 20 {
		cookie = &http.Cookie{
			Name:     tokenCookie,
			Value:    rand.Text(),
			Path:     c.c.Prefix + "/",
			HttpOnly: true,
			SameSite: http.SameSiteStrictMode,
			Secure:   r.TLS != nil,
		}
		http.SetCookie(w, cookie)
	}
	v.Token = c.tokenOf(user.Name, cookie.Value)
	if r.Method != http.MethodPost {
		return v, nil
	}
	r.Body = http.MaxBytesReader(w, r.Body, largestForm)
	if err := r.ParseForm(); err != nil {
		return v, refusal{http.StatusBadRequest, "the form cannot be read: " + err.Error()}
	}
	if !hmac.Equal([]byte(r.PostForm.Get(tokenField)), []byte(v.Token)) {
		c.c.Logger.Warn("console request refused", "path", r.URL.Path, "user", user.Name, "error", "its token is wrong")
		return v, refusal{http.StatusForbidden, "the form is too old, or is not from here: load the page again"}
	}
	if !user.MayChange {
		c.c.Logger.Warn("console request refused", "path", r.URL.Path, "user", user.Name, "error", "the user may not change anything")
		return v, refusal{http.StatusForbidden, "you may not change anything"}
	}
	return v, nil
}
