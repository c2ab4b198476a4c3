package idempotency

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/holdfast-go/holdfast/retry"
)

// Codes of the middleware's own problem answers: a contract with clients, which docs/reference/http.md lists. Their "idempotency."
// distinguishes them from the codes of the API that is guarded.
const (
	codeKeyMissing       = "idempotency.key_missing"
	codeKeyInvalid       = "idempotency.key_invalid"
	codePrincipalUnknown = "idempotency.principal_unknown"
	codeRequestTooLarge  = "idempotency.request_too_large"
	codeRequestUnread    = "idempotency.request_unreadable"
	codePayloadMismatch  = "idempotency.payload_mismatch"
	codeInProgress       = "idempotency.in_progress"
	codeStoreUnavailable = "idempotency.store_unavailable"
	codeOutcomeUnknown   = "idempotency.outcome_unknown"
	codeAnswerUnusable   = "idempotency.answer_unusable"
	codeHandlerFault     = "idempotency.handler_fault"
	codeHandlerTimeout   = "idempotency.handler_timeout"
	codeNoAnswer         = "idempotency.no_answer"
	codeTooManyKeys      = "idempotency.too_many_keys"
)

// problem is an answer of the middleware itself (RFC 9457). Retryable says whether it is worth sending the same request
// again with the same key.
type problem struct {
	status    int
	code      string
	class     retry.Class // the first part of the answer's error_code
	title     string
	detail    string
	retryable bool
	link      bool   // link to the API's documentation
	location  string // where the status is, with 202
	after     int    // Retry-After in seconds; 0 is 1
}

var (
	keyMissing = problem{
		status: http.StatusBadRequest,
		code:   codeKeyMissing,
		class:  retry.Validation,
		title:  "Idempotency-Key is missing",
		link:   true,
		detail: "Send this operation with a key of your choice in the header Idempotency-Key: a new key for each operation, the same key for its retries.",
	}
	keyInvalid = problem{
		status: http.StatusBadRequest,
		code:   codeKeyInvalid,
		class:  retry.Validation,
		title:  "Idempotency-Key is invalid",
		link:   true,
	}
	principalUnknown = problem{
		status: http.StatusUnauthorized,
		code:   codePrincipalUnknown,
		class:  retry.Auth,
		title:  "Authentication required",
		detail: "A key belongs to an account: sign in first.",
	}
	requestTooLarge = problem{
		status: http.StatusRequestEntityTooLarge,
		code:   codeRequestTooLarge,
		class:  retry.Validation,
		title:  "The request is too large",
	}
	requestUnread = problem{
		status:    http.StatusBadRequest,
		code:      codeRequestUnread,
		class:     retry.Validation,
		title:     "The request's body could not be read",
		detail:    "It ended early. Nothing was done; send the request again.",
		retryable: true,
	}
	requestUnfit = problem{
		status: http.StatusBadRequest,
		code:   codeRequestUnread,
		class:  retry.Validation,
		title:  "The request's body could not be read",
	}
	payloadMismatch = problem{
		code:   codePayloadMismatch,
		class:  retry.Conflict,
		title:  "Idempotency-Key is already used",
		link:   true,
		detail: "This key was used for another request: its method, host, operation, path, query, media type, conditions or body differ. Nothing was done. Use a new key for a new operation; to repeat the old one, send it unchanged.",
	}
	tooManyKeys = problem{
		status:    http.StatusTooManyRequests,
		code:      codeTooManyKeys,
		class:     retry.RateLimit,
		title:     "Too many keys are kept for this account",
		detail:    "Nothing was done. A key is kept for a while after its request was answered: send this request again later, with the same key.",
		retryable: true,
		after:     60,
	}
	inProgress = problem{
		status:    http.StatusConflict,
		code:      codeInProgress,
		class:     retry.Conflict,
		title:     "A request with this Idempotency-Key is in progress",
		link:      true,
		detail:    "Send it again a little later, with the same key, to get its answer.",
		retryable: true,
	}
	accepted = problem{
		status:    http.StatusAccepted,
		code:      codeInProgress,
		class:     retry.Conflict,
		title:     "A request with this Idempotency-Key is in progress",
		detail:    "Its status is at the Location of this answer.",
		retryable: true,
	}
	storeUnavailable = problem{
		status:    http.StatusServiceUnavailable,
		code:      codeStoreUnavailable,
		class:     retry.Unavailable,
		title:     "The service is not available now",
		detail:    "Nothing was done. Send the request again, with the same key.",
		retryable: true,
	}
	outcomeUnknown = problem{
		status:    http.StatusServiceUnavailable,
		code:      codeOutcomeUnknown,
		class:     retry.Timeout,
		title:     "The request may or may not have been carried out",
		detail:    "Send it again with the same key: it is carried out once, and you get its answer.",
		retryable: true,
	}
	answerUnusable = problem{
		status:    http.StatusServiceUnavailable,
		code:      codeAnswerUnusable,
		class:     retry.Unavailable,
		title:     "The stored answer cannot be used",
		detail:    "The request was carried out before, but its answer cannot be read. It is not carried out again.",
		retryable: true,
	}
	handlerFault = problem{
		status:    http.StatusInternalServerError,
		code:      codeHandlerFault,
		class:     retry.Transient,
		title:     "The request could not be completed",
		detail:    "Nothing was done.",
		retryable: true,
	}
	handlerTimeout = problem{
		status:    http.StatusServiceUnavailable,
		code:      codeHandlerTimeout,
		class:     retry.Timeout,
		title:     "The request could not be completed in time",
		retryable: true,
	}
	noAnswer = problem{
		status:    http.StatusServiceUnavailable,
		code:      codeNoAnswer,
		class:     retry.Unavailable,
		title:     "The request could not be completed",
		retryable: true,
	}
)

