package inbox

import "time"

// This file reports what an inbox waits for. The observer gets every error. The log does not: every worker waits for the same
// database, and an operator should not have to read a thousand equal lines.

// sayEvery is the time between two logged lines of one kind that say what is waited for.
const sayEvery = time.Minute
