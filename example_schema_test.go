package holdfast_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strings"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
)

// Every node may call Migrate when it starts: one does the work, the others wait for it.
func ExampleMigrate() {
	ctx, pool := context.Background(), exampledb.New()
	events := holdfast.SchemaConfig{Schema: "shop_events", Lanes: 16}
	for range 2 {
		fmt.Println(holdfast.Migrate(ctx, pool, events))
	}
	// Output:
	// <nil>
	// <nil>
}

// A service that may not change the schema checks it when it starts.
func ExampleCheck() {
	ctx, pool := context.Background(), exampledb.New()
	fmt.Println("holdfast:", holdfast.Check(ctx, pool, holdfast.SchemaConfig{}))

	err := holdfast.Check(ctx, pool, holdfast.SchemaConfig{Schema: "shop_events"})
	fmt.Println("shop_events is missing:", errors.Is(err, holdfast.ErrSchemaMissing))
	// Output:
	// holdfast: <nil>
	// shop_events is missing: true
}

// The script is for services that run all migrations with one tool of their own.
func ExampleSQL() {
	script, err := holdfast.SQL(holdfast.SchemaConfig{Schema: "shop_events"})
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(script) {
		if strings.HasPrefix(line, "create schema") {
			fmt.Print(line)
		}
	}
	// Output:
	// create schema if not exists "shop_events";
}
