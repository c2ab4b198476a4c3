package program

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ConnectionFlags are the flags by which every command finds the database.
type ConnectionFlags struct {
	DatabaseURL     string `help:"Connection string of the primary database, without a password. Defaults to what PGHOST or PGSERVICE says." env:"DATABASE_URL" placeholder:"URL"`
	DatabaseURLFile string `help:"File with the connection string, which may have a password." env:"DATABASE_URL_FILE" placeholder:"FILE"`
	Schema          string `help:"Postgres schema." default:"holdfast" env:"HOLDFAST_SCHEMA"`
}

// Given says which flags of the database are on the command line, and not in the environment.
type Given struct{ url, file bool }

// DatabaseURL is the connection string: from a flag, else from a variable; "" leaves it to Postgres' own variables. A
// password is not for the command line, which a list of processes shows to everybody.
func (p *Program) DatabaseURL() (string, error) {
	text, file := p.Database.DatabaseURL, p.Database.DatabaseURLFile
	switch g := p.Given; {
	case g.url && !g.file:
		file = ""
	case g.file && !g.url:
		text = ""
	}
	var found []error
	if p.Given.url && HasPassword(text) {
		found = append(found, errors.New("--database-url has a password, which every user of this machine can read: it must be without one: "+
			"set DATABASE_URL, --database-url-file, PGPASSWORD or PGPASSFILE"))
	}
	if text != "" && file != "" {
		found = append(found, fmt.Errorf("--database-url-file is %s, and --database-url is set too: it must be one of them, also by DATABASE_URL_FILE and DATABASE_URL", file))
	}
	if len(found) > 0 {
		return "", UsageError{errors.Join(found...)}
	}
	if file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", UsageError{fmt.Errorf("--database-url-file is %s: it must be a file that can be read: %w", file, err)}
		}
		if text = strings.TrimSpace(string(content)); text == "" {
			return "", UsageError{fmt.Errorf("--database-url-file is %s, which is empty: it must have the connection string", file)}
		}
	}
	if text == "" && os.Getenv("PGHOST") == "" && os.Getenv("PGSERVICE") == "" {
		return "", errors.New("no database: set DATABASE_URL, PGHOST or PGSERVICE, or pass --database-url-file or --database-url")
	}
	return text, nil
}

// passwordSetting is a password in a connection string of the form name=value.
var passwordSetting = regexp.MustCompile(`(?i)(^|\s)(ssl)?password\s*=`)

// HasPassword says whether a connection string has a password. One that cannot be read may have one.
func HasPassword(text string) bool {
	if !strings.HasPrefix(text, "postgres://") && !strings.HasPrefix(text, "postgresql://") {
		return passwordSetting.MatchString(text)
	}
	u, err := url.Parse(text)
	if err != nil {
		return strings.Contains(text, "@")
	}
	if password, _ := u.User.Password(); password != "" {
		return true
	}
	for name := range u.Query() {
		if strings.EqualFold(name, "password") || strings.EqualFold(name, "sslpassword") {
			return true
		}
	}
	return false
}

// GivenBy says which of them a command line has.
func GivenBy(parsed *kong.Context) Given {
	return Given{OnCommandLine(parsed, "database-url"), OnCommandLine(parsed, "database-url-file")}
}

// OnCommandLine says whether a flag was given, not its variable.
func OnCommandLine(parsed *kong.Context, flag string) bool {
	for _, part := range parsed.Path {
		if part.Flag != nil && part.Flag.Name == flag && !part.Resolved {
			return true
		}
	}
	return false
}

// LazyPool connects to the database when it is first asked.
func (p *Program) LazyPool() (*pgxpool.Pool, error) {
	text, err := p.DatabaseURL()
	if err != nil {
		return nil, err
	}
	return OpenPool(p.Ctx, text)
}

// OpenPool makes a pool that connects to the database when it is first asked.
func OpenPool(ctx context.Context, text string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, errors.New("the database URL cannot be parsed: write it like postgres://user@host:5432/database") // pgx's error would show it
	}
	config.MaxConns = max(config.MaxConns, 8)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return pool, nil
}

// Pool is LazyPool for a database that answers.
func (p *Program) Pool() (*pgxpool.Pool, error) {
	pool, err := p.LazyPool()
	if err != nil {
		return nil, err
	}
	if err := Answers(p.Ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// Answers asks whether the database of a pool does.
func Answers(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		return fmt.Errorf("the database does not answer, check DATABASE_URL: %w", err)
	}
	return nil
}
