package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
)

// relayFile is what the file of --config says. Its keys are the names of flags, and "databases".
//
// It is the kong.Resolver of the relay's flags: kong asks it for each flag that is not on the command line. A variable goes
// before the file, so it has no answer for a flag whose variable is set.
type relayFile struct {
	name      string
	values    map[string]string // by flag
	databases []databaseEntry
	problems  []error

	// free are the flags that neither the command line nor the environment has set. An entry of databases may set only those.
	free map[string]bool
}

// databaseEntry is an entry of databases.
type databaseEntry struct {
	name string
	url  connectionSource

	// flags are what the entry says instead of the flags of the same name.
	flags map[string]string
}

// connectionSource says where a connection string is. One of the three is set.
type connectionSource struct{ url, file, env string }

// perDatabase are the flags that an entry of databases may have.
var perDatabase = []string{"schema", "lease", "batch-size", "tenant-separator", "hold-key", "dead-letter-topic", "memory-budget"}

// notInFile are flags of the command line alone.
var notInFile = []string{"config", "print-config", "help"}

// readRelayFile reads a file. What is wrong with it is in problems: all of it, each with its line.
func readRelayFile(name string, flags map[string]*kong.Flag) *relayFile {
	f := &relayFile{name: name, values: map[string]string{}, free: map[string]bool{}}
	text, err := os.ReadFile(name)
	if err != nil {
		f.problems = append(f.problems, fmt.Errorf("--config is %s: it must be a file that can be read: %w", name, err))
		return f
	}
	f.parse(text, flags)
	return f
}

func (f *relayFile) parse(text []byte, flags map[string]*kong.Flag) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return // nothing but comments
	case err != nil:
		f.problems = append(f.problems, fmt.Errorf("%s is no YAML: %w", f.name, err))
		return
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		f.problems = append(f.problems, fmt.Errorf("%s has a second document: it must have one", f.name))
	}
	f.each(document.Content[0], "the file", func(key string, value *yaml.Node) {
		flag := flags[key]
		switch {
		case key == "databases":
			f.readDatabases(value, flags)
		case flag == nil || slices.Contains(notInFile, key):
			f.wrong(value, "%s is no setting: it must be the name of a flag of holdfast relay, or databases", key)
		case key == "database-url":
			if text, ok := f.text(key, value); ok && f.withoutPassword(key, text, value) {
				f.values[key] = text
			}
		default:
			if text, ok := f.checked(key, value, flag); ok {
				f.values[key] = text
			}
		}
	})
}

func (f *relayFile) readDatabases(list *yaml.Node, flags map[string]*kong.Flag) {
	if list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		f.wrong(list, "databases has no entry: it must be a list of databases, each with a name and a url-file")
		return
	}
	for _, node := range list.Content {
		e := databaseEntry{flags: map[string]string{}}
		f.each(node, "an entry of databases", func(key string, value *yaml.Node) {
			switch key {
			case "name":
				e.name, _ = f.text(key, value)
			case "url":
				if text, ok := f.text(key, value); ok && f.withoutPassword(key, text, value) {
					e.url.url = text
				}
			case "url-file":
				e.url.file, _ = f.text(key, value)
			case "url-env":
				e.url.env, _ = f.text(key, value)
			default:
				if !slices.Contains(perDatabase, key) {
					f.wrong(value, "%s is no setting of a database: it must be name, url-file, url-env, url, %s", key, strings.Join(perDatabase, ", "))
				} else if text, ok := f.checked(key, value, flags[key]); ok {
					e.flags[key] = text
				}
			}
		})
		if node.Kind != yaml.MappingNode {
			continue
		}
		switch {
		case !validName(e.name):
			f.wrong(node, "name is %q: it must be 1 to 63 letters, digits, dots, dashes or underscores", e.name)
		case slices.ContainsFunc(f.databases, func(other databaseEntry) bool { return other.name == e.name }):
			f.wrong(node, "name is %q twice: it must be a name for each database", e.name)
		}
		given := 0
		for _, from := range []string{e.url.url, e.url.file, e.url.env} {
			if from != "" {
				given++
			}
		}
		if given != 1 {
			f.wrong(node, "database %s has %d of url-file, url-env and url: it must have one", e.name, given)
		}
		f.databases = append(f.databases, e)
	}
}

