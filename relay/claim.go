package relay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/failpoint"
	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// Errors that make Run return at once. Adopt resolves ErrRestored.
var (
	ErrStandby   = errors.New("the server is a standby: connect the relay to the primary")
	ErrRestored  = errors.New("the database is a restored copy: the relay's cursors speak of another history of transactions; stop all relays and run holdfast adopt")
	ErrIsolation = errors.New("default_transaction_isolation is not 'read committed': set it for the relay's role (alter role ... set default_transaction_isolation = 'read committed')")
)

// server is what readServer reads.
type server struct {
	token             string
	standby           bool
	isolation         string
	identifier        int64 // of the cluster now
	adopted           int64 // of the cluster that the cursors speak of
	born, bornXmin    int64
	doneXmax, nowXmax int64
	version           int // of the schema
}

// sameHistory says whether transaction ids still mean what they meant when the schema was created: the row that remembers
// its own birth was not copied. born has 64 bits, and a row's xmin is the low 32 of them.
func (s server) sameHistory() bool { return uint32(s.born) == uint32(s.bornXmin) }

// refusal says why a relay must not run here; nil when it may.
func (s server) refusal(schema string) error {
	switch {
	case s.standby:
		return ErrStandby
	case s.version < holdfast.SchemaVersion:
		return sqlschema.Installed{Version: s.version}.Problem(schema)
	case s.isolation != "read committed":
		return fmt.Errorf("%w: it is %q", ErrIsolation, s.isolation)
	case s.identifier != s.adopted:
		return fmt.Errorf("%w: the cluster is %d, the cursors are of %d", ErrRestored, s.identifier, s.adopted)
	case s.doneXmax > s.nowXmax:
		return fmt.Errorf("%w: a cursor stands at transaction %d, the server at %d", ErrRestored, s.doneXmax, s.nowXmax)
	}
	return nil
}

// maintainClaims sends a heartbeat, hands over lanes above our share and claims free ones below it.
func (r *Relay) maintainClaims(ctx, work context.Context) error {
	ctx, cancel := r.env.limit(ctx, max(r.c.Lease, 2*time.Second))
	defer cancel()
	s, err := r.inspect(ctx)
	if err != nil {
		return err
	}
	if err := s.refusal(r.c.Schema); err != nil {
		return err
	}
	var relays, lanes, free int
	owned := r.owned()
	numbers := make([]int16, len(owned))
	for i, l := range owned {
		numbers[i] = int16(l.number)
	}
	// A stop does not cut off a statement that writes: the server might carry it out after leave has released everything.
	writing, end := r.env.limit(work, max(r.c.Lease, 2*time.Second))
	defer end()
	if err := r.pool.QueryRow(writing, r.sql.In(heartbeatRelay), r.c.Name, r.c.Lease, numbers, r.vitals.trouble(), r.env.now().Sub(r.vitals.read().begunAt)).Scan(&relays, &lanes, &free); err != nil {
		return fmt.Errorf("count relays: %w", explain(err))
	}
	mine := share(lanes, relays)
	if extra := len(owned) - mine; extra > 0 {
		sort.Slice(owned, func(i, j int) bool { return owned[i].number > owned[j].number })
		r.stopLanes(owned[:extra])
		return nil
	}
	if free == 0 || len(owned) >= mine || ctx.Err() != nil {
		return nil
	}
	failpoint.Hit(failpoint.RelayClaiming)
	return r.claim(ctx, writing, work, s.token, mine-len(owned), append(numbers, r.resting()...), lanes)
}

// resting are the lanes that are left alone for now, because they have failed again and again.
func (r *Relay) resting() []int16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failing.resting(r.env.now())
}

// inspect refills the incarnation's token if a crash emptied it, and reads what may keep a relay from running.
func (r *Relay) inspect(ctx context.Context) (server, error) {
	s, err := r.readServer(ctx)
	if err == nil && s.token == "" && !s.standby {
		if _, err := r.pool.Exec(ctx, r.sql.In(ensureIncarnation)); err != nil {
			return s, fmt.Errorf("refill the incarnation: %w", explain(err))
		}
		s, err = r.readServer(ctx)
	}
	return s, err
}

