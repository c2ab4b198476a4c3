// Package tenant exports and erases what holdfast keeps of one tenant, in one database.
//
//	tenants, err := tenant.New(pool, tenant.Config{})
//	report, err := tenants.Export(ctx, "acme", func(r tenant.Record) error { return encoder.Encode(r) })
//	report, err = tenants.Erase(ctx, "acme", tenant.EraseOptions{By: "ann", Reason: "contract 17 has ended"})
//
// Whose an event is, is said by the header "tenant". Without it, by what stands before the first "/" of its key, and if the key has
// none, of its source. So "acme/order-7" is a key of the tenant acme. Requests with an Idempotency-Key are a tenant's by
// idempotency.Config.TenantFunc, or by its principal. What says nothing of this is counted (Place.Unattributed), and is left as it is.
//
// Each table is read in its physical order, a part of it at a time, so no transaction is long and no index is needed. places.go
// lists the tables, and what is not in them.
package tenant
