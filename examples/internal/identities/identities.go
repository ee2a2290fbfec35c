// Package identities makes the keys and certificates of examples, whose ends are in one process.
package identities

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"time"
)

// Identities are a server's and a client's configurations, whose certificates an authority of their own has signed. Each asks for the other's.
type Identities struct{ Server, Client *tls.Config }

// New makes them. Names are "server" and "client".
func New() (*Identities, error) {
	now := time.Now()
	template := func(name string, usage x509.ExtKeyUsage) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
			NotBefore: now.Add(-time.Minute), NotAfter: now.Add(time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		}
	}
	authority := template("authority", x509.ExtKeyUsageAny)
	authority.IsCA, authority.BasicConstraintsValid, authority.KeyUsage = true, true, x509.KeyUsageCertSign
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	root, err := x509.CreateCertificate(rand.Reader, authority, authority, &signer.PublicKey, signer)
	if err != nil {
		return nil, err
	}
	if authority, err = x509.ParseCertificate(root); err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(authority)
	certificate := func(name string, usage x509.ExtKeyUsage) (tls.Certificate, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return tls.Certificate{}, err
		}
		b, err := x509.CreateCertificate(rand.Reader, template(name, usage), authority, &key.PublicKey, signer)
		return tls.Certificate{Certificate: [][]byte{b}, PrivateKey: key}, err
	}
	server, err := certificate("server", x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, err
	}
	client, err := certificate("client", x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	return &Identities{
		Server: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{server}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert},
		Client: &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{client}, RootCAs: pool, ServerName: "server"},
	}, nil
}
