package rdmanet_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/internal/race"
)

// sums is a server that tells the checksum of what it is sent, and sends with a
// checksum as many bytes as it is asked for.
func sums(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			h := sha256.New()
			n, err := io.Copy(h, r.Body)
			fmt.Fprint(w, n, " ", hex.EncodeToString(h.Sum(nil)), " ", err)
			return
		}
		var size int64
		fmt.Sscan(r.URL.Query().Get("size"), &size)
		b, sum := body(size)
		w.Header().Set("Trailer", "Sum")
		_, err := io.Copy(w, b)
		assert.NoError(t, err)
		w.Header().Set("Sum", sum())
	})
}

// upload and download move a body of n bytes and compare its checksums.
func upload(t *testing.T, c *http.Client, url string, n int64) {
	b, sum := body(n)
	req, err := http.NewRequest(http.MethodPost, url, b)
	if !assert.NoError(t, err) {
		return
	}
	if n%2 == 0 { // else chunked
		req.ContentLength = n
	}
	resp, err := c.Do(req)
	if !assert.NoError(t, err) {
		return
	}
	defer resp.Body.Close()
	var answer bytes.Buffer
	_, err = answer.ReadFrom(resp.Body)
	assert.NoError(t, err)
	assert.Equal(t, fmt.Sprint(n, " ", sum(), " <nil>"), answer.String())
}

func download(t *testing.T, c *http.Client, url string, n int64) {
	resp, err := c.Get(fmt.Sprint(url, "/?size=", n))
	if !assert.NoError(t, err) {
		return
	}
	defer resp.Body.Close()
	h := sha256.New()
	got, err := io.Copy(h, resp.Body)
	assert.NoError(t, err)
	assert.Equal(t, n, got)
	assert.Equal(t, resp.Trailer.Get("Sum"), hex.EncodeToString(h.Sum(nil)))
}

// TestHTTPLossy: large and small bodies, up and down, on several connections at once.
func TestHTTPLossy(t *testing.T) {
	large := int64(8 << 20)
	small := 100
	switch {
	case long:
		large, small = 64<<20, 1000
	case race.Enabled:
		large, small = 1<<20, 10
	}
	for _, o := range badNetworks {
		t.Run(lossName(o), func(t *testing.T) {
			eachMode(t, func(t *testing.T, m httpMode) {
				s := newSim(t, 1, o)
				l := s.listen()
				_, client := m.serve(t, l, sums(t), nil)
				client.Transport.(*http.Transport).DialContext = s.dialer().DialContext
				start := time.Now()
				upload(t, client, m.url(l), large)
				up := time.Since(start)
				start = time.Now()
				download(t, client, m.url(l), large)
				down := time.Since(start)
				start = time.Now()
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						for i := range int64(small) {
							upload(t, client, m.url(l), i*i)
							download(t, client, m.url(l), i*i)
						}
					})
				}
				within(t, time.Minute, "small bodies", wg.Wait)
				st := s.Stats()
				require.NotZero(t, st.Lost)
				t.Logf("up %.1f MB/s, down %.1f MB/s, %.0f small ones a second; %d packets, %d lost",
					float64(large)/up.Seconds()/1e6, float64(large)/down.Seconds()/1e6,
					float64(8*small)/time.Since(start).Seconds(), st.Sent, st.Lost)
			})
		})
	}
}
