#!/bin/sh
# The embedded device over networks in memory, and all that lies in packets, tested as programs of other processors, which qemu-user
# runs: s390x has its bytes the other way round, arm64 orders memory accesses otherwise. (Sockets are not: qemu-user does not know all
# of their options. Nor is what a user namespace shows: none can be made from there.)
set -eu
: "${GO:=go}" "${TESTTIME:=10m}"

for arch in s390x arm64; do
	qemu=qemu-$arch-static
	[ $arch != arm64 ] || qemu=qemu-aarch64-static
	if ! command -v $qemu >/dev/null; then
		if [ "${CI:-}" = true ]; then
			echo "there is no $qemu: apt-get install qemu-user-static"
			exit 1
		fi
		echo "== tests as linux/$arch: not without $qemu (Debian: apt-get install qemu-user-static), only compiled"
		continue
	fi
	echo "== tests as linux/$arch"
	export GOOS=linux GOARCH=$arch CGO_ENABLED=0
	"$GO" test -exec $qemu -timeout "$TESTTIME" -skip '^TestSameUser$' ./internal/verbs ./internal/verbs/softroce/wire ./internal/verbs/softroce/ibcm ./internal/verbs/softroce/packettable
	"$GO" test -exec $qemu -timeout "$TESTTIME" -run '^TestTransfers$|^TestSameDatagramsAsRXE$|^TestConformanceSimulated$/^Good$/^(Data|OneSided|AtomicWrite|Flush|CM)$' ./internal/verbs/softroce
	"$GO" test -exec $qemu -timeout "$TESTTIME" -run 'ConnData|Descriptor|Immediates|PrivateData|Receiver' ./internal/ring
done