// validName says whether a database may be called so: its name is a label of metrics.
func validName(name string) bool {
	return name != "" && len(name) <= 63 && strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789.-_") == ""
}

// each calls f for each pair of a mapping, and refuses a key that is there twice.
func (f *relayFile) each(node *yaml.Node, what string, do func(key string, value *yaml.Node)) {
	if node.Kind != yaml.MappingNode {
		f.wrong(node, "%s must be a mapping of names to values", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i].Value, node.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if seen[key] {
			f.wrong(node.Content[i], "%s is there twice: it must be there once", key)
			continue
		}
		seen[key] = true
		do(key, value)
	}
}

// text is a value that is one word or a list of them, which are then joined by commas.
func (f *relayFile) text(key string, value *yaml.Node) (string, bool) {
	switch {
	case value.Kind == yaml.ScalarNode && value.Tag != "!!null" && value.Value != "":
		return value.Value, true
	case value.Kind == yaml.SequenceNode && len(value.Content) > 0:
		var words []string
		for _, word := range value.Content {
			if word.Kind != yaml.ScalarNode || word.Value == "" {
				f.wrong(word, "%s has an entry that is no text: it must be a list of texts", key)
				return "", false
			}
			words = append(words, word.Value)
		}
		return strings.Join(words, ","), true
	}
	f.wrong(value, "%s has no value: it must have one, or be left out", key)
	return "", false
}

// checked is a value that kong will take for a flag.
func (f *relayFile) checked(key string, value *yaml.Node, flag *kong.Flag) (string, bool) {
	text, ok := f.text(key, value)
	if !ok {
		return "", false
	}
	if value.Kind == yaml.SequenceNode && flag.Target.Kind() != reflect.Slice {
		f.wrong(value, "%s is a list: it must be one value", key)
		return "", false
	}
	if decode(flag, text, reflect.New(flag.Target.Type()).Elem()) != nil || flag.Enum != "" && !flag.EnumMap()[text] {
		f.wrong(value, "%s is %q: it must be %s", key, text, ruleOf(flag))
		return "", false
	}
	return text, true
}

// decode writes a text into a field of a flag's type.
func decode(flag *kong.Flag, text string, target reflect.Value) error {
	return flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: kong.Scan().PushTyped(text, kong.FlagValueToken)}, target)
}

// ruleOf says what the text of a flag must be.
func ruleOf(flag *kong.Flag) string {
	switch {
	case flag.Enum != "":
		return "one of " + strings.Join(slices.DeleteFunc(flag.EnumSlice(), func(s string) bool { return s == "" }), ", ")
	case flag.Target.Type() == reflect.TypeFor[time.Duration]():
		return "a duration, as 5s or 1m30s"
	case flag.Target.Kind() == reflect.Bool:
		return "true or false"
	case flag.Target.CanInt():
		return "a whole number"
	}
	return "a text"
}

func (f *relayFile) withoutPassword(key, text string, value *yaml.Node) bool {
	if program.HasPassword(text) {
		f.wrong(value, "%s has a password: it must be without one: put the connection string into a file of its own, and name that file", key)
		return false
	}
	return true
}

func (f *relayFile) wrong(at *yaml.Node, format string, args ...any) {
	f.problems = append(f.problems, fmt.Errorf("%s:%d: %s", f.name, at.Line, fmt.Sprintf(format, args...)))
}

// Validate implements kong.Resolver. Problems are said together with those of flags and variables, when the command runs.
func (*relayFile) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver.
func (f *relayFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if slices.ContainsFunc(flag.Envs, isSet) {
		return nil, nil
	}
	f.free[flag.Name] = true
	// The connection string and its file are one setting: a variable of the one goes before the other's line.
	if (flag.Name == "database-url" || flag.Name == "database-url-file") && (isSet("DATABASE_URL") || isSet("DATABASE_URL_FILE")) {
		return nil, nil
	}
	if text, ok := f.values[flag.Name]; ok {
		return text, nil
	}
	return nil, nil
}

func isSet(variable string) bool {
	_, ok := os.LookupEnv(variable)
	return ok
}