func (p problem) with(detail string) problem {
	p.detail = detail
	return p
}

// unknownOutcome is outcomeUnknown with the detail that fits the request. Without a key, another attempt is another
// request. If the effect and the answer are not one transaction (NewEphemeral), the handler may run again.
func unknownOutcome(keyed, ephemeral bool) problem {
	p := outcomeUnknown
	switch {
	case !keyed:
		p.retryable = false
		p.detail = "It had no key, so another try would be another request: find out whether it was carried out before you send it again."
	case ephemeral:
		p.detail = "Send it again with the same key: you get its answer if that was kept; otherwise it is carried out again."
	}
	return p
}

// unanswered is the problem of a handler that wrote no answer. ended says that its context had ended. Without a transaction
// it may have done something.
func unanswered(ended, keyed, transaction bool) problem {
	p := noAnswer
	if ended {
		p = handlerTimeout
	}
	switch {
	case keyed:
		p.detail = "Send it again, with the same key."
	case transaction:
		p.detail = "Nothing was done. Send it again."
	default:
		return unknownOutcome(false, false)
	}
	return p
}

func (p problem) errorCode() string { return string(p.class) + "." + p.code }

// write sends a problem.
func (p problem) write(w http.ResponseWriter, docs string) {
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	h.Set("Error-Code", p.errorCode())
	if p.retryable && p.status != http.StatusBadRequest {
		h.Set("Retry-After", strconv.Itoa(max(p.after, 1)))
	}
	if p.location != "" {
		h.Set("Location", p.location)
	}
	kind := "urn:holdfast:" + p.code
	if docs != "" && p.link {
		h.Add("Link", "<"+docs+`>; rel="describedby"`)
		kind = docs
	}
	body, err := json.Marshal(struct {
		Type      string `json:"type"`
		Title     string `json:"title"`
		Status    int    `json:"status"`
		Detail    string `json:"detail,omitempty"`
		Code      string `json:"code"`
		ErrorCode string `json:"error_code"`
		Retryable bool   `json:"retryable"`
	}{kind, p.title, p.status, p.detail, p.code, p.errorCode(), p.retryable})
	if err != nil {
		panic(err) // strings, a number and a boolean always encode
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.status)
	_, _ = w.Write(body) // On an error the client is gone.
}
