# make help lists the targets. Everything needs Go alone, but for the race
# detector, which needs cgo and a C compiler, and lint, which needs network once.

GO       = go
FUZZTIME = 5s
TESTTIME = 5m
DEMO     =
BENCH    =

.PHONY: help demo test lint bench fuzz format vet rules race nocgo 386 cross

help:
	@echo 'make demo    HTTP over RDMA between two processes; DEMO="-size 64" passes flags'
	@echo 'make test    all checks and tests: format vet rules cross race nocgo 386 fuzz, each a target too'
	@echo 'make lint    golangci-lint as .golangci.yml says; the first run builds it'
	@echo 'make bench   rdmanet beside TCP in one run; a table into bench/results; BENCH="-rounds 5" passes flags'
	@echo 'make fuzz    each fuzz target for FUZZTIME ($(FUZZTIME)); FUZZ=FuzzName picks by regexp'

demo:
	$(GO) run ./examples/http-over-rdma $(DEMO)

test: format vet rules cross race nocgo 386 fuzz
	@echo '== make test: all passed'

lint:
	@echo '== lint: golangci-lint'
	$(GO) tool -modfile=tools/go.mod golangci-lint run --allow-parallel-runners ./...
	cd bench && $(GO) tool -modfile=../tools/go.mod golangci-lint run --allow-parallel-runners ./...

bench:
	cd bench && $(GO) run . $(BENCH)

fuzz:
	@GO='$(GO)' FUZZTIME='$(FUZZTIME)' FUZZ='$(FUZZ)' sh tools/fuzz.sh

format:
	@echo '== format: gofmt'
	@out=$$(gofmt -l .) || exit 1; \
	if [ -n "$$out" ]; then echo "not formatted, run gofmt -w on:"; echo "$$out"; exit 1; fi

vet:
	@echo '== vet'
	$(GO) vet ./...
	cd bench && $(GO) vet ./...

rules:
	@GO='$(GO)' sh tools/rules.sh

race:
	@GO='$(GO)' TESTTIME='$(TESTTIME)' sh tools/race.sh

nocgo:
	@echo '== tests without cgo'
	CGO_ENABLED=0 $(GO) test -shuffle=on -timeout $(TESTTIME) ./...
	cd bench && CGO_ENABLED=0 $(GO) test -shuffle=on -timeout $(TESTTIME) ./...

386:
	@GO='$(GO)' TESTTIME='$(TESTTIME)' sh tools/386.sh

cross:
	@GO='$(GO)' sh tools/cross.sh
