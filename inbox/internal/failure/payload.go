package failure

import (
	"errors"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/retry"
)

// PayloadError is an error of a codec or an upcast. Only the inbox makes one: what it says of itself is safe to show.
type PayloadError struct{ Err error }

func (e *PayloadError) Error() string { return e.Err.Error() }
func (e *PayloadError) Unwrap() error { return e.Err }

// RetryClass says that the payload is at fault, whatever errors the codec met on its way.
func (e *PayloadError) RetryClass() retry.Class { return retry.Validation }

// Reason is what can be said of it without a value of the payload.
func (e *PayloadError) Reason() string {
	var known *holdfast.PayloadError
	if errors.As(e.Err, &known) {
		return known.Reason()
	}
	return "payload: it cannot be decoded"
}
