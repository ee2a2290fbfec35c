// Package docs has tests of the documentation alone: what the pages show is code that is compiled, their commands were run, what they
// name exists, and each type has an example.
package docs

import (
	"cmp"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	root     = ".."
	commands = "docs/commands.md"
)

// pages are the texts of the documentation, by their paths below the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(root + "/docs/*.md")
	require.NoError(t, err)
	texts := make(map[string]string)
	for _, f := range append(files, root+"/README.md") {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		name, err := filepath.Rel(root, f)
		require.NoError(t, err)
		texts[name] = string(b)
	}
	return texts
}

// everyPage is pages, and those beside the code.
func everyPage(t *testing.T) map[string]string {
	t.Helper()
	texts := pages(t)
	for _, dir := range []string{"bench", "cmd", "examples", "metrics", "test"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".md" {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			texts[name] = string(b)
			return err
		}))
	}
	return texts
}

// block is a fenced or indented block of a page.
type block struct {
	line  int    // of its first one
	lang  string // "go"; "" if it is indented
	from  string // the file that a comment before it names
	lines []string
}

var from = regexp.MustCompile(`^<!-- from (\S+) -->$`)

// blocks finds them. A list's continuation lines are indented by two.
func blocks(text string) (all []block) {
	var open *block
	source, blank := "", true
	for i, l := range strings.Split(text, "\n") {
		indented := strings.HasPrefix(l, "    ")
		if open != nil && open.lang == "" && l != "" && !indented {
			all = append(all, *open)
			open = nil // and the line is one of text
		}
		switch {
		case open != nil && open.lang == "":
			open.lines = append(open.lines, strings.TrimPrefix(l, "    "))
		case open != nil && strings.HasPrefix(l, "```"):
			all = append(all, *open)
			open = nil
		case open != nil:
			open.lines = append(open.lines, l)
		case strings.HasPrefix(l, "```"):
			open = &block{line: i + 2, lang: cmp.Or(strings.TrimPrefix(l, "```"), "text"), from: source}
		case blank && indented:
			open = &block{line: i + 1, lines: []string{l[4:]}}
		}
		source = ""
		if m := from.FindStringSubmatch(l); m != nil {
			source = m[1]
		}
		blank = l == ""
	}
	if open != nil {
		all = append(all, *open)
	}
	return all
}

// words are the lines with their blanks made alike, without those that are empty.
func words(lines []string) (all []string) {
	for _, l := range lines {
		if w := strings.Join(strings.Fields(l), " "); w != "" {
			all = append(all, w)
		}
	}
	return all
}

// TestCode: a block of Go is from a file that the comment before it names. It may be of several pieces with an empty line between, which
// are there in that order.
func TestCode(t *testing.T) {
	n := 0
	for page, text := range pages(t) {
		for _, b := range blocks(text) {
			if b.lang != "go" {
				continue
			}
			n++
			if !assert.NotEmpty(t, b.from, "%s:%d: no comment \"from FILE\" before this block", page, b.line) {
				continue
			}
			source, err := os.ReadFile(filepath.Join(root, b.from))
			if !assert.NoError(t, err, "%s:%d", page, b.line) {
				continue
			}
			lines := words(strings.Split(string(source), "\n"))
			for piece := range strings.SplitSeq(strings.Join(b.lines, "\n"), "\n\n") {
				p := words(strings.Split(piece, "\n"))
				at := slices.IndexFunc(indices(lines, len(p)), func(i int) bool { return slices.Equal(lines[i:i+len(p)], p) })
				if !assert.GreaterOrEqual(t, at, 0, "%s:%d: not in %s, or not in this order:\n%s", page, b.line, b.from, piece) {
					break
				}
				lines = lines[at+len(p):]
			}
		}
	}
	assert.Greater(t, n, 15, "blocks")
}

// indices are those at which a piece of n lines may begin.
func indices(lines []string, n int) (is []int) {
	for i := 0; i+n <= len(lines); i++ {
		is = append(is, i)
	}
	return is
}

// inline begins what is a command in a line of text.
var inline = regexp.MustCompile("`((?:make|go|cd|rdmanet|mckey|docker|modprobe|rdma|apt-get|ip|sysctl|tcpdump|tshark|ss|sh) [^`]+)`")

// commandsOf are the commands of a page, without comments, environment and continuation.
func commandsOf(text string) (all []string) {
	for _, b := range blocks(text) {
		if b.lang != "" && b.lang != "sh" || strings.HasPrefix(b.lines[0], "replace ") { // of a go.mod
			continue
		}
		for _, l := range b.lines {
			l, _, _ = strings.Cut(l, " #")
			if l = strings.TrimSpace(l); l != "" && !strings.HasPrefix(l, "#") {
				all = append(all, l)
			}
		}
	}
	for _, m := range inline.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// TestCommands: docs/commands.md says of each command of the pages how it was run, and has no others.
func TestCommands(t *testing.T) {
	texts := pages(t)
	said := make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\|$").FindAllStringSubmatch(texts[commands], -1) {
		assert.False(t, said[m[1]], "%s: %s is there twice", commands, m[1])
		said[m[1]] = true
		assert.Regexp(t, "^(`[a-z][a-zA-Z0-9_/-]*\\.Test[A-Z]\\w*`|seen, |\\.ci/run|not run: )", m[2], "%s: how was this run: %s", commands, m[1])
	}
	shown := make(map[string]bool)
	for page, text := range texts {
		if page == commands || page == "docs/architecture.md" || page == "docs/field-reports.md" { // what is built and tested, not what to do
			continue
		}
		for _, c := range commandsOf(text) {
			shown[c] = true
			assert.True(t, said[c], "%s: not in %s, which says how it was run: %s", page, commands, c)
		}
	}
	for c := range said {
		assert.True(t, shown[c], "%s: on no page: %s", commands, c)
	}
	assert.Greater(t, len(shown), 40, "commands")
}

