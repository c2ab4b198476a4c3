package retry

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

// The table of document 004, row by row. "*" stands for what comes after a class.
func TestTaxonomy_TheTaxonomyIsTheDocuments(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		code  string
		class Class
		retry bool
	}{
		{"VALIDATION.*", Validation, false},
		{"AUTH.*", Auth, false},
		{"CONFLICT.idempotency.payload_mismatch", Conflict, false},
		{"RATE_LIMIT.exceeded", RateLimit, true},
		{"DEPENDENCY.timeout", Timeout, true},
		{"DEPENDENCY.unavailable", Unavailable, true},
		{"TRANSIENT.*", Transient, true},
		{"PROVIDER.duplicate", Duplicate, false},

		{"CONFLICT.idempotency.in_progress", Conflict, true},
		{"DEPENDENCY.unavailable.idempotency.store_unavailable", Unavailable, true},
		{"DEPENDENCY", "", false}, {"VALIDATIONS", "", false}, {"", "", false}, {"GREEN.field", "", false},
	} {
		if class, retry := classOf(row.code); class != row.class || retry != row.retry {
			t.Errorf("%s is of class %q, retryable: %t", row.code, class, retry)
		}
		if row.class == "" || row.code == "CONFLICT.idempotency.in_progress" {
			continue
		}
		if row.class.Retryable() != row.retry {
			t.Errorf("%s: its class %s has retryable %t", row.code, row.class, row.class.Retryable())
		}
		// What another service answers with this code means the same, whatever its status.
		err := ErrorOf(&http.Response{StatusCode: http.StatusTeapot, Header: http.Header{codeHeader: {row.code}}})
		if Classify(err) != row.class || Retryable(err) != row.retry {
			t.Errorf("%v is of class %s, retryable: %t", err, Classify(err), Retryable(err))
		}
	}
	if codeHeader != "Error-Code" {
		t.Error("the name is not the document's")
	}
}

func TestTaxonomy_AnAnswerIsAnErrorOfItsCodeOrItsStatus(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		status int
		header []string
		class  Class
		retry  bool
		after  time.Duration // -1 = none
		text   string
	}{
		{200, nil, "", false, -1, ""},
		{302, []string{codeHeader, "AUTH.token"}, "", false, -1, ""},
		{404, nil, Validation, false, -1, "server answered 404 Not Found"},
		{429, []string{"Retry-After", "3"}, RateLimit, true, 3 * time.Second, "server answered 429 Too Many Requests"},
		{503, []string{codeHeader, "RATE_LIMIT.exceeded", "Retry-After", "2"}, RateLimit, true, 2 * time.Second, "server answered 503 Service Unavailable, RATE_LIMIT.exceeded"},
		{503, []string{"Retry-After", "0"}, Unavailable, true, -1, "server answered 503 Service Unavailable"}, // by the policy's backoff
		{409, []string{codeHeader, "PROVIDER.duplicate", "Retry-After", "2"}, Duplicate, false, -1, "server answered 409 Conflict, PROVIDER.duplicate"},
		{409, []string{codeHeader, "CONFLICT.idempotency.in_progress", "Retry-After", "1"}, Unavailable, true, time.Second, "server answered 409 Conflict, CONFLICT.idempotency.in_progress"},
		{409, []string{codeHeader, "sold_out"}, Conflict, false, -1, "server answered 409 Conflict, sold_out"},
		{504, nil, Timeout, true, -1, "server answered 504 Gateway Timeout"},
	} {
		resp, err := answer(row.status, row.header...)(nil)
		if err != nil {
			t.Fatal(err)
		}
		err = ErrorOf(resp)
		if row.class == "" {
			if err != nil {
				t.Errorf("%d: %v", row.status, err)
			}
			continue
		}
		after, asked := AfterOf(err)
		if !asked {
			after = -1
		}
		if Classify(err) != row.class || Retryable(err) != row.retry || after != row.after || err.Error() != row.text {
			t.Errorf("%d %v: %v of class %s, retryable %t, after %s", row.status, row.header, err, Classify(err), Retryable(err), after)
		}
	}
}

// A provider that says that a request was carried out before is not asked again, whatever its status.
func TestTaxonomy_WhatWasDoneAlreadyIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	for _, status := range []int{409, 429, 500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := serve(answer(status, codeHeader, string(Duplicate), "Retry-After", "1"), answer(201))
				resp, err := (&Transport{Base: s, random: half}).RoundTrip(request(t, http.MethodGet, nil))
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if len(s.beganAt) != 1 || resp.StatusCode != status || Classify(ErrorOf(resp)) != Duplicate {
					t.Errorf("%d attempts, status %d", len(s.beganAt), resp.StatusCode)
				}
			})
		})
	}
}
