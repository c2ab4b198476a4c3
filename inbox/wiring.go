package inbox

import (
	"errors"

	"github.com/holdfast-go/holdfast/internal/sqlschema"
)

// This file tells what no waiting fixes: a database that is not made ready for this consumer.

// miswired is an error of a node's first statement, with what an operator has to do about it; nil where it is the
// database's trouble, which is waited for.
func miswired(err error) error {
	explained := sqlschema.Explain(err, "docs/operations.md lists what to grant to a consumer")
	if errors.Is(explained, sqlschema.ErrMissing) || errors.Is(explained, sqlschema.ErrNoRights) {
		return explained
	}
	return nil
}
