// Package bouncer runs a throwaway PgBouncer in transaction pooling for the tests and the fault suite.
//
// It never touches one that it did not start: each Start makes its own folder and its own port, and Stop removes both.
// Nothing of it is linked into the library packages.
package bouncer

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/internal/test/freeport"
)

// ErrNoBouncer is what Start's error wraps when this machine has no PgBouncer.
var ErrNoBouncer = errors.New("no PgBouncer to be had")

// Options says what a PgBouncer stands before and how it is run. Target and User are required.
type Options struct {
	// Target is the address of the server, "host:port". Nobody has to listen there yet.
	Target string

	// User and Password are those of the server, and what clients give. The user is an administrator of PgBouncer too.
	// Without a password PgBouncer asks for none either.
	User, Password string

	// PoolSize is how many connections to the server there are for each database. Defaults to 20.
	PoolSize int

	// MaxClients is how many clients may be connected. Defaults to 1000.
	MaxClients int

	// Settings are lines of pgbouncer.ini, by name. They win over the defaults here, but cannot change what the fields
	// above say or what Start chooses.
	Settings map[string]string

	// Binary is the program. Defaults to pgbouncer of PATH, then to /usr/sbin/pgbouncer, where Debian puts it.
	Binary string

	// StartTimeout bounds each start. Defaults to 30 s.
	StartTimeout time.Duration

	// choosePort takes the place of freeport.Find in a test.
	choosePort func() (int, error)
}

const (
	defaultPoolSize     = 20
	defaultMaxClients   = 1000
	defaultStartTimeout = 30 * time.Second
)

func (o Options) withDefaults() Options {
	if o.PoolSize == 0 {
		o.PoolSize = defaultPoolSize
	}
	if o.MaxClients == 0 {
		o.MaxClients = defaultMaxClients
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = defaultStartTimeout
	}
	if o.choosePort == nil {
		o.choosePort = freeport.Find
	}
	return o
}

var settingName = regexp.MustCompile(`^[a-z_0-9]+$`)

// reserved are the settings that fields or Start choose.
var reserved = []string{"listen_addr", "listen_port", "unix_socket_dir", "auth_type", "auth_file", "admin_users", "default_pool_size", "max_client_conn"}

// validate reports all that is wrong at once.
func (o Options) validate() error {
	var errs []error
	rule := func(ok bool, field string, value any, rule string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: %s", field, value, rule))
		}
	}
	oneLine := func(text string) bool { return !strings.ContainsAny(text, "\n\r\x00") }
	host, port, err := net.SplitHostPort(o.Target)
	rule(err == nil && host != "" && port != "" && oneLine(o.Target), "Target", fmt.Sprintf("%q", o.Target), "it must be host:port")
	rule(o.User != "" && oneLine(o.User), "User", fmt.Sprintf("%q", o.User), "it must be one line and not empty")
	rule(oneLine(o.Password), "Password", "not shown", "it must be one line")
	rule(o.PoolSize > 0, "PoolSize", o.PoolSize, "it must be positive")
	rule(o.MaxClients > 0, "MaxClients", o.MaxClients, "it must be positive")
	rule(o.StartTimeout > 0, "StartTimeout", o.StartTimeout, "it must be positive")
	for _, name := range slices.Sorted(maps.Keys(o.Settings)) {
		value := o.Settings[name]
		rule(settingName.MatchString(name) && oneLine(value), fmt.Sprintf("Settings[%q]", name), fmt.Sprintf("%q", value), "names are pgbouncer.ini names and values are one line")
		rule(!slices.Contains(reserved, name), fmt.Sprintf("Settings[%q]", name), fmt.Sprintf("%q", value), "it is chosen by a field or by Start")
	}
	return errors.Join(errs...)
}

// files are what PgBouncer reads, by name.
func (o Options) files(port int, users string) map[string]string {
	host, to, _ := net.SplitHostPort(o.Target)
	settings := map[string]string{"pool_mode": "transaction"}
	auth := "plain"
	if o.Password == "" {
		auth = "trust" // plain refuses empty passwords
	}
	maps.Copy(settings, o.Settings)
	maps.Copy(settings, map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": fmt.Sprint(port), "unix_socket_dir": "",
		"auth_type": auth, "auth_file": users, "admin_users": o.User,
		"default_pool_size": fmt.Sprint(o.PoolSize), "max_client_conn": fmt.Sprint(o.MaxClients),
	})
	var ini strings.Builder
	fmt.Fprintf(&ini, "[databases]\n* = host=%s port=%s\n[pgbouncer]\n", host, to)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&ini, "%s = %s\n", name, settings[name])
	}
	quoted := func(text string) string { return `"` + strings.ReplaceAll(text, `"`, `""`) + `"` }
	return map[string]string{"pgbouncer.ini": ini.String(), "users": quoted(o.User) + " " + quoted(o.Password) + "\n"}
}

// binary finds the program.
func (o Options) binary() (string, error) {
	if unsupported != "" {
		return "", fmt.Errorf("%w: %s", ErrNoBouncer, unsupported)
	}
	path := o.Binary
	if path == "" {
		var err error
		if path, err = exec.LookPath("pgbouncer"); err != nil {
			path = "/usr/sbin/pgbouncer"
		}
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w: %w: apt-get install pgbouncer", ErrNoBouncer, err)
	}
	return path, nil
}
