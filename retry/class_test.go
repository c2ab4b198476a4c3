package retry

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/segmentio/kafka-go"
	"pgregory.net/rapid"
)

// classified is an error that states its class, as the relay's Kafka errors do.
type classified struct{ class Class }

func (c classified) Error() string     { return "classified as " + string(c.class) }
func (c classified) RetryClass() Class { return c.class }

func pg(code string) error { return &pgconn.PgError{Code: code} }

func TestClass_ClassifyByItsTable(t *testing.T) {
	t.Parallel()
	_, badConfig := pgconn.ParseConfig("postgres://host:notaport/db")
	for _, row := range []struct {
		name string
		err  error
		want Class
	}{
		{"no error has no class", nil, ""},
		{"an unknown error is transient", errors.New("odd"), Transient},
		{"a cancelled context is transient", context.Canceled, Transient},

		{"an error states its class", classified{Duplicate}, Duplicate},
		{"a wrapped error states its class", fmt.Errorf("publish: %w", classified{Unavailable}), Unavailable},
		{"a stated class goes before a wrapped time-out", errors.Join(context.DeadlineExceeded, classified{Auth}), Auth},
		{"a stated class goes before the mark of permanent", Permanent(classified{Auth}), Auth},
		{"an empty stated class is left to the other rows", errors.Join(classified{""}, io.EOF), Unavailable},
		{"a stated class we don't know is left to the other rows", classified{"GREEN"}, Transient},

		{"a message that is too large for the broker", kafka.MessageSizeTooLarge, Validation},
		{"a topic that cannot be", fmt.Errorf("publish: %w", kafka.InvalidTopic), Validation},
		{"no rights on a topic", kafka.TopicAuthorizationFailed, Auth},
		{"no rights on a group", kafka.GroupAuthorizationFailed, Auth},
		{"signing in failed", kafka.SASLAuthenticationFailed, Auth},
		{"a way of signing in that the broker has not", kafka.UnsupportedSASLMechanism, Auth},
		{"no leader", kafka.LeaderNotAvailable, Transient},
		{"too slow a broker", kafka.RequestTimedOut, Timeout},
		{"a broker that does not know", kafka.Unknown, Transient},
		{"a broker that is away", kafka.BrokerNotAvailable, Transient},
		{"a group in motion", kafka.RebalanceInProgress, Transient},

		{"serialisation failure", pg("40001"), Transient},
		{"deadlock", pg("40P01"), Transient},
		{"completion unknown", pg("40003"), Transient},
		{"integrity at the end of the transaction", pg("40002"), Conflict},
		{"unique violation", pg("23505"), Conflict},
		{"foreign key violation", pg("23503"), Conflict},
		{"exclusion violation", pg("23P01"), Conflict},
		{"restrict violation", pg("23001"), Conflict},
		{"not null violation", pg("23502"), Validation},
		{"check violation", pg("23514"), Validation},
		{"with check option", pg("44000"), Validation},
		{"value too long", pg("22001"), Validation},
		{"invalid text", pg("22P02"), Validation},
		{"cardinality", pg("21000"), Validation},
		{"feature not supported", pg("0A000"), Validation},
		{"a cached plan that went stale", &pgconn.PgError{Code: "0A000", Routine: "RevalidateCachedQuery"}, Transient},
		{"program limit", pg("54000"), Validation},
		{"syntax error", pg("42601"), Validation},
		{"no such table", pg("42P01"), Unavailable},
		{"no such column", pg("42703"), Unavailable},
		{"no such function", pg("42883"), Unavailable},
		{"no such type", pg("42704"), Unavailable},
		{"no such schema", pg("3F000"), Unavailable},
		{"no such database", pg("3D000"), Unavailable},
		{"prepared statement lost", pg("26000"), Transient},
		{"prepared statement there already", pg("42P05"), Transient},
		{"wrong password", pg("28P01"), Auth},
		{"not authorised", pg("28000"), Auth},
		{"insufficient privilege", pg("42501"), Auth},
		{"too many connections", pg("53300"), Unavailable},
		{"disk full", pg("53100"), Unavailable},
		{"lock not available", pg("55P03"), Transient},
		{"admin shutdown", pg("57P01"), Unavailable},
		{"crash shutdown", pg("57P02"), Unavailable},
		{"cannot connect now", pg("57P03"), Unavailable},
		{"query cancelled", pg("57014"), Timeout},
		{"idle in transaction", pg("25P03"), Timeout},
		{"transaction time-out", pg("25P04"), Timeout},
		{"read only after a failover", pg("25006"), Unavailable},
		{"connection failure", pg("08006"), Unavailable},
		{"I/O error", pg("58030"), Unavailable},
		{"configuration file", pg("F0000"), Unavailable},
		{"internal error", pg("XX000"), Transient},
		{"raised by a function", pg("P0001"), Transient},
		{"a code that is none", pg("2"), Transient},
		{"no code", pg(""), Transient},
		{"a wrapped server error", fmt.Errorf("claim lane: %w", pg("28P01")), Auth},

		{"deadline exceeded", fmt.Errorf("ask: %w", context.DeadlineExceeded), Timeout},
		{"an I/O deadline", os.ErrDeadlineExceeded, Timeout},
		{"a dial that timed out", &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, Timeout},
		{"the kernel's time-out", &net.OpError{Op: "read", Err: syscall.ETIMEDOUT}, Timeout},
		{"a name server that didn't answer", &net.DNSError{IsTimeout: true}, Timeout},
		{"a name that doesn't exist", &net.DNSError{IsNotFound: true}, Unavailable},
		{"connection refused", &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, Unavailable},
		{"connection reset", &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)}, Unavailable},
		{"broken pipe", syscall.EPIPE, Unavailable},
		{"host unreachable", syscall.EHOSTUNREACH, Unavailable},
		{"another network error", &net.OpError{Op: "dial", Err: errors.New("odd")}, Unavailable},
		{"end of file", io.EOF, Unavailable},
		{"unexpected end of file", io.ErrUnexpectedEOF, Unavailable},
		{"a closed connection", net.ErrClosed, Unavailable},
		{"a closed connection of pgconn", pgconn.ErrConnClosed, Unavailable},
		{"a configuration that cannot be read", badConfig, Validation},
		{"a certificate that doesn't verify", &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, Auth},

		{"permanent without a better word", Permanent(errors.New("odd")), Validation},
		{"permanent with one", Permanent(pg("23505")), Conflict},
		{"after without a better word", After(errors.New("odd"), time.Second), RateLimit},
		{"after with one", After(io.EOF, time.Second), Unavailable},
		{"permanent goes before after", After(Permanent(errors.New("odd")), time.Second), Validation},

		{"given up on a time-out", &GaveUpError{Err: context.DeadlineExceeded}, Timeout},
		{"given up on a clash", &GaveUpError{Err: pg("23505")}, Conflict},
		{"given up on the unknown", &GaveUpError{Err: errors.New("odd")}, Transient},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := Classify(row.err); got != row.want {
				t.Errorf("Classify(%v) = %q, want %q", row.err, got, row.want)
			}
		})
	}
}

