package interop

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/go-rdma/rdma/test/interop/internal/peer"
)

// An unmodified python3 -m http.server, with what librspreload lets through.
func TestPythonServer(t *testing.T) {
	devices := []string{"softroce"} // TestPythonServerKeepAlive has more
	if long {
		devices = bothDevices
	}
	onDevices(t, devices, pythonHTTP)
}

func pythonHTTP(t *testing.T, w *world) {
	w.script(t, "mkdir -p /tmp/interop/www")
	args := []string{"httpget"}
	base := fmt.Sprintf("http://%v/", netip.AddrPortFrom(w.std.c.V4, 8000))
	for _, n := range []int64{0, 1, 70000, 3_000_000} {
		path, _ := w.file(t, n)
		w.script(t, fmt.Sprintf("mv %s /tmp/interop/www/%d", path, n))
		args = append(args, fmt.Sprintf("%s%d=%d", base, n, n))
	}
	server := w.c(t, w.preloaded(true), "/usr/bin/python3", "-u", "-m", "http.server", "-d", "/tmp/interop/www", "8000")
	server.Says("Serving HTTP")
	out := w.goAt(t, w.std, args...).Succeeds()
	assert.Equal(t, 4, strings.Count(out, "HTTP/1.0 200 OK"), out)
	assert.Equal(t, 4, strings.Count(out, "reused=false"), out)

	out = w.goAt(t, w.std, "httpget", "-conc", "3", base+"70000=70000").Succeeds()
	assert.Equal(t, 3, strings.Count(out, "200 OK"), out)
}

// A server in Python that keeps connections alive, sends chunks, takes uploads, and speaks TLS.
func TestPythonServerKeepAlive(t *testing.T) { eachDevice(t, pythonKeepAlive) }

func pythonKeepAlive(t *testing.T, w *world) {
	cert, key, err := peer.CertificatePEM()
	require.NoError(t, err)
	require.NoError(t, w.g.WriteFile(t.Context(), "/tmp/interop/c.pem", append(cert, key...), 0o600))
	require.NoError(t, w.g.WriteFile(t.Context(), "/tmp/interop/serve.py", []byte(pythonServer), 0o644))
	for _, n := range []int64{1, 100000, 2_000_000} {
		path, _ := w.file(t, n)
		w.script(t, fmt.Sprintf("mkdir -p /tmp/interop/keep; mv %s /tmp/interop/keep/%d", path, n))
	}
	schemes := []string{"http", "https"}
	if w.device != "softroce" && !long {
		schemes = schemes[:1] // TestOpensslServer is TLS
	}
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) {
			port := map[string]uint16{"http": 8001, "https": 8444}[scheme]
			server := w.c(t, w.preloaded(true), "/usr/bin/python3", "-u", "/tmp/interop/serve.py", w.std.c.V6.String(),
				fmt.Sprint(port), "/tmp/interop/keep", map[string]string{"http": "", "https": "/tmp/interop/c.pem"}[scheme])
			server.Says("serving")
			base := fmt.Sprintf("%s://%v/", scheme, netip.AddrPortFrom(w.std.c.V6, port))
			args := []string{"httpget", "-ca", "/tmp/interop/c.pem", "-repeat", "2"}
			for _, n := range []string{"1", "100000", "2000000"} {
				args = append(args, base+n+"="+n, base+"chunked/"+n+"="+n)
			}
			out := w.goAt(t, w.std, args...).Succeeds()
			assert.Equal(t, 12, strings.Count(out, "HTTP/1.1 200 OK"), out)
			assert.Equal(t, 6, strings.Count(out, "chunked=true"), out)
			assert.Equal(t, 11, strings.Count(out, "reused=true"), out) // one connection for all

			_, sum := w.file(t, 1_000_000)
			out = w.goAt(t, w.std, "httpget", "-ca", "/tmp/interop/c.pem", "-upload", "1000000", base+"echo").Succeeds()
			assert.Contains(t, out, "bytes=1000000 ")
			assert.Contains(t, out, sum)
		})
	}
}

const pythonServer = `
import http.server, os, socket, ssl, sys

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        chunked = self.path.startswith("/chunked/")
        with open(os.path.join(sys.argv[3], os.path.basename(self.path)), "rb") as f:
            body = f.read()
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        if not chunked:
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(0, len(body), 30011):
            piece = body[i:i + 30011]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6

    def get_request(self):
        conn, addr = super().get_request()
        if sys.argv[4]:
            conn = context.wrap_socket(conn, server_side=True)
        return conn, addr

if sys.argv[4]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[4])
server = Server((sys.argv[1], int(sys.argv[2])), Handler)
print("serving", flush=True)
server.serve_forever()
`

// OpenSSL's own server.
func TestOpensslServer(t *testing.T) { eachDevice(t, opensslServer) }

func opensslServer(t *testing.T, w *world) {
	cert, key, err := peer.CertificatePEM()
	require.NoError(t, err)
	require.NoError(t, w.g.WriteFile(t.Context(), "/tmp/interop/o.pem", append(cert, key...), 0o600))
	args := []string{"httpget", "-ca", "/tmp/interop/o.pem"}
	base := fmt.Sprintf("https://%v/", netip.AddrPortFrom(w.std.c.V4, 8445))
	for _, n := range []int64{1, 70000, 1_000_000} {
		path, _ := w.file(t, n)
		w.script(t, fmt.Sprintf("mkdir -p /tmp/interop/ssl; mv %s /tmp/interop/ssl/%d", path, n))
		args = append(args, fmt.Sprintf("%s%d=%d", base, n, n))
	}
	p := w.c(t, w.preloaded(true), "sh", "-c",
		"cd /tmp/interop/ssl && exec openssl s_server -4 -accept "+w.std.c.V4.String()+":8445 -cert ../o.pem -key ../o.pem -WWW")
	p.Says("ACCEPT")
	out := w.goAt(t, w.std, args...).Succeeds()
	assert.Equal(t, 3, strings.Count(out, "200 ok"), out)
}
