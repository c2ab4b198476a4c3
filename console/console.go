package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/dlq"
	"github.com/holdfast-go/holdfast/inbox/source"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
	"github.com/holdfast-go/holdfast/internal/steps"
	"github.com/holdfast-go/holdfast/waiting"
)

//go:embed pages/*.html
var pageFiles embed.FS

//go:embed static
var staticFiles embed.FS

// User is who asks, and what that person may do. Everybody whom UserFunc lets in may see events without their payloads.
type User struct {
	Name      string // kept with what the user does. Required
	MayChange bool   // replay, edit, discard, give up, redirect, retry, cancel, pause, resume
	// SeesPayload shows payloads and headers of dead letters, results of steps, errors of handlers beyond their first line, and all that the console, the
	// database, a broker, a source or Config.EndsFunc says of a failure. Without it the page says what failed, and that a log says why.
	SeesPayload bool
}

// Config configures a Console.
type Config struct {
	// UserFunc says who asks. It is called for every request, from many goroutines. An error is answered with 403, and its text is
	// logged and not shown. Required: the console has no passwords of its own.
	UserFunc func(*http.Request) (User, error)

	// Prefix is the path under which the console is served, as "/ops/holdfast". Defaults to "", the root.
	Prefix string

	// Schema is the Postgres schema. Defaults to "holdfast".
	Schema string

	// Secret is what the tokens of forms are made with. Many nodes that serve one console must have the same, of 32 random bytes or more.
	// Defaults to a new one: then a form goes to the process that showed it only.
	Secret []byte

	// EndsFunc says where partitions end, for the lag of consumers: the offset that the next event gets. kafkago.Offsets has one: Ends. It
	// is called for each look at the overview, and every 10 seconds by Run. Its error is logged, and shown to who sees payloads. Defaults to
	// none: then the overview shows no lag.
	EndsFunc func(ctx context.Context, of []source.TopicPartition) (map[source.TopicPartition]int64, error)

	// CheckFuncs check a payload that a person has edited, by the consumer of the dead letter: an error refuses it with its text, and the
	// person may store it nevertheless, unchecked. Inbox.CheckPayload is one, and names the field that the handler cannot read. They are
	// called from many goroutines. A panic is an error; so is no answer within 5 s, when their context ends. Defaults to none: then JSON
	// must be JSON.
	CheckFuncs map[string]func(ctx context.Context, edited holdfast.Event) error

	// Logger gets a line for each change and each refusal. Defaults to slog.Default().
	Logger *slog.Logger
}

// Console is the handler. It may be called from many goroutines at once.
type Console struct {
	c     Config
	pool  *pgxpool.Pool
	dlq   *dlq.DLQ
	room  *waiting.Room
	pages *template.Template
	serve http.Handler
	looks shared[overviewPage]
	tally shared[counts]
}

