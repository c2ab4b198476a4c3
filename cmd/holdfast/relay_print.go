package main

import (
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
)

// relayFlags are the flags that a command line may have, those of all commands first.
func relayFlags(k *kong.Context) iter.Seq[*kong.Flag] {
	return func(yield func(*kong.Flag) bool) {
		for _, path := range k.Path {
			for _, flag := range path.Flags {
				if !yield(flag) {
					return
				}
			}
		}
	}
}

func flagsByName(k *kong.Context) map[string]*kong.Flag {
	flags := map[string]*kong.Flag{}
	for flag := range relayFlags(k) {
		flags[flag.Name] = flag
	}
	return flags
}

// printConfig prints the settings as a file for --config, with where each is from. A password is not among them.
func (r *relayCmd) printConfig(p *program.Program, k *kong.Context) error {
	all := &yaml.Node{Kind: yaml.MappingNode}
	for flag := range relayFlags(k) {
		text := textOf(flag.Target.Interface())
		if slices.Contains(notInFile, flag.Name) || text == "" {
			continue
		}
		if flag.Name == "database-url" && program.HasPassword(text) {
			// It may not be in the file, so this is a comment.
			all.FootComment = "database-url has a password: " + r.origin(k, flag)
			continue
		}
		add(all, flag.Name, text, r.origin(k, flag))
	}
	if r.file != nil && len(r.file.databases) > 0 {
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, e := range r.file.databases {
			list.Content = append(list.Content, r.entry(p, e, flagsByName(k)))
		}
		all.Content = append(all.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: "databases"}, list)
	}
	encoder := yaml.NewEncoder(p.Out)
	encoder.SetIndent(2)
	if err := encoder.Encode(all); err != nil {
		return fmt.Errorf("print the settings: %w", err)
	}
	return encoder.Close()
}

// entry is a database with all settings that it has of its own or shares.
func (r *relayCmd) entry(p *program.Program, e databaseEntry, flags map[string]*kong.Flag) *yaml.Node {
	node := &yaml.Node{Kind: yaml.MappingNode}
	for _, pair := range [][2]string{{"name", e.name}, {"url", e.url.url}, {"url-file", e.url.file}, {"url-env", e.url.env}} {
		if pair[1] != "" {
			add(node, pair[0], pair[1], r.file.name)
		}
	}
	d := database{schema: p.Database.Schema, flags: r.Database}
	d.apply(e.flags, r.file.free, flags)
	for _, name := range perDatabase {
		from := "as above"
		if _, own := e.flags[name]; own && r.file.free[name] {
			from = r.file.name
		}
		if text := textOf(reflect.ValueOf(d.fields()[name]).Elem().Interface()); text != "" {
			add(node, name, text, from)
		}
	}
	return node
}

// origin says what set a flag.
func (r *relayCmd) origin(k *kong.Context, flag *kong.Flag) string {
	if program.OnCommandLine(k, flag.Name) {
		return "command line"
	}
	for _, variable := range flag.Envs {
		if isSet(variable) {
			return variable
		}
	}
	if r.file != nil {
		if _, ok := r.file.values[flag.Name]; ok {
			return r.file.name
		}
	}
	return "default"
}

// textOf is a value as the file may have it, "" for one that is not set.
func textOf(value any) string {
	switch v := value.(type) {
	case []string:
		return strings.Join(v, ",")
	case map[string]string:
		var pairs []string
		for _, name := range slices.Sorted(maps.Keys(v)) {
			pairs = append(pairs, name+"="+v[name])
		}
		return strings.Join(pairs, ";")
	case int, int64:
		if text := fmt.Sprint(v); text != "0" {
			return text
		}
		return ""
	}
	return fmt.Sprint(value)
}

func add(to *yaml.Node, key, value, from string) {
	text := new(yaml.Node)
	text.SetString(value)
	text.Tag = "" // a number is one, and not a text in quotes
	text.LineComment = from
	to.Content = append(to.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: key}, text)
}
