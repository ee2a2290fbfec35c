package prometheus

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The documentation names every metric, and it and the alerts name no other.
func TestDocumentation(t *testing.T) {
	exists := map[string]bool{}
	for _, d := range descs() {
		exists[regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d)[1]] = true
	}
	named := map[string]bool{}
	for _, file := range []string{"alerts.yml", "../../docs/operations.md"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile(`\brdmanet_\w+`).FindAllString(string(text), -1) {
			named[name] = true
			assert.True(t, exists[name], "%s: there is no metric %s", file, name)
		}
	}
	for name := range exists {
		assert.True(t, named[name], "docs/operations.md says nothing of %s", name)
	}
}

// Each alert has its reasons in the documentation.
func TestAlertsAreDocumented(t *testing.T) {
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	text, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	alerts := regexp.MustCompile(`(?m)^  - alert: (\w+)`).FindAllSubmatch(rules, -1)
	rows := regexp.MustCompile(`(?m)^\| (RDMA\w+) \|`).FindAllSubmatch(text, -1)
	require.NotEmpty(t, alerts)
	require.Len(t, rows, len(alerts))
	for i := range alerts {
		assert.Equal(t, string(alerts[i][1]), string(rows[i][1]))
	}
}
