package main

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/pgtest"
	"github.com/holdfast-go/holdfast/internal/test/roletest"
)

func TestRoles_RolesAreMadeAndPrinted(t *testing.T) {
	db := pgtest.New(t)
	prefix := fmt.Sprintf("cli%d", time.Now().UnixNano())
	roletest.DropAtEnd(t, db, prefix)
	wantStatus(t, 2, `prefix is "A"`, "roles", "--print", "--prefix", "A")
	printed := wantStatus(t, 0, "grant execute on function", "--schema", "events", "roles", "--print", "--prefix", prefix)
	if !strings.Contains(printed, prefix+"_producer") || strings.Contains(printed, "holdfast_producer") || strings.Contains(printed, "holdfast.append") {
		t.Error("the script has other names")
	}
	t.Setenv("DATABASE_URL", db.DSN)
	wantStatus(t, 1, "run holdfast migrate", "roles", "--prefix", prefix)
	wantStatus(t, 0, "", "migrate")
	wantStatus(t, 0, "roles "+prefix+"_owner, _producer", "roles", "--prefix", prefix)
	dsn, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	query := dsn.Query()
	query.Set("role", prefix+"_reader")
	dsn.RawQuery = query.Encode()
	t.Setenv("DATABASE_URL", dsn.String())
	wantStatus(t, 0, "nothing needs a person", "status")
	wantStatus(t, 1, "create the roles: the database role lacks a right: connect as a superuser, or as the owner of the schema", "roles", "--prefix", prefix)
	query.Set("role", prefix+"_owner")
	dsn.RawQuery = query.Encode()
	t.Setenv("DATABASE_URL", dsn.String())
	wantStatus(t, 0, "schema holdfast is at version", "migrate")
}

func TestRoles_CheckNamesWhatAUserLacks(t *testing.T) {
	db := pgtest.New(t)
	t.Setenv("DATABASE_URL", db.DSN)
	wantStatus(t, 0, "", "migrate")
	prefix := roletest.Make(t, db)
	_, user := roletest.Login(t, db, "", prefix+"_producer")
	const super = " is a superuser: no grant, no binding and no row security stops it"
	wantStatus(t, 0, super, "check")
	wantStatus(t, 0, "the database user has the rights of a relay", "check", "--role", "relay")
	wantStatus(t, 2, "--role", "check", "--role", "nobody")
	t.Setenv("DATABASE_URL", roletest.DSNOf(t, db, user))
	wantStatus(t, 0, "the database user has the rights of a producer", "check", "--role", "producer")
	if _, _, errOut := call(t, "check", "--role", "producer"); errOut != "" {
		t.Errorf("a false alarm: %s", errOut)
	}
	wantStatus(t, 1, "to be a relay it lacks delete on parked", "check", "--role", "relay")
}
