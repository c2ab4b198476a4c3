// Package pgserver runs a throwaway PostgreSQL for the examples, the benchmark and the tests.
//
// It never touches a server it did not start: each Start makes its own directory, its own
// cluster in it and its own port, and Stop removes all three. Nothing of it is linked into the
// library packages.
package pgserver

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

const (
	// defaultStartTimeout covers initdb and the first start, which take about a second, on a
	// machine that is busy with many other tests.
	defaultStartTimeout = 2 * time.Minute
	// defaultStopTimeout is how long a fast stop may take before it becomes an immediate one.
	defaultStopTimeout = 20 * time.Second
)

// Options says how a server is found and run. The zero value works.
type Options struct {
	// BinDir is the folder that holds initdb and postgres. Defaults to the first that is found:
	// PATH and pg_config, the usual places of packages, the download cache, then a download.
	BinDir string

	// Settings are lines of postgresql.conf, by name. They win over the defaults here, which
	// are max_connections=200, wal_level=replica and max_prepared_transactions=20. Durability is
	// the default: a test of logic asks for fsync=off itself, or uses NoSync.
	Settings map[string]string

	// Dir is an existing folder to make the server's own folder in. As root it must be one that
	// other users may enter. Defaults to the system's folder for temporary files.
	Dir string

	// Password is the superuser's. Defaults to a random one.
	Password string

	// StartTimeout bounds making the cluster and each start of it. Defaults to 2 min.
	StartTimeout time.Duration

	// StopTimeout bounds a fast stop before it is made an immediate one. Defaults to 20 s.
	StopTimeout time.Duration

	// NoDownload keeps Start off the network when no binaries are found. Defaults to false.
	NoDownload bool

	// repositoryURL, archive and downloadDir let a test serve a download of its own making, and
	// noBinaries lets it be on a machine that needs one.
	repositoryURL, downloadDir string
	archive                    *archive
	noBinaries                 bool
}

// NoSync is the Settings for tests of logic: commits outlive a crash of the server but not of
// the machine, which makes creating a database several times cheaper. The caller owns the map.
func NoSync() map[string]string {
	return map[string]string{"fsync": "off", "full_page_writes": "off"}
}

func (o Options) withDefaults() Options {
	settings := map[string]string{
		"max_connections":           "200",
		"wal_level":                 "replica",
		"max_prepared_transactions": "20",
	}
	maps.Copy(settings, o.Settings)
	o.Settings = settings
	if o.StartTimeout <= 0 {
		o.StartTimeout = defaultStartTimeout
	}
	if o.StopTimeout <= 0 {
		o.StopTimeout = defaultStopTimeout
	}
	return o
}

func (o Options) repository() string {
	if o.repositoryURL != "" {
		return o.repositoryURL
	}
	return repositoryURL
}

var settingName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

// reserved are the settings that the server's identity rests on; DSN would be wrong otherwise.
var reserved = []string{"port", "listen_addresses", "unix_socket_directories", "data_directory"}

func (o Options) validate() error {
	for name, value := range o.Settings {
		if !settingName.MatchString(name) || strings.ContainsAny(value, "\n\r\x00") {
			return fmt.Errorf("pgserver: Settings[%q] is %q: names are postgresql.conf names and values are one line", name, value)
		}
		if slices.Contains(reserved, name) {
			return fmt.Errorf("pgserver: Settings[%q] is chosen by Start and cannot be set", name)
		}
	}
	return nil
}

// confLines renders settings as lines of postgresql.conf, sorted so that a file is comparable.
func confLines(settings map[string]string) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return b.String()
}
