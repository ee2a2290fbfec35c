package packettable

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs/softroce/wire"
)

// TestRows: the table is whole. Each row has answers for each step, a deviation deviates and says why, and all opcodes of requests occur.
func TestRows(t *testing.T) {
	names := map[string]bool{}
	sent := map[wire.Opcode]bool{}
	for _, r := range Rows() {
		require.False(t, names[r.Name], "%s: twice", r.Name)
		names[r.Name] = true
		require.NotEmpty(t, r.Steps, r.Name)
		outcomes := []Outcome{r.Want}
		if d := r.Linux; d != nil {
			require.NotEmpty(t, d.Why, r.Name)
			require.NotEqual(t, r.Want, d.Outcome, "%s: no deviation", r.Name)
			if !d.Panic {
				outcomes = append(outcomes, d.Outcome)
			} else {
				require.True(t, reflect.DeepEqual(Outcome{}, d.Outcome), r.Name)
			}
		}
		for _, o := range outcomes {
			require.Len(t, o.Answers, len(r.Steps), r.Name)
			require.False(t, o.Dead && o.Open, r.Name)
		}
		for _, s := range r.Steps {
			for _, p := range s.Send {
				sent[p.Opcode] = true
				require.Equal(t, r.UD, p.Opcode.Service() == wire.ServiceUD, r.Name)
			}
		}
	}
	for op := range wire.RCAtomicWrite + 1 {
		require.True(t, sent[op] || !op.Known(), op)
	}
	require.True(t, sent[wire.UDSendOnly] && sent[wire.UDSendOnlyImm])
	require.Greater(t, len(names), 250)
}
