// Package rules holds the project to its own rules: which package may import
// which, and how SQL is written.
package rules

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "llmproxy"

// mayImport is the import law: arrows only point down, and slices do not see
// one another.
var mayImport = map[string][]string{
	"cmd/llmproxy":    {"proxy", "report", "guard", "cache", "budget", "ledger", "store", "tokens", "sim"},
	"proxy":           {"cache", "budget", "ledger", "store", "tokens"},
	"report":          {"ledger", "store"},
	"cache":           {"store"},
	"budget":          {"store"},
	"ledger":          {"store"},
	"guard":           {"store"},
	"store":           {},
	"tokens":          {},
	"sim":             {},
	"store/storetest": {"store"},
	"proxy/proxytest": {},
}

// only names who alone may import a package from outside.
var only = map[string][]string{
	"github.com/mattn/go-sqlite3": {"store"},
	"github.com/spf13/viper":      {"cmd/llmproxy"},
	"github.com/spf13/cobra":      {"cmd/llmproxy"},
}

type listed struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) (pkgs []listed) {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); err == io.EOF {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestImportsOnlyPointDown(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module+"/")
		allowed, known := mayImport[name]
		if !known && !strings.HasPrefix(name, "test/") && !strings.HasPrefix(name, "tokens/") {
			t.Errorf("package %s has no place in the import law: add it to the table and to ARCHITECTURE.md", name)
		}
		for _, imported := range p.Imports {
			if ours, ok := strings.CutPrefix(imported, module+"/"); ok && known && !slices.Contains(allowed, ours) && !strings.HasPrefix(ours, name+"/") {
				t.Errorf("%s may not import %s", name, ours)
			}
			if who, restricted := only[imported]; restricted && !slices.Contains(who, name) {
				t.Errorf("%s imports %s, which only %v may", name, imported, who)
			}
			if name == "tokens" && (imported == "net" || imported == "os" || strings.HasPrefix(imported, "net/")) {
				t.Errorf("tokens imports %s, but does no I/O", imported)
			}
		}
	}
}

var sqlWord = regexp.MustCompile(`(?s)^\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b`)

// TestSQLParametersAscend: SQLite numbers $n by first appearance and PostgreSQL
// by n, so one text serves both only where first appearances ascend.
func TestSQLParametersAscend(t *testing.T) {
	parameter := regexp.MustCompile(`\$(\d+)`)
	found := 0
	err := filepath.WalkDir(root(t), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil || !sqlWord.MatchString(text) {
				return true
			}
			found++
			next := 1
			for _, m := range parameter.FindAllStringSubmatch(text, -1) {
				if n, _ := strconv.Atoi(m[1]); n == next {
					next++
				} else if n > next {
					t.Errorf("%s: parameter $%d stands where $%d is next in %.60q", path, n, next, text)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 20 {
		t.Errorf("only %d SQL texts found: does the pattern still match?", found)
	}
}

// TestNoPackageIsNamedAfterNothing keeps out names that say nothing.
func TestNoPackageIsNamedAfterNothing(t *testing.T) {
	for _, name := range []string{"config", "models", "types", "utils", "common", "middleware", "providers", "errors", "clock", "internal"} {
		if _, err := os.Stat(filepath.Join(root(t), name)); err == nil {
			t.Errorf("a package is named %s; name it after what it does", name)
		}
	}
}

// TestEveryDependencyIsExplained holds ARCHITECTURE.md to go.mod.
func TestEveryDependencyIsExplained(t *testing.T) {
	module, err := os.ReadFile(filepath.Join(root(t), "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root(t), "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	direct := regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(module), -1)
	if len(direct) < 10 {
		t.Fatalf("only %d direct dependencies found in go.mod", len(direct))
	}
	for _, m := range direct {
		parts := strings.Split(regexp.MustCompile(`/v\d+$`).ReplaceAllString(m[1], ""), "/")
		if name := parts[len(parts)-1]; !strings.Contains(string(text), name+"`") && !strings.Contains(string(text), "`x/"+name+"`") {
			t.Errorf("%s has no line in ARCHITECTURE.md that says why", m[1])
		}
	}
}
