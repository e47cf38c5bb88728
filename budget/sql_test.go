package budget_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// SQLite numbers parameters by their first appearance, PostgreSQL by their
// names: the two agree where each statement names $1, $2, … in order, once.
func TestParametersAppearInOrder(t *testing.T) {
	parameter := regexp.MustCompile(`\$(\d+)`)
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	statements := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING || !parameter.MatchString(literal.Value) {
				return true
			}
			statements++
			for i, match := range parameter.FindAllStringSubmatch(literal.Value, -1) {
				if match[1] != strconv.Itoa(i+1) {
					t.Errorf("%s: parameter %d is $%s in %s", fset.Position(literal.Pos()), i+1, match[1], literal.Value)
				}
			}
			return true
		})
	}
	if statements < 8 {
		t.Errorf("found %d statements with parameters; the package has at least 8", statements)
	}
}