// The error is the one that pgconn really returns, from a port that nobody listens on.
func TestClass_ARealRefusedConnectionToPostgresIsUnavailable(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = pgconn.Connect(t.Context(), "postgres://holdfast@"+address+"/holdfast?sslmode=disable")
	if got := Classify(err); got != Unavailable {
		t.Errorf("Classify(%v) = %q, want %q", err, got, Unavailable)
	}
	var timed interface{ Timeout() bool }
	if errors.As(err, &timed) && timed.Timeout() {
		t.Errorf("%v calls itself a time-out", err)
	}
}

func TestClass_TheClassesThatAreRetryableAreThoseOfTheTaxonomy(t *testing.T) {
	t.Parallel()
	want := map[Class]bool{
		"VALIDATION": false, "AUTH": false, "CONFLICT": false, "RATE_LIMIT": true, "DEPENDENCY.timeout": true,
		"DEPENDENCY.unavailable": true, "TRANSIENT": true, "PROVIDER.duplicate": false, "": false, "GREEN": false,
	}
	for class, retryable := range want {
		if got := class.Retryable(); got != retryable {
			t.Errorf("%q.Retryable() = %t", class, got)
		}
	}
	for _, class := range []Class{Validation, Auth, Conflict, RateLimit, Timeout, Unavailable, Transient, Duplicate} {
		if _, ok := want[class]; !ok {
			t.Errorf("%q isn't a value of the taxonomy", class)
		}
	}
}

func TestClass_EverySQLStateHasAClassAndWrappingNeverChangesIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		err := pg(rapid.StringMatching(`[0-9A-Z]{5}`).Draw(t, "code"))
		class := Classify(err)
		if !class.known() {
			t.Fatalf("Classify(%v) = %q", err, class)
		}
		for _, wrapped := range []error{fmt.Errorf("x: %w", err), errors.Join(io.EOF, err), Permanent(err), After(err, 1)} {
			if got := Classify(wrapped); got != class {
				t.Fatalf("Classify(%v) = %q, wrapped %q", err, class, got)
			}
		}
	})
}

func TestClass_AnHTTPStatusHasTheClassOfItsMeaning(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]Class{
		400: Validation, 401: Auth, 403: Auth, 404: Validation, 408: Timeout, 409: Conflict, 412: Conflict, 422: Validation,
		429: RateLimit, 500: Transient, 501: Transient, 502: Unavailable, 503: Unavailable, 504: Timeout, 599: Transient,
	} {
		if got := Classify(&statusError{status: status}); got != want {
			t.Errorf("status %d is of class %q, want %q", status, got, want)
		}
	}
}
