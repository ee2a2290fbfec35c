package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/go-rdma/rdma/rdmanet"
)

// get fetches every file below rawURL, whose directories are listed as
// http.FileServer lists them, and compares each with what SHA256SUMS says.
func get(ctx context.Context, rawURL string, verbose bool) error {
	if !strings.Contains(rawURL, "://") {
		return fmt.Errorf("%q is no URL: try http://%s/", rawURL, strings.Trim(rawURL, "/"))
	}
	root, err := url.Parse(rawURL)
	if err != nil {
		return err
	}
	if root.Scheme != "http" || root.Host == "" {
		return fmt.Errorf("%q is no http:// URL", rawURL)
	}
	if !strings.HasSuffix(root.Path, "/") {
		root = root.JoinPath("/")
	}

	dialer := &rdmanet.Dialer{Timeout: 10 * time.Second} // &net.Dialer{...} on TCP
	transport := &http.Transport{DialContext: dialer.DialContext}
	defer transport.CloseIdleConnections()

	f := &fetch{client: &http.Client{Transport: transport}, root: root, verbose: verbose}
	return f.run(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { f.conn = info.Conn },
	}))
}

type fetch struct {
	client  *http.Client
	root    *url.URL
	verbose bool
	conn    net.Conn          // the latest in use
	want    map[string]string // path below root: sha-256 in hex; nil if the server has no list

	files, dirs int
	bytes       int64
	errs        []error
}

func (f *fetch) run(ctx context.Context) error {
	start := time.Now()
	if err := f.readSums(ctx); err != nil {
		return err
	}
	if err := f.dir(ctx, f.root); err != nil {
		return err
	}
	for path := range f.want {
		f.errs = append(f.errs, fmt.Errorf("%s: in SHA256SUMS, but not found", path))
	}
	took := time.Since(start)

	fmt.Printf("fetched %d files in %d directories, %s in all, in %s\n", f.files, f.dirs, mib(f.bytes), took.Round(time.Millisecond))
	if c, ok := rdmanet.Unwrap(f.conn); ok {
		s := c.Stats()
		fmt.Printf("carried by RDMA: provider %s, device %s, %v -> %v\n", s.Provider, s.Device, c.LocalAddr(), c.RemoteAddr())
	} else {
		fmt.Printf("NOT carried by RDMA, but by %T\n", f.conn)
	}
	if len(f.errs) > 0 {
		return errors.Join(f.errs...)
	}
	if f.want == nil {
		fmt.Println("nothing verified: the server has no SHA256SUMS")
	} else {
		fmt.Println("verified: the sha-256 of every file is right")
	}
	return nil
}

// readSums reads the list of sums, in the format of sha256sum(1).
func (f *fetch) readSums(ctx context.Context) error {
	resp, err := f.open(ctx, f.root.JoinPath("SHA256SUMS"))
	if status := new(statusError); errors.As(err, &status) && status.code == http.StatusNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	f.want = map[string]string{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		sum, path, ok := strings.Cut(lines.Text(), "  ")
		if !ok || len(sum) != 2*sha256.Size {
			return fmt.Errorf("SHA256SUMS: bad line %q", lines.Text())
		}
		f.want[path] = sum
	}
	return lines.Err()
}

var link = regexp.MustCompile(`<a href="([^"]+)">`)

func (f *fetch) dir(ctx context.Context, u *url.URL) error {
	resp, err := f.open(ctx, u)
	if err != nil {
		return err
	}
	listing, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		return fmt.Errorf("%s: %w", u, err)
	}
	f.dirs++
	for _, m := range link.FindAllStringSubmatch(string(listing), -1) {
		ref, err := url.Parse(html.UnescapeString(m[1]))
		if err != nil {
			return fmt.Errorf("%s: %w", u, err)
		}
		child := u.ResolveReference(ref)
		if len(child.Path) <= len(u.Path) || !strings.HasPrefix(child.String(), u.String()) {
			continue // leads elsewhere or up
		}
		if strings.HasSuffix(child.Path, "/") {
			err = f.dir(ctx, child)
		} else {
			err = f.file(ctx, child)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *fetch) file(ctx context.Context, u *url.URL) error {
	path := strings.TrimPrefix(u.Path, f.root.Path)
	if path == "SHA256SUMS" {
		return nil
	}
	start := time.Now()
	resp, err := f.open(ctx, u)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	hash := sha256.New()
	n, err := io.Copy(hash, resp.Body)
	if err != nil {
		return fmt.Errorf("%s: after %d bytes: %w", u, n, err)
	}
	took := time.Since(start)
	f.files++
	f.bytes += n

	sum := hex.EncodeToString(hash.Sum(nil))
	if want, ok := f.want[path]; ok && want != sum {
		f.errs = append(f.errs, fmt.Errorf("%s: sha-256 is %s, not %s", path, sum, want))
	} else if !ok && f.want != nil {
		f.errs = append(f.errs, fmt.Errorf("%s: not in SHA256SUMS", path))
	}
	delete(f.want, path)
	if f.verbose {
		fmt.Printf("%s  %s\n", sum, path)
	}
	if n >= 1<<20 {
		fmt.Printf("%s: %s in %s, %.0f MiB/s\n", path, mib(n), took.Round(time.Millisecond), float64(n)/(1<<20)/took.Seconds())
	}
	return nil
}

type statusError struct {
	url  *url.URL
	code int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s: %d %s", e.url, e.code, http.StatusText(e.code))
}

func (f *fetch) open(ctx context.Context, u *url.URL) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body.Close()
		return nil, &statusError{u, resp.StatusCode}
	}
	return resp, nil
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
