//go:build cgo

package rdmacore

import (
	"debug/elf"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/verbs"
)

// TestStartsAnywhere: this program needs neither library to start, and exports nothing that
// could take the place of a function in them.
func TestStartsAnywhere(t *testing.T) {
	f, err := elf.Open(os.Args[0])
	require.NoError(t, err)
	defer f.Close()
	libs, err := f.ImportedLibraries()
	require.NoError(t, err)
	for _, l := range libs {
		assert.NotContains(t, l, "ibverbs")
		assert.NotContains(t, l, "rdmacm")
	}
	dynamic, err := f.DynamicSymbols()
	require.NoError(t, err)
	for _, s := range dynamic {
		assert.False(t, strings.HasPrefix(s.Name, "ibv_") || strings.HasPrefix(s.Name, "_ibv_") || strings.HasPrefix(s.Name, "rdma_"), s.Name)
	}
	all, err := f.Symbols()
	if err != nil {
		return // stripped
	}
	hidden := 0
	for _, s := range all {
		if strings.HasPrefix(s.Name, "ibv_") || strings.HasPrefix(s.Name, "rdma_") {
			hidden++
			assert.Equal(t, elf.STV_HIDDEN, elf.ST_VISIBILITY(s.Other), s.Name)
			assert.NotEqual(t, elf.SHN_UNDEF, s.Section, s.Name)
		}
	}
	if why, _ := coreLoad(); why != noHeaders {
		assert.Greater(t, hidden, 40)
	}
}

func TestLoadErrors(t *testing.T) {
	require.NoError(t, loadError(0, ""))
	for why, want := range map[int]string{
		noHeaders:    "apt-get install libibverbs-dev librdmacm-dev, then build again with go build -a",
		noLibibverbs: "the words: apt-get install libibverbs1 ibverbs-providers librdmacm1",
		noLibrdmacm:  "the words: apt-get install librdmacm1",
		noSymbol:     "too old, it lacks the words: upgrade",
	} {
		require.ErrorContains(t, loadError(why, "the words"), want)
	}
}

// TestSlots: places come free with a completion at or behind them, and IDs come back.
func TestSlots(t *testing.T) {
	for _, limit := range []int{1, 2, 3, 16, 100} {
		var s slots
		s.init(kindSend, limit)
		s.setBase(77, 5)
		s.posted = 1<<24 - 40 // the place wraps around on the way
		s.done.Store(s.posted)
		user := uint64(1000)
		var out []uint64 // IDs that the driver has
		first := user
		for round := range 200 {
			for n := 0; s.room() > 0 && n < 1+round%7; n++ {
				out = append(out, s.put(user))
				require.EqualValues(t, 77, out[len(out)-1]>>indexShift&indexMask)
				user++
			}
			require.LessOrEqual(t, len(out), limit)
			if round%3 == 0 && len(out) > 1 {
				out = out[:len(out)-1] // the driver did not take the last one
				s.back(1)
				user--
			}
			k := (round % 5) % len(out) // signaled: it and those before it are done
			require.Equal(t, first+uint64(k), s.free(out[k]))
			first += uint64(k) + 1
			out = out[k+1:]
			require.Equal(t, limit-len(out), s.room())
		}
	}
}

// TestTable: numbers are found, and not by those who had them before.
func TestTable(t *testing.T) {
	var tab table
	q := &qp{}
	q.sq.init(kindSend, 4)
	q.rq.init(kindRecv, 4)
	require.True(t, tab.add(q))
	id := q.sq.put(9)
	require.Same(t, q, tab.find(id))
	require.Same(t, q, tab.find(q.rq.put(9)))
	tab.remove(q)
	require.Nil(t, tab.find(id))
	seen := map[uint32]bool{q.index: true}
	for range 5000 {
		r := &qp{}
		r.sq.init(kindSend, 1)
		require.True(t, tab.add(r))
		seen[r.index] = true
		require.Nil(t, tab.find(id), "its number has another owner, or none")
		require.Same(t, r, tab.find(r.sq.put(1)))
		tab.remove(r)
	}
	require.Less(t, len(seen), 3000, "numbers are used again")
	require.Nil(t, tab.find(kindSend|indexMask<<indexShift))
}

// TestCheckSend: requests that are wrong on their face never reach the driver.
func TestCheckSend(t *testing.T) {
	d := &device{name: "fake0", maxMsg: 1 << 20}
	q := &qp{dev: d, typ: verbs.RC, caps: verbs.QPCap{MaxSendSGE: 2, MaxInline: 16}}
	sge := func(n uint32) []verbs.SGE { return []verbs.SGE{{Length: n}} }
	for what, c := range map[string]struct {
		wr   verbs.SendWR
		want error
	}{
		"send":           {verbs.SendWR{Op: verbs.OpSend, SGL: sge(1 << 20)}, nil},
		"too long":       {verbs.SendWR{Op: verbs.OpSend, SGL: sge(1<<20 + 1)}, syscall.EMSGSIZE},
		"inline":         {verbs.SendWR{Op: verbs.OpWrite, Inline: make([]byte, 16)}, nil},
		"inline long":    {verbs.SendWR{Op: verbs.OpWrite, Inline: make([]byte, 17)}, syscall.EINVAL},
		"entries":        {verbs.SendWR{Op: verbs.OpSend, SGL: make([]verbs.SGE, 3)}, syscall.EINVAL},
		"READ unwanted":  {verbs.SendWR{Op: verbs.OpRead, SGL: sge(8)}, syscall.EINVAL},
		"no atomics":     {verbs.SendWR{Op: verbs.OpFetchAdd, SGL: sge(8)}, errors.ErrUnsupported},
		"opcode 0":       {verbs.SendWR{}, errors.ErrUnsupported},
		"unknown opcode": {verbs.SendWR{Op: 200}, errors.ErrUnsupported},
		"FLUSH":          {verbs.SendWR{Op: verbs.OpFlush}, errors.ErrUnsupported},
	} {
		if err := q.checkSend(&c.wr); c.want == nil {
			require.NoError(t, err, what)
		} else {
			require.ErrorIs(t, err, c.want, what)
		}
	}
	d.attr.atomics, q.readDepth = true, 1
	require.NoError(t, q.checkSend(&verbs.SendWR{Op: verbs.OpRead}))
	require.NoError(t, q.checkSend(&verbs.SendWR{Op: verbs.OpFetchAdd, SGL: sge(8)}))
	require.ErrorIs(t, q.checkSend(&verbs.SendWR{Op: verbs.OpFetchAdd, SGL: sge(7)}), syscall.EINVAL)
}
