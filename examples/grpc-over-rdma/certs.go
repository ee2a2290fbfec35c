package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// validity is short: these are for trying things out.
const validity = 30 * 24 * time.Hour

// makeCerts writes ca.pem, and certificates of that authority for a server on the hosts and for a client, with their keys.
// The authority's own key is forgotten.
func makeCerts(dir string, hosts []string) error {
	if len(hosts) == 0 {
		hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := template("grpc-over-rdma's authority")
	ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
	if err := writeCert(dir, "ca.pem", ca, ca, caKey, caKey); err != nil {
		return err
	}

	server := template("server")
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			server.IPAddresses = append(server.IPAddresses, ip)
		} else {
			server.DNSNames = append(server.DNSNames, host)
		}
	}
	client := template("client")
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, leaf := range []*x509.Certificate{server, client} {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return err
		}
		name := leaf.Subject.CommonName
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return err
		}
		if err := writePEM(filepath.Join(dir, name+".key"), "PRIVATE KEY", der); err != nil {
			return err
		}
		if err := writeCert(dir, name+".pem", leaf, ca, key, caKey); err != nil {
			return err
		}
	}
	return nil
}

func template(name string) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), // the other host's clock may be behind
		NotAfter:  time.Now().Add(validity),
		KeyUsage:  x509.KeyUsageDigitalSignature,
	}
}

func writeCert(dir, name string, cert, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, parentKey)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, name), "CERTIFICATE", der)
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// loadTLS reads what makeCerts wrote: the certificate called name, and the authority that peers' certificates are of.
func loadTLS(dir, name string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w (make them: grpc-over-rdma certs %s)", err, dir)
	}
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("%s: no certificate in it", filepath.Join(dir, "ca.pem"))
	}
	return &tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      pool,                           // a client's
		ClientCAs:    pool,                           // a server's
		ClientAuth:   tls.RequireAndVerifyClientCert, // likewise: an address is no identity
		MinVersion:   tls.VersionTLS13,
	}, nil
}

// transport is how one end secures its connections: with the certificate called name, or not at all where there is no dir.
func transport(dir, name string) (credentials.TransportCredentials, error) {
	if dir == "" {
		return insecure.NewCredentials(), nil
	}
	cfg, err := loadTLS(dir, name)
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(cfg), nil
}
