package exampledb_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/holdfast-go/holdfast"
	"github.com/holdfast-go/holdfast/internal/test/exampledb"
	"github.com/holdfast-go/holdfast/internal/test/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func ExampleNew() {
	pool := exampledb.NewWith("create table account (name text)")
	fmt.Println(holdfast.Check(context.Background(), pool, holdfast.SchemaConfig{}))
	fmt.Println(pgtest.Count(exampledb.T(), pool, "select count(*) from account"))
	// Output:
	// <nil>
	// 0
}
