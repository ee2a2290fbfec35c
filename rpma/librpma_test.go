package rpma_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exported are the names of this package's documentation: "Conn", "Conn.Post" for methods and fields.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	names := make(map[string]bool)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		require.NoError(t, err)
		for _, decl := range f.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					of := d.Recv.List[0].Type
					if p, ok := of.(*ast.StarExpr); ok {
						of = p.X
					}
					name = of.(*ast.Ident).Name + "." + name
				}
				names[name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch s := spec.(type) {
					case *ast.ValueSpec:
						for _, n := range s.Names {
							names[n.Name] = true
						}
					case *ast.TypeSpec:
						names[s.Name.Name] = true
						if st, ok := s.Type.(*ast.StructType); ok {
							for _, field := range st.Fields.List {
								for _, n := range field.Names {
									names[s.Name.Name+"."+n.Name] = true
								}
							}
						}
					}
				}
			}
		}
	}
	return names
}

// TestLibrpmaTable: docs/librpma.md has each of librpma's functions once, and says what there is in Go, or why there is nothing.
func TestLibrpmaTable(t *testing.T) {
	list, err := os.ReadFile("testdata/librpma.txt")
	require.NoError(t, err)
	want := strings.Fields(string(list))
	require.Len(t, want, 85) // functions, and the overview
	b, err := os.ReadFile("../docs/librpma.md")
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^\\| `((?:lib)?rpma\\w*)` \\|([^|]*)\\|([^|]*)\\|$").FindAllStringSubmatch(string(b), -1)
	ours := exported(t)
	require.Contains(t, ours, "Device.ODP")
	name := regexp.MustCompile("^`([A-Z][A-Za-z.]*)`$")
	var have []string
	for _, r := range rows {
		have = append(have, r[1])
		equivalent, remark := strings.TrimSpace(r[2]), strings.TrimSpace(r[3])
		switch {
		case equivalent == "none":
			assert.NotEmpty(t, remark, "%s: why is there nothing in Go?", r[1])
		case r[1] == "librpma":
			assert.Contains(t, equivalent, "package documentation")
		default:
			for e := range strings.SplitSeq(equivalent, ", ") {
				m := name.FindStringSubmatch(e)
				if assert.NotNil(t, m, "%s: %q is no name", r[1], e) {
					assert.True(t, ours[m[1]] && ast.IsExported(m[1]), "%s: there is no %s", r[1], m[1])
				}
			}
		}
	}
	assert.ElementsMatch(t, want, have)
}
