// Package orms shows how an order and its event commit together in a service on sqlc, GORM, ent, Bun or plain database/sql. Each
// shop has a package of its own, and the same test.
package orms
