package inbox

import (
	"errors"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// This file explains what waiting cannot cure: a database that is not prepared for this consumer.

// miswired is the error of a node's first statement together with what an operator has to do. It is nil if the database only has to
// be waited for.
func miswired(err error) error {
	explained := sqlschema.Explain(err, "docs/operations.md lists what to grant to a consumer")
	if errors.Is(explained, sqlschema.ErrMissing) || errors.Is(explained, sqlschema.ErrVersion) || errors.Is(explained, sqlschema.ErrNoRights) {
		return explained
	}
	return nil
}
