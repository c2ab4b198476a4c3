package retry

import "github.com/jackc/pgx/v5/pgconn"

// sqlStates gives the class of a SQLSTATE. A whole code (five characters) takes precedence over its SQLSTATE class (the
// first two). A code that isn't listed is Transient. Codes and names: PostgreSQL's manual, appendix A.
var sqlStates = map[string]Class{
	"08": Unavailable, // connection exception

	"0A": Validation, // feature not supported; see classifySQLState for the exception

	"21": Validation, // cardinality violation
	"22": Validation, // data exception: too long, out of range, not JSON, division by zero

	// Integrity. A clash with other rows is a conflict; a value that is wrong by itself is invalid input.
	"23":    Conflict,   // unique, foreign key, exclusion, restrict
	"23502": Validation, // not null
	"23514": Validation, // check
	"44":    Validation, // with check option

	// 25006 is what a writer gets that still talks to the old primary after a failover. It disappears with the
	// connection.
	"25006": Unavailable, // read-only transaction
	"25P03": Timeout,     // idle in transaction
	"25P04": Timeout,     // transaction timeout, PostgreSQL 17

	"28":    Auth, // wrong password, unknown role
	"42501": Auth, // insufficient privilege

	// PgBouncer may give the next transaction a server connection that doesn't know the prepared statement, or knows
	// another of that name. pgx then drops its own, so the next attempt works.
	"26000": Transient, // prepared statement does not exist
	"42P05": Transient, // prepared statement already exists

	"40":    Transient, // serialisation failure 40001, deadlock 40P01
	"40002": Conflict,  // integrity violation found at the end of the transaction

	// A missing table or column means a deploy in which the code came before its migration. If it were invalid input,
	// every event of those minutes would become a dead letter at its first attempt.
	"3D":    Unavailable, // database
	"3F":    Unavailable, // schema
	"42P01": Unavailable, // table
	"42703": Unavailable, // column
	"42704": Unavailable, // type or other object
	"42883": Unavailable, // function
	"42":    Validation,  // any other statement that the server does not accept as written

	"53": Unavailable, // out of disk, memory or connections
	"54": Validation,  // over one of the server's limits, for instance an index row that is too large
	"55": Transient,   // lock not available, object in use

	"57":    Unavailable, // shutting down, crashed, starting up: 57P01, 57P02, 57P03
	"57014": Timeout,     // query cancelled, by statement_timeout or by us because a context ended
	"58":    Unavailable, // system error: I/O
	"F0":    Unavailable, // configuration file
}

func classifySQLState(pg *pgconn.PgError) Class {
	// "cached plan must not change result type": the table changed under a prepared statement. pgx drops the statement,
	// so the next attempt works. Real refusals have the same code, but another server routine.
	if pg.Code == "0A000" && pg.Routine == "RevalidateCachedQuery" {
		return Transient
	}
	if class, ok := sqlStates[pg.Code]; ok {
		return class
	}
	if len(pg.Code) == 5 {
		if class, ok := sqlStates[pg.Code[:2]]; ok {
			return class
		}
	}
	return Transient
}
