// mutual-tls serves HTTP/2 over TLS with certificates at both ends, on RDMA queue pairs instead of TCP. RDMA is clear text and a peer's address is
// a claim: this is what tells the ends from others.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/go-rdma/rdma/examples/internal/identities"
	"github.com/go-rdma/rdma/examples/internal/roles"
	"github.com/go-rdma/rdma/rdmanet"
)

func main() {
	ids, err := identities.New()
	if err != nil {
		panic(err) // there is no randomness
	}
	strangers, err := identities.New()
	if err != nil {
		panic(err)
	}
	roles.Main(newExample(ids, strangers))
}

func newExample(ids, strangers *identities.Identities) roles.Example {
	done := make(chan struct{})
	return roles.Example{
		Serve: func(ctx context.Context, out io.Writer, addr string, ready func(string)) error {
			return serve(ctx, out, addr, ready, ids.Server, done)
		},
		Dial: func(ctx context.Context, out io.Writer, addr string) error {
			defer close(done)
			return dial(ctx, out, addr, ids.Client, strangers.Client)
		},
		Together: "their keys and certificates are made here, and are in no file; examples/grpc-over-rdma has some in files",
	}
}

// serve serves until the client is done.
func serve(ctx context.Context, out io.Writer, addr string, ready func(string), config *tls.Config, done <-chan struct{}) error {
	config = config.Clone()
	config.NextProtos = []string{"h2", "http/1.1"} // a Server that is given a listener does not add it
	config.ClientAuth = tls.RequireAndVerifyClientCert

	l, err := rdmanet.Listen("rdma", addr) // was net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who := r.TLS.PeerCertificates[0].Subject.CommonName // and not r.RemoteAddr
			fmt.Fprintf(w, "hello, %s, by %s", who, r.Proto)
		}),
		ErrorLog: log.New(out, "", 0), // whom it has refused
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(tls.NewListener(l, config)) }()
	ready(l.Addr().String())
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	case <-done:
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	err = server.Shutdown(stop)
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

func dial(ctx context.Context, out io.Writer, addr string, config, strangers *tls.Config) error {
	body, err := get(ctx, addr, config)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "with a certificate: %q\n", body)

	// One without a certificate, one with that of another authority, and one that trusts another authority.
	without := config.Clone()
	without.Certificates = nil
	forged := config.Clone()
	forged.Certificates = nil
	forged.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &strangers.Certificates[0], nil
	}
	distrustful := config.Clone()
	distrustful.RootCAs = strangers.RootCAs
	for _, c := range []struct {
		who    string
		config *tls.Config
	}{{"without one", without}, {"with a stranger's", forged}, {"trusting another authority", distrustful}} {
		if body, err = get(ctx, addr, c.config); err == nil {
			return fmt.Errorf("%s: it was let in: %q", c.who, body)
		}
		fmt.Fprintf(out, "%s: %v\n", c.who, err)
	}
	return nil
}

// get asks for the page, on a connection of its own.
func get(ctx context.Context, addr string, config *tls.Config) (string, error) {
	transport := &http.Transport{
		DialContext:       (&rdmanet.Dialer{Timeout: 10 * time.Second}).DialContext, // was &net.Dialer{...}
		TLSClientConfig:   config,
		ForceAttemptHTTP2: true, // a Transport with a dialer of its own speaks HTTP/1.1 otherwise
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+addr, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(resp.Body)
	return string(body), errors.Join(err, resp.Body.Close())
}
