# make help lists the targets. Everything needs Go alone, but for the race
# detector, which needs cgo and a C compiler, and lint, which needs network once.

GO       = go
FUZZTIME = 5s
TESTTIME = 10m
DEMO     =
BENCH    =
VMTIME   = 20m
VMJOBS   = $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 4 ? 1 : n / 2)))
RUN      =
VULNDB   =
SOAK     =
MODULES  = $(shell cat tools/modules)
CMD      = -v -rxe -- ibv_devinfo

.PHONY: help demo test test-vm vm lint bench bench-vm bench-all fuzz soak format vet rules race nocgo 386 foreign cross

help:
	@echo 'make demo    HTTP over RDMA between two processes; DEMO="-size 64" passes flags'
	@echo 'make test    all checks and tests: format vet rules cross race nocgo 386 foreign fuzz test-vm, each a target too'
	@echo 'make test-vm tests in a Linux guest with Soft-RoCE, see test/vm/README.md; RUN=TestName picks by regexp'
	@echo 'make vm      runs a program in such a guest; CMD="-rxe -- ibv_devinfo"'
	@echo 'make lint    golangci-lint as .golangci.yml says, and govulncheck; the first run builds them; VULNDB=file:///dir is a copy of vuln.go.dev'
	@echo 'make bench   rdmanet beside TCP, Unix sockets, QUIC and UCX in one run, 5 minutes; tables and plots into bench/results; BENCH="-run grid" passes flags'
	@echo 'make bench-vm  rdmanet beside rsockets and raw verbs on Soft-RoCE in a guest; likewise'
	@echo 'make bench-all  both, whole: HTTP and gRPC over a grid and 10,000 connections too; on a machine that does nothing else'
	@echo 'make soak    processes that dial, write, break off, are stopped and killed, 2 minutes; SOAK="-time 10m -seed 7" passes flags'
	@echo 'make fuzz    each fuzz target for FUZZTIME ($(FUZZTIME)); FUZZ=FuzzName picks by regexp; before a release FUZZTIME=10m'

demo:
	$(GO) run ./examples/http-over-rdma $(DEMO)

test: format vet rules cross race nocgo 386 foreign fuzz test-vm
	@echo '== make test: all passed'

# A guest has two processors, so as many packages run at a time as there are pairs of them: with more, what C programs take for lost is only late.
test-vm:
	@echo '== tests in a guest with Soft-RoCE'
	@cd test && { $(GO) run ./vm/cmd/vm -check || echo 'So these tests are skipped; with CI=true they fail.'; }
	cd test && $(GO) test -p $(VMJOBS) -count=1 -timeout $(VMTIME) -run '$(RUN)' ./...

vm:
	cd test && $(GO) run ./vm/cmd/vm $(CMD)

lint:
	@echo '== lint: golangci-lint'
	@set -e; for dir in . test $(MODULES); do echo "== $$dir"; (cd $$dir && $(GO) tool -modfile=$(CURDIR)/tools/go.mod golangci-lint run --allow-parallel-runners ./...); done
	@GO='$(GO)' VULNDB='$(VULNDB)' sh tools/vuln.sh

bench:
	cd bench && $(GO) run . $(BENCH)

bench-vm:
	cd bench && $(GO) run ./vm $(BENCH)

bench-all:
	cd bench && $(GO) run . -run . -rounds 5 -sample 150ms
	cd bench && $(GO) run ./vm

fuzz:
	@GO='$(GO)' FUZZTIME='$(FUZZTIME)' FUZZ='$(FUZZ)' sh tools/fuzz.sh

soak:
	$(GO) run ./internal/soak $(SOAK)

format:
	@echo '== format: gofmt'
	@out=$$(gofmt -l .) || exit 1; \
	if [ -n "$$out" ]; then echo "not formatted, run gofmt -w on:"; echo "$$out"; exit 1; fi

vet:
	@echo '== vet'
	@set -e; for dir in . test $(MODULES); do (cd $$dir && $(GO) vet ./...); done

rules:
	@GO='$(GO)' sh tools/rules.sh
	@sh tools/named-tests.sh docs/field-reports.md docs/security.md
	@sh tools/field-reports.sh

race:
	@GO='$(GO)' TESTTIME='$(TESTTIME)' sh tools/race.sh

nocgo:
	@echo '== tests without cgo'
	@set -e; for dir in . $(MODULES); do (cd $$dir && CGO_ENABLED=0 $(GO) test -shuffle=on -timeout $(TESTTIME) ./...); done

386:
	@GO='$(GO)' TESTTIME='$(TESTTIME)' sh tools/386.sh

foreign:
	@GO='$(GO)' TESTTIME='$(TESTTIME)' sh tools/foreign.sh

cross:
	@GO='$(GO)' sh tools/cross.sh
