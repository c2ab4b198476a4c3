package holdfast

// CompatibleFrom is what the tests of the schema use of this package's inside.
var CompatibleFrom = compatibleFrom
