package ibcm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDest(t *testing.T) {
	for _, c := range capturedMADs(t) {
		d, ok := ParseDest(c.mad)
		require.True(t, ok)
		_, m, err := Decode(c.mad)
		require.NoError(t, err)
		want := Dest{Attr: m.Attr()}
		switch m := m.(type) {
		case *REQ:
			want.ServiceID = m.ServiceID
		case *SIDRREQ:
			want.ServiceID = m.ServiceID
		case *SIDRREP:
			want.CommID = m.RequestID
		case *MRA:
			want.CommID = m.RemoteCommID
		case *REJ:
			want.CommID = m.RemoteCommID
		case *REP:
			want.CommID = m.RemoteCommID
		case *RTU:
			want.CommID = m.RemoteCommID
		case *DREQ:
			want.CommID = m.RemoteCommID
		case *DREP:
			want.CommID = m.RemoteCommID
		}
		require.Equal(t, want, d)
		require.Equal(t, want.ServiceID != 0, d.Service())
	}
	m := &REJ{LocalCommID: 5, Reason: ReasonTimeout, MessageRejected: AboutOther, RejectedInfoLength: 8}
	m.ARI[ariService+7] = 9
	d, ok := ParseDest(Encode(NewHeader(1, m), m)[:])
	require.True(t, ok)
	require.Equal(t, Dest{Attr: AttrREJ, ServiceID: 9}, d)
	m.RemoteCommID = 7
	d, _ = ParseDest(Encode(NewHeader(1, m), m)[:])
	require.Equal(t, Dest{Attr: AttrREJ, CommID: 7}, d)

	good := capturedMAD(t, "roce-rping-v4:3").mad
	for _, b := range [][]byte{nil, good[:255], change(good, 1, 3), change(good, 16, 0, 0x19), change(good, 16, 1, 0x10)} {
		_, ok := ParseDest(b)
		require.False(t, ok)
	}
}
