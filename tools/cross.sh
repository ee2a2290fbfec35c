#!/bin/sh
# Builds the packages and type-checks their tests for each platform, without cgo.
set -eu
: "${GO:=go}"

for platform in linux/amd64 linux/arm64 linux/386 darwin/arm64 windows/amd64; do
	echo "== compile for $platform"
	for dir in . $(cat tools/modules); do
		(
			cd "$dir"
			export GOOS="${platform%/*}" GOARCH="${platform#*/}" CGO_ENABLED=0
			"$GO" build ./...
			"$GO" vet ./...
		) || { echo "$platform does not compile, see above: GOOS=${platform%/*} GOARCH=${platform#*/} CGO_ENABLED=0 go vet ./..."; exit 1; }
	done
done
