package idempotency

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/idempotency/internal/kept"
)

func TestRoute_TheCommentsListTheHeadersThatAreStored(t *testing.T) {
	parsed, err := parser.ParseFile(token.NewFileSet(), "route.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if field, ok := n.(*ast.Field); ok && len(field.Names) == 1 {
			comments[field.Names[0].Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
		}
		return true
	})
	for name, headers := range map[string][]string{"CompleteHeaders": kept.DefaultHeaders, "ReplayHeaders": replayHeaders} {
		if list := "in addition to " + strings.Join(headers, ", ") + ". "; !strings.Contains(comments[name], list) {
			t.Errorf("the comment of Route.%s is %q: it must say %q", name, comments[name], list)
		}
	}
}