// New returns a Console, or one error that names every problem of the configuration. It does not use the database. The pool's role needs
// the roles holdfast_operator and holdfast_reader (docs/operations.md).
func New(pool *pgxpool.Pool, c Config) (*Console, error) {
	if c.Schema == "" {
		c.Schema = "holdfast"
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	var problems []error
	if pool == nil {
		problems = append(problems, errors.New("pool is nil: it must be connected to the database"))
	}
	if c.UserFunc == nil {
		problems = append(problems, errors.New("user func is nil: it must say who asks"))
	}
	if c.Prefix != "" && (!strings.HasPrefix(c.Prefix, "/") || strings.HasSuffix(c.Prefix, "/") || strings.ContainsAny(c.Prefix, "{}?#\"' ")) {
		problems = append(problems, fmt.Errorf("prefix is %q: it must be empty, or a path that begins with / and does not end with one", c.Prefix))
	}
	if c.Secret == nil {
		c.Secret = []byte(rand.Text() + rand.Text())
	}
	if len(c.Secret) < 32 {
		problems = append(problems, fmt.Errorf("secret is %d bytes long: it must be at least 32, or nil for a new one", len(c.Secret)))
	}
	if err := sqlschema.Validate(c.Schema); err != nil {
		problems = append(problems, err)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("console config: %w", err)
	}
	d, err := dlq.New(pool, dlq.Config{Schema: c.Schema})
	if err != nil {
		return nil, fmt.Errorf("console config: %w", err)
	}
	room, err := waiting.New(pool, waiting.Config{Schema: c.Schema})
	if err != nil {
		return nil, fmt.Errorf("console config: %w", err)
	}
	console := &Console{c: c, pool: pool, dlq: d, room: room}
	console.pages = template.Must(template.New("").Funcs(template.FuncMap{
		"path": func(rest string) string { return c.Prefix + rest },
		"ago":  ago, "span": forSpan, "seconds": func(n int64) string { return forSpan(time.Duration(n) * time.Second) },
		"age": ageText, "plural": plural, "when": when, "first": firstLine, "bytes": bytesOf, "query": queryOf, "dict": dict, "reversed": reversed,
		"halves": halves, "words": func(s string) []string { return strings.Split(s, " ") },
		"states": func() []string {
			return []string{dlq.StateReplaying, dlq.StateReplayed, dlq.StateDiscarded, dlq.StateAny}
		},
		"moststeps":     func() int { return steps.Most },
		"letteractions": func() []string { return []string{"replay", "discard"} },
		"resumeactions": func() []string { return []string{"resume"} },
		"deed":          deedOf,
		"listed":        c.listed,
		"letterquery":   func(f map[string]string) template.URL { return queryFor(letterFields, f) },
		"waitquery":     func(f map[string]string) template.URL { return queryFor(waitFields, f) },
		"groupquery":    groupQuery,
		"letterhidden":  func() []string { return []string{"origin", "source", "event", "fingerprint"} },
		"whys":          func() []waiting.Why { return waiting.Whys },
	}).ParseFS(pageFiles, "pages/*.html"))
	console.serve = console.routes()
	return console, nil
}

// ServeHTTP serves everything below Config.Prefix.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.serve.ServeHTTP(w, r) }

func (c *Console) routes() http.Handler {
	mux := http.NewServeMux()
	static, err := fs.Sub(staticFiles, "static")
	if err != nil {
		panic(err) // it is embedded
	}
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(static)))
	mux.Handle("GET /{$}", c.page(c.overview))
	mux.Handle("GET /find", c.page(c.find))
	mux.Handle("GET /letters", c.page(c.letterGroups))
	mux.Handle("GET /letters/list", c.page(c.letterList))
	mux.Handle("GET /letters/{id}", c.page(c.letter))
	mux.Handle("GET /letters/{id}/edit", c.page(c.unedited))
	mux.Handle("GET /waiting", c.page(c.waitingGroups))
	mux.Handle("GET /waiting/list", c.page(c.waitingList))
	mux.Handle("GET /paused", c.page(c.paused))
	mux.Handle("POST /letters", c.page(c.changeLetters))
	mux.Handle("POST /letters/{id}/edit", c.page(c.editLetter))
	mux.Handle("POST /waiting", c.page(c.changeWaiting))
	mux.Handle("POST /paused", c.page(c.changePaused))
	mux.Handle("/", c.page(func(*visit) (answer, error) { return answer{}, refusal{http.StatusNotFound, "there is no such page"} }))
	return c.guarded(http.StripPrefix(c.c.Prefix, mux))
}

// visit is one request of a user.
type visit struct {
	*http.Request
	User  User
	Token string // for forms

	w http.ResponseWriter
}

// answer is what a page shows, or where the browser goes next.
type answer struct {
	page   string // the file below pages without .html
	title  string
	status int     // of HTTP; 0 for that of a page that was found
	every  int     // seconds, after which the browser asks for it again; 0 for a page that stays as it is
	counts *counts // those that the page has read; nil for none
	data   any
	to     string // redirect to this path below the prefix
	sent   bool   // it is sent already
}

// shown is what every page is rendered with.
type shown struct {
	User   User
	Token  string
	Path   string
	Title  string
	Every  int
	At     time.Time
	Counts counts
	Data   any
}

// Below says in the navigation whether the page is one of those below a path.
func (s shown) Below(path string) bool {
	return s.Path == path || path != "/" && strings.HasPrefix(s.Path, path+"/")
}

// refusal is an error whose text the user sees.
type refusal struct {
	status int
	text   string
}

func (r refusal) Error() string { return r.text }

// page serves what a function makes of a visit. It is rendered before the first byte is sent, so an error has a status of its own.
func (c *Console) page(make func(*visit) (answer, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v, err := c.visit(w, r)
		v.w = w
		a := answer{}
		if err == nil {
			a, err = make(v)
		}
		if err != nil {
			if r.Context().Err() == nil { // else nobody waits for the answer
				c.fail(w, v, err)
			}
			return
		}
		if a.sent {
			return
		}
		if a.to != "" {
			http.Redirect(w, r, c.c.Prefix+a.to, http.StatusSeeOther)
			return
		}
		c.render(w, v, cmp.Or(a.status, http.StatusOK), a)
	})
}

