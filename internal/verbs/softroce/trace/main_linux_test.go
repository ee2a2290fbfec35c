package trace

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(childEnv); what != "" {
		childMain(what)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
