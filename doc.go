// Package holdfast keeps a service's database and its events from parting ways.
package holdfast