func (c *Console) render(w http.ResponseWriter, v *visit, status int, a answer) {
	var body bytes.Buffer
	if err := c.pages.ExecuteTemplate(&body, a.page+".html", c.shownTo(v, a)); err != nil {
		c.c.Logger.Error("console page not rendered", "page", a.page, "error", err)
		http.Error(w, "the page could not be rendered: the log says why", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}

// shownTo adds to an answer what every page has.
func (c *Console) shownTo(v *visit, a answer) shown {
	s := shown{
		User:  v.User,
		Token: v.Token,
		Path:  v.URL.Path,
		Title: a.title,
		Every: a.every,
		At:    time.Now(),
		Data:  a.data,
	}
	switch {
	case a.counts != nil:
		s.Counts = *a.counts
	case a.page != "error":
		s.Counts, _ = c.tally.get(v.Context(), c.count) // it has no error, but counts that say so
	}
	return s
}

// trouble is what the user sees of an error. Back is the page that the user comes from, if it is one of these.
type trouble struct{ Title, Text, Back string }

// fail tells the user what went wrong, or that the log has it.
func (c *Console) fail(w http.ResponseWriter, v *visit, err error) {
	status, title, text := c.explain(v, err)
	c.render(w, v, status, answer{
		page:  "error",
		title: title,
		data:  trouble{title, text, c.cameFrom(v)},
	})
}

// cameFrom is the page below the prefix that the user comes from, "" for none.
func (c *Console) cameFrom(v *visit) string {
	from, err := url.Parse(v.Referer())
	if err != nil || from.Host != v.Host {
		return ""
	}
	rest, below := strings.CutPrefix(from.RequestURI(), c.c.Prefix+"/")
	if !below {
		return ""
	}
	return "/" + strings.TrimLeft(rest, "/") // "//" would be another host
}

// inTheLog is in place of a text for those who see no payloads.
const inTheLog = "the log of the console says why"

// explain is what the user sees of an error. What may hold something of an event, or a name or an address, is for those who see payloads,
// and in the log.
func (c *Console) explain(v *visit, err error) (status int, title, text string) {
	status, text = http.StatusInternalServerError, inTheLog
	if v.User.SeesPayload {
		text = err.Error()
	}
	var refused refusal
	switch {
	case errors.As(err, &refused):
		status, text = refused.status, refused.text
	case errors.Is(err, waiting.ErrInvalid):
		status, text = http.StatusUnprocessableEntity, err.Error()
	case errors.Is(err, dlq.ErrNotFound):
		status, text = http.StatusNotFound, err.Error()
	case errors.Is(err, dlq.ErrNotOpen), errors.As(err, new(*dlq.NotReplayableError)), errors.Is(err, dlq.ErrEncrypted),
		errors.Is(err, waiting.ErrBehindLetter), errors.Is(err, waiting.ErrNotFound), errors.Is(err, waiting.ErrPaused), errors.Is(err, waiting.ErrBeingSent):
		status, text = http.StatusConflict, err.Error()
	default:
		c.c.Logger.Error("console request failed", "user", v.User.Name, "path", v.URL.Path, "error", err)
		switch {
		case isAway(err):
			return http.StatusServiceUnavailable, "The database does not answer", text
		case errors.Is(err, sqlschema.ErrNoRights):
			return status, "The console lacks a right", "grant its role holdfast_operator and holdfast_reader (holdfast roles): " + text
		case errors.Is(err, sqlschema.ErrMissing):
			return status, "The schema is not what this version needs", "run holdfast check: " + text
		}
	}
	return status, titleOf(status), text
}

// titleOf is the heading of a page that says why something was not done.
func titleOf(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "The form cannot be read"
	case http.StatusForbidden:
		return "You may not do this"
	case http.StatusNotFound:
		return "Not found"
	case http.StatusConflict:
		return "This cannot be done now"
	case http.StatusUnprocessableEntity:
		return "Check what you entered"
	}
	return "Something went wrong"
}

// isAway says whether an error is the database's absence: no connection, no answer in time, or a server that stops, starts or has no room. Only
// the database's client says so: a deadline or the network's error may be of somebody else.
func isAway(err error) bool {
	var failed *pgconn.PgError
	if errors.As(err, &failed) {
		return slices.Contains([]string{"08", "53", "57"}, failed.Code[:min(2, len(failed.Code))])
	}
	return errors.As(err, new(*pgconn.ConnectError)) || errors.Is(err, pgconn.ErrConnClosed) || pgconn.Timeout(err) || errors.Is(err, errNoAnswer)
}
