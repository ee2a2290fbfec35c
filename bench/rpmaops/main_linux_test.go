package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"regexp"
)

// With this variable set the test binary is the program.
const asProgram = "RPMAOPS_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestOnHost measures each case, shortly: each is in the table, with figures.
func TestOnHost(t *testing.T) {
	t.Setenv(asProgram, "1")
	t.Setenv("RDMANET_DEVICE", "softroce")
	dir := t.TempDir()
	o := &options{device: "softroce", rounds: 2, sample: 5 * time.Millisecond, dir: dir, pick: regexp.MustCompile(".")}
	if err := onHost(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*-rpma.md"))
	if err != nil || len(names) != 1 {
		t.Fatal(names, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range allCases() {
		line := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(c.name()) + ` (\| [0-9.]+ \([0-9.]+ to [0-9.]+\) ){4}\|$`)
		if !line.Match(b) {
			t.Errorf("no figures of %s in\n%s", c.name(), b)
		}
	}
	if n := strings.Count(string(b), "depth 32 |"); n != 12 {
		t.Errorf("%d cases of depth 32", n)
	}
}

// TestContests: what is compared with perftest is among the cases, and its columns are read.
func TestContests(t *testing.T) {
	line := strings.Fields("65536 1000 0.00 1234.56 0.019753")
	for _, x := range contests() {
		if _, err := caseNamed(x.c.name()); err != nil {
			t.Error(err)
		}
		for _, p := range x.perftest {
			if text, _ := p.read(line); text == "" {
				t.Error(p.name)
			}
		}
	}
	if _, err := caseNamed("nothing"); err == nil {
		t.Error("a case of no name")
	}
}
