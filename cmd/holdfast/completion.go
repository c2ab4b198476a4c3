package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/holdfast-go/holdfast/cmd/holdfast/internal/program"
)

// This file completes command lines in shells. A shell asks this program: its script has no list of commands that could be old.

// completionCmd prints what a shell has to run once.
type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// completeCmd answers a shell. It is hidden: people have no use for it.
type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

var completionScripts = map[string]string{
	"bash": `# holdfast completion for bash
complete -o default -C 'holdfast complete' holdfast
`,
	"zsh": `# holdfast completion for zsh
autoload -U +X bashcompinit && bashcompinit
complete -o default -C 'holdfast complete' holdfast
`,
	"fish": `# holdfast completion for fish
function __holdfast_complete
    set -lx COMP_LINE (commandline -cp)
    holdfast complete
end
complete -c holdfast -a '(__holdfast_complete)'
`,
}

func (c *completionCmd) Run(p *program.Program) error {
	_, err := fmt.Fprint(p.Out, completionScripts[c.Shell])
	return err
}

// Run prints what may come next. The shell gives the line and the place of the cursor in variables, and as arguments the program, the
// word to be completed and the one before. A shell that takes "=" for the end of a word completes only what comes after it.
func (c *completeCmd) Run(p *program.Program) error {
	line := os.Getenv("COMP_LINE")
	if point, err := strconv.Atoi(os.Getenv("COMP_POINT")); err == nil && point >= 0 && point < len(line) {
		line = line[:point]
	}
	cut := ""
	if fields := strings.Fields(line); len(c.Words) > 1 && len(fields) > 0 && !strings.HasSuffix(line, " ") {
		cut = strings.TrimSuffix(fields[len(fields)-1], c.Words[1])
	}
	for _, word := range candidates(p.Model, line) {
		fmt.Fprintln(p.Out, strings.TrimPrefix(word, cut))
	}
	return nil
}

// candidates are the words that may stand where a command line ends: commands, flags, or values of a flag that has few. It is empty
// where anything may stand: a name, a file, an id.
func candidates(app *kong.Application, line string) []string {
	words := strings.Fields(line)
	last := ""
	if line != "" && !strings.HasSuffix(line, " ") && len(words) > 0 {
		last, words = words[len(words)-1], words[:len(words)-1]
	}
	if len(words) == 0 {
		return nil // the program's own name
	}
	node, value := walk(app.Node, words[1:])
	var all []string
	switch name, _, assigned := strings.Cut(last, "="); {
	case value != nil:
		all = value.EnumSlice()
	case assigned && strings.HasPrefix(last, "--"):
		if f := flagOf(node, name); f != nil {
			for _, word := range f.EnumSlice() {
				if word != "" {
					all = append(all, name+"="+word)
				}
			}
		}
	default:
		all = next(node)
	}
	all = slices.DeleteFunc(all, func(word string) bool {
		return word == "" || !strings.HasPrefix(word, last) || last == "" && strings.HasPrefix(word, "-")
	})
	slices.Sort(all)
	return all
}

// walk follows the words of a line to the command that it names. value is the flag whose value comes next; nil if something else
// does.
func walk(node *kong.Node, words []string) (at *kong.Node, value *kong.Flag) {
	for _, word := range words {
		if value != nil {
			value = nil
			continue
		}
		if strings.HasPrefix(word, "-") {
			if f := flagOf(node, word); f != nil && !f.IsBool() && !strings.Contains(word, "=") {
				value = f
			}
			continue
		}
		if child := childOf(node, word); child != nil && commandOf(child) != "help" { // whose arguments are commands
			node = child
		}
	}
	return node, value
}

func childOf(node *kong.Node, word string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == word || slices.Contains(child.Aliases, word) {
			return child
		}
	}
	return nil
}

// flagOf is the flag of that name of a command, or of one that it is part of.
func flagOf(node *kong.Node, word string) *kong.Flag {
	for _, group := range node.AllFlags(false) {
		for _, f := range group {
			if "--"+f.Name == word {
				return f
			}
		}
	}
	return nil
}

// next are the commands, flags and values of arguments that may come next.
func next(node *kong.Node) []string {
	var all []string
	for _, child := range node.Children {
		if !child.Hidden {
			all = append(all, child.Name)
		}
	}
	for _, group := range node.AllFlags(true) {
		for _, f := range group {
			if f.Name != "help" && slices.Contains(withoutDatabase, commandOf(node)) {
				continue
			}
			all = append(all, "--"+f.Name)
		}
	}
	for _, arg := range node.Positional {
		all = append(all, arg.EnumSlice()...)
	}
	return all
}