// TestNames: tests that a page names exist.
func TestNames(t *testing.T) {
	name := regexp.MustCompile("`([a-z][a-zA-Z0-9_/-]*)\\.((?:Test|Fuzz)[A-Z]\\w*)`")
	sources := make(map[string]string) // of tests, by directory
	n := 0
	for page, text := range everyPage(t) {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			n++
			source, ok := sources[m[1]]
			if !ok {
				files, err := filepath.Glob(filepath.Join(root, m[1], "*_test.go"))
				require.NoError(t, err)
				for _, f := range files {
					b, err := os.ReadFile(f)
					require.NoError(t, err)
					source += string(b)
				}
				sources[m[1]] = source
			}
			found := strings.Contains(source, "\nfunc "+m[2]+"(") // assert.Contains would print them all
			assert.True(t, found, "%s: there is no %s in %s", page, m[2], m[1])
		}
	}
	assert.Greater(t, n, 100, "names")
}

// TestTargets: what is called by make exists.
func TestTargets(t *testing.T) {
	b, err := os.ReadFile(root + "/Makefile")
	require.NoError(t, err)
	for page, text := range pages(t) {
		for _, m := range regexp.MustCompile("(?m)(?:^ {4}|`)make ([a-z0-9-]+)").FindAllStringSubmatch(text, -1) {
			assert.True(t, regexp.MustCompile("(?m)^"+m[1]+":").Match(b), "%s: there is no make %s", page, m[1])
		}
	}
}

// TestLinks: links within the project lead to files, and to headings of pages.
func TestLinks(t *testing.T) {
	texts := everyPage(t)
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	n := 0
	for page, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			n++
			path, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if path != "" {
				to = filepath.Join(filepath.Dir(page), path)
				_, err := os.Stat(filepath.Join(root, to))
				assert.NoError(t, err, "%s: %s", page, m[1])
			}
			if target, ok := texts[to]; anchor != "" && assert.True(t, ok, "%s: %s: an anchor of what is no page", page, m[1]) {
				assert.Contains(t, anchors(target), anchor, "%s: %s", page, m[1])
			}
		}
	}
	assert.Greater(t, n, 50, "links")
}

// anchors are those that GitHub makes of headings.
func anchors(text string) (all []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		a := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
				return r
			}
			return -1
		}, strings.ToLower(m[1]))
		all = append(all, a)
	}
	return all
}

// TestFigures: those of README's table are medians of the run that it names.
func TestFigures(t *testing.T) {
	text := pages(t)["README.md"]
	run := regexp.MustCompile(`\(\[bench/results\]\((bench/results/[^)]+\.md)\)\)`).FindStringSubmatch(text)
	require.NotNil(t, run, "README.md names no run")
	results, err := os.ReadFile(filepath.Join(root, run[1]))
	require.NoError(t, err)
	n := 0
	for row := range strings.Lines(text) {
		if !strings.HasPrefix(row, "  | ") {
			continue
		}
		for _, m := range regexp.MustCompile(`([0-9.]+) (?:µs|MiB/s)\b`).FindAllStringSubmatch(row, -1) {
			n++
			assert.Contains(t, string(results), "| "+m[1]+" (", "README.md: not in %s: %s", run[1], strings.TrimSpace(row))
		}
	}
	assert.Greater(t, n, 8, "figures")
}

// TestExamples: each exported type has an example of its own, of a method, or of a function that makes it.
func TestExamples(t *testing.T) {
	for _, dir := range []string{"rdmanet", "rpma", "rpma/pmem", "metrics/prometheus"} {
		pkg, err := build.ImportDir(filepath.Join(root, dir), 0)
		require.NoError(t, err)
		fset := token.NewFileSet()
		var files []*ast.File
		for _, name := range slices.Concat(pkg.GoFiles, pkg.CgoFiles, pkg.TestGoFiles, pkg.XTestGoFiles) {
			f, err := parser.ParseFile(fset, filepath.Join(root, dir, name), nil, parser.ParseComments)
			require.NoError(t, err)
			files = append(files, f)
		}
		d, err := doc.NewFromFiles(fset, files, pkg.Name)
		require.NoError(t, err)
		assert.Positive(t, len(d.Types)+len(d.Examples), "%s: there is no example", dir)
		for _, typ := range d.Types {
			has := len(typ.Examples) > 0
			for _, f := range slices.Concat(typ.Funcs, typ.Methods) {
				has = has || len(f.Examples) > 0
			}
			assert.True(t, has, "%s: there is no Example%s", dir, typ.Name)
		}
	}
}
