package schemaregistry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
)

// Config says how to reach a schema registry. Only URLs is required.
type Config struct {
	// URLs are those of its nodes, such as "https://registry:8081". One that does not answer is passed over. Required.
	URLs []string

	// User and Password are sent by HTTP's basic authentication, Token as a bearer token. At most one of both. Default to none.
	User, Password, Token string

	// TLS is used for https. Defaults to the system's certificates.
	TLS *tls.Config

	// Timeout bounds one question, to all nodes together. It counts as time of the handler or of the writer. Defaults to 5 s.
	Timeout time.Duration
}

const defaultTimeout = 5 * time.Second

// Registry asks a schema registry. What it has answered is kept for as long as the process runs: a schema never changes under its id.
// Many goroutines may use it at once.
type Registry struct {
	client  *sr.Client
	timeout time.Duration

	mu      sync.Mutex
	schemas map[int]sr.Schema
	ids     map[subjectSchema]int
}

// subjectSchema is a schema that was looked up under a subject.
type subjectSchema struct {
	subject, schema string
	kind            sr.SchemaType
}

// New checks the configuration. It does not ask the registry. The error lists every problem.
func New(c Config) (*Registry, error) {
	var problems []error
	if len(c.URLs) == 0 {
		problems = append(problems, errors.New("urls is empty: it must have the address of at least one node"))
	}
	for _, u := range c.URLs {
		if parsed, err := url.Parse(u); err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" || parsed.User != nil {
			problems = append(problems, errors.New("urls has an address that is not like https://registry:8081: it must have a scheme and a host, and no password"))
		}
	}
	if c.Token != "" && (c.User != "" || c.Password != "") {
		problems = append(problems, errors.New("token and user are both set: it must be one of them"))
	}
	if c.Timeout < 0 {
		problems = append(problems, fmt.Errorf("timeout is %s: it must be positive, or 0 for %s", c.Timeout, defaultTimeout))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, fmt.Errorf("schema registry config: %w", err)
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = c.TLS
	options := []sr.ClientOpt{sr.URLs(c.URLs...), sr.HTTPClient(&http.Client{Transport: transport})}
	switch {
	case c.Token != "":
		options = append(options, sr.BearerToken(c.Token))
	case c.User != "" || c.Password != "":
		options = append(options, sr.BasicAuth(c.User, c.Password))
	}
	client, err := sr.NewClient(options...)
	if err != nil {
		return nil, fmt.Errorf("schema registry config: %w", err)
	}
	return &Registry{
		client:  client,
		timeout: c.Timeout,
		schemas: map[int]sr.Schema{},
		ids:     map[subjectSchema]int{},
	}, nil
}

// schema is the schema with an id, which must be of a kind. An error is a *holdfast.PayloadError or may pass.
func (r *Registry) schema(ctx context.Context, id int, kind sr.SchemaType) (sr.Schema, error) {
	r.mu.Lock()
	s, known := r.schemas[id]
	r.mu.Unlock()
	if !known {
		ctx, cancel := context.WithTimeout(ctx, r.timeout)
		defer cancel()
		var err error
		if s, err = r.client.SchemaByID(ctx, id); err != nil {
			var answer *sr.ResponseError
			if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
				return s, &holdfast.PayloadError{Problem: fmt.Sprintf("the registry knows no schema with the id %d", id), Err: err}
			}
			return s, &unavailable{fmt.Errorf("ask the registry for schema %d: %w", id, err)}
		}
		r.mu.Lock()
		r.schemas[id] = s
		r.mu.Unlock()
	}
	if s.Type != kind {
		return s, &holdfast.PayloadError{Problem: fmt.Sprintf("its schema %d is of the kind %s where %s is wanted", id, s.Type, kind)}
	}
	return s, nil
}

// reference is a schema that another refers to.
func (r *Registry) reference(ctx context.Context, ref sr.SchemaReference) (sr.Schema, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	s, err := r.client.SchemaByVersion(ctx, ref.Subject, ref.Version)
	if err != nil {
		var answer *sr.ResponseError
		if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
			return sr.Schema{}, &holdfast.PayloadError{Problem: "its schema refers to one that the registry does not know", Err: err}
		}
		return sr.Schema{}, &unavailable{fmt.Errorf("ask the registry for version %d of %s: %w", ref.Version, ref.Subject, err)}
	}
	return s.Schema, nil
}

// id is the id of a schema under a subject. An empty schema stands for the subject's newest, whose id is asked for once.
func (r *Registry) id(ctx context.Context, subject string, schema sr.Schema, register bool) (int, error) {
	key := subjectSchema{subject, schema.Schema, schema.Type}
	r.mu.Lock()
	id, known := r.ids[key]
	r.mu.Unlock()
	if known {
		return id, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	id, err := r.ask(ctx, subject, schema, register)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	r.ids[key] = id
	r.mu.Unlock()
	return id, nil
}

func (r *Registry) ask(ctx context.Context, subject string, schema sr.Schema, register bool) (int, error) {
	switch {
	case schema.Schema == "":
		newest, err := r.client.SchemaByVersion(ctx, subject, -1)
		if err != nil {
			return 0, fmt.Errorf("ask the registry for the newest schema of %s: %w", subject, passing(err))
		}
		if newest.Type != schema.Type {
			return 0, retry.Permanent(fmt.Errorf("the newest schema of %s is of the kind %s where %s is wanted", subject, newest.Type, schema.Type))
		}
		return newest.ID, nil
	case register:
		id, err := r.client.RegisterSchema(ctx, subject, schema, -1, -1)
		if err != nil {
			return 0, fmt.Errorf("register the schema under %s: %w", subject, passing(err))
		}
		return id, nil
	default:
		found, err := r.client.LookupSchema(ctx, subject, schema)
		if err != nil {
			return 0, fmt.Errorf("look up the schema under %s (register it there, or set Register): %w", subject, passing(err))
		}
		return found.ID, nil
	}
}

// passing marks errors that are worth another attempt.
func passing(err error) error {
	var answer *sr.ResponseError
	if errors.As(err, &answer) && answer.StatusCode < 500 && answer.StatusCode != http.StatusTooManyRequests {
		return err
	}
	return &unavailable{err}
}

// unavailable is a failure of the registry that will pass, or that somebody has to end. No event is to blame.
type unavailable struct{ err error }

func (u *unavailable) Error() string           { return u.err.Error() }
func (u *unavailable) Unwrap() error           { return u.err }
func (u *unavailable) RetryClass() retry.Class { return retry.Unavailable }
