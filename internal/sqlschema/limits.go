package sqlschema

// What a relay takes of a row, in bytes, as SQL has them. They are far beyond the limits of the functions for writers: only a row
// that somebody wrote past those is malformed.
const (
	MaxPayload       = "67108864" // the highest SchemaConfig.MaxPayload
	MaxStoredHeaders = "524288"   // as Postgres stores them, compressed
	MaxHeaders       = "1048576"  // as JSON
	MaxTexts         = "65536"    // of id, source, type, topic and key together
)
