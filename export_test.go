package holdfast

// What the tests of the schema use of this package's inside.
type Object = object

var (
	CatalogOf      = catalogOf
	CatalogText    = catalogText
	CompatibleFrom = compatibleFrom
)
