package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// Hosts are the names and addresses that the tests' certificates are for.
var Hosts = []string{
	"go4", "go6", "c4", "c6", "localhost", "127.0.0.1", "::1",
	"10.8.0.1", "10.8.0.2", "fd08::1", "fd08::2",
	"10.9.0.1", "10.9.0.2", "10.9.1.1", "10.9.1.2", "fd09::1", "fd09::2", "fd09:0:0:1::1", "fd09:0:0:1::2",
}

// Certificate makes a certificate for Hosts, which signs itself, and its PEM form.
func Certificate() (tls.Certificate, []byte, error) {
	cert, _, certPEM, err := certificate()
	return cert, certPEM, err
}

// CertificatePEM makes one for a server of another language: certificate and key.
func CertificatePEM() (cert, key []byte, err error) {
	_, key, cert, err = certificate()
	return cert, key, err
}

func certificate() (cert tls.Certificate, keyPEM, certPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "go-rdma interop"},
		NotBefore:    time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour), // a guest's clock may be off
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
	}
	for _, h := range Hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return cert, nil, nil, err
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return cert, nil, nil, err
	}
	keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	cert, err = tls.X509KeyPair(certPEM, keyPEM)
	return cert, keyPEM, certPEM, err
}
