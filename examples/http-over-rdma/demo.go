package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// demo makes a tree of files, serves it from one process and fetches it with two others: over what is chosen on one host, and over the embedded
// device, as from another host.
func demo(ctx context.Context, large int64) (err error) {
	dir, err := os.MkdirTemp("", "http-over-rdma-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := makeTree(ctx, dir, large); err != nil {
		return err
	}

	server, err := self(ctx, "serve", "-addr", "127.0.0.1:0", "-until-stdin-ends", dir)
	if err != nil {
		return err
	}
	in, err := server.StdinPipe()
	if err != nil {
		return err
	}
	out, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	// When its standard input ends, the server does; so it does if this process dies.
	defer func() {
		in.Close()
		if e := server.Wait(); e != nil && err == nil {
			err = fmt.Errorf("server: %w", e)
		}
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	_, url, ok := strings.Cut(strings.TrimSpace(line), " at ")
	if !ok {
		return fmt.Errorf("the server did not start: %w", err)
	}
	fmt.Printf("server, process %d: %s", server.Process.Pid, line)

	devices := []string{os.Getenv(deviceEnv)}
	if devices[0] == "" {
		devices = append(devices, "softroce")
	}
	for _, device := range devices {
		client, err := self(ctx, "get", url)
		if err != nil {
			return err
		}
		client.Env = append(os.Environ(), deviceEnv+"="+device)
		client.Stdout = os.Stdout
		if err := client.Start(); err != nil {
			return err
		}
		over := ""
		if device != "" {
			over = " with " + deviceEnv + "=" + device
		}
		fmt.Printf("\nclient, process %d: getting %s%s\n", client.Process.Pid, url, over)
		if err := client.Wait(); err != nil {
			return fmt.Errorf("client: %w", err)
		}
	}
	fmt.Printf(`
Next, in two terminals, or the second on another machine:
  go run ./examples/http-over-rdma serve -addr :8080 .
  go run ./examples/http-over-rdma get http://%s/
`, usable("[::]:8080")[0])
	return nil
}

// deviceEnv names the variable that says what to use, else that is chosen.
const deviceEnv = "RDMANET_DEVICE"

// self is this program with other arguments. It is interrupted when ctx ends.
func self(ctx context.Context, args ...string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	return cmd, nil
}

// makeTree fills dir with directories of small files and one large file, all of
// pseudo-random bytes, and lists their sums in SHA256SUMS.
func makeTree(ctx context.Context, dir string, large int64) error {
	sums, err := os.Create(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		return err
	}
	defer sums.Close()
	random := rand.NewChaCha8([32]byte([]byte("the same bytes at every start...")))
	add := func(path string, size int64) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		file, err := os.Create(name)
		if err != nil {
			return err
		}
		defer file.Close()
		hash := sha256.New()
		if _, err := io.CopyN(io.MultiWriter(file, hash), random, size); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(sums, "%x  %s\n", hash.Sum(nil), path); err != nil {
			return err
		}
		return file.Close()
	}
	for d := range 12 {
		for f := range 8 {
			// Names with letters that URLs and HTML escape; sizes from 0 to 128 KiB.
			size := int64(1)<<(2*f+d%4) - 1
			if err := add(fmt.Sprintf("tree/%c/%d & 50%%/file #%d.bin", 'a'+d%3, d/3, f), size); err != nil {
				return err
			}
		}
	}
	if err := add("large.bin", large); err != nil {
		return err
	}
	return sums.Close()
}