// readServer reads what inspect needs to know. A standby refuses to read the incarnation, because its table is unlogged.
func (r *Relay) readServer(ctx context.Context) (server, error) {
	var s server
	err := r.pool.QueryRow(ctx, r.sql.In(readServer)).Scan(&s.token, &s.standby, &s.isolation, &s.identifier, &s.adopted, &s.born, &s.bornXmin, &s.doneXmax, &s.nowXmax, &s.version)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "0A000" { // feature_not_supported
		return server{standby: true}, nil
	}
	if err != nil {
		return s, fmt.Errorf("ask the server: %w", explain(err))
	}
	return s, nil
}

// claim takes up to n free lanes and starts them, except for the given ones: those that are ours, or rest. It takes one after the
// other: a lease runs from the statement on, and a lane may take long to load. What is still free after half of the time in which
// others believe that we live is left to the next turn.
func (r *Relay) claim(ctx, writing, work context.Context, token string, n int, except []int16, lanes int) error {
	except = slices.Clone(except)
	for began := r.env.now(); n > 0 && r.env.now().Sub(began) < r.c.Lease/2; n-- {
		l, err := r.claimOne(writing, token, except)
		if l == nil || err != nil {
			return err
		}
		failpoint.Hit(failpoint.RelayClaimed)
		except = append(except, int16(l.number))
		err = r.beginLeases(ctx, l)
		if err == nil {
			err = r.load(ctx, l)
		}
		if err != nil {
			return fmt.Errorf("load lane %d: %w", l.number, explain(err)) // its lease runs out, and it is claimed again
		}
		l.saved = l.cursor
		l.open()
		l.reader = logReader{
			most:   sizeAfter(l.failures),
			pool:   r.log,
			sql:    r.sql,
			lane:   l.number,
			token:  token,
			limit:  r.c.BatchSize,
			bytes:  r.bounds.pageBytes,
			places: r.bounds.places,
			span:   int64(r.c.BatchSize) * int64(lanes) * 4 / 5,
			now:    r.env.now,
			at:     startReading(l.cursor),
			handed: l.cursor,
		}
		if r.c.TenantSeparator != "" {
			l.reader.fair = newOvertaking(r.c.TenantSeparator)
			l.reader.notAhead = func(err error, rest time.Duration) {
				r.c.Logger.Warn("events of quiet tenants wait for a backlog: it could not be read ahead", "lane", l.number, "retry_in", rest, "error", err)
			}
		}
		r.env.start(work, l)
	}
	return nil
}

// claimOne takes a free lane; nil if there is none. If a stop keeps it from starting, leave releases it.
func (r *Relay) claimOne(writing context.Context, token string, except []int16) (*lane, error) {
	sent := r.env.now()
	l := newLane(r, token, sent.Add(r.c.Lease))
	var published int64
	err := r.pool.QueryRow(writing, r.sql.In(claimLane), r.c.Name, r.c.Lease, token, except).
		Scan(&l.number, &l.epoch, &l.cursor.done, &l.cursor.upto, &l.cursor.pos, &published)
	l.published.Store(published)
	none := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !none {
		return nil, fmt.Errorf("claim a lane: %w", explain(err))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.token = token; none {
		return nil, nil
	}
	r.failing.claimed(l.number, sent)
	l.failures = r.failing.failures(l.number)
	return l, nil
}

// resumeReleased makes queues due again that waited for a dead letter, which a person dealt with while nobody owned the lane, and replays that
// wait behind a letter: it holds none.
func (l *lane) resumeReleased(ctx context.Context) error {
	var resume rowKeys
	l.dormantQueues = slices.DeleteFunc(l.dormantQueues, func(q queue) bool {
		if l.holds[spot{q.topic, wholeTopic}] == nil {
			resume.topics, resume.keys = append(resume.topics, q.topic), append(resume.keys, q.key)
		}
		return l.holds[spot{q.topic, wholeTopic}] == nil // else when the topic is back
	})
	if len(resume.topics) == 0 {
		return nil
	}
	if err := l.resumeHeads(ctx, resume, func() { failpoint.Hit(failpoint.RelayReleasingOnClaim) }); err != nil {
		return fmt.Errorf("resume released keys: %w", err)
	}
	return nil
}

// explain adds what to do to the errors that an operator can resolve.
func explain(err error) error {
	return sqlschema.Explain(err, "docs/operations.md lists what to grant to a relay")
}
