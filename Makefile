SHELL         := /bin/bash
.SHELLFLAGS   := -euo pipefail -c
.DEFAULT_GOAL := help

# SQLite is written in C.
export CGO_ENABLED := 1

BIN := bin/llmproxy

# A folder with node_modules/tiktoken, for make bench to measure it beside ours.
NPM := .

# The packages that share memory between goroutines.
CONCURRENT := ./budget ./cache ./cmd/... ./ledger ./proxy/... ./report ./sim ./store/...

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS=$$'\t' read -r target text; do printf '  make %-7s %s\n' "$$target" "$$text"; done

demo: build ## See what llmproxy does: no key, no network, a few seconds
	@$(BIN) demo

run: build ## Start the server with config.yaml
	@$(BIN) serve --config config.yaml

build: tools ## Build bin/llmproxy (the first time compiles SQLite: about a minute)
	@go build -trimpath -ldflags='-s -w' -o $(BIN) ./cmd/llmproxy

test: tools ## Run every test
	go test ./...

check: tools ## What a change must pass: format, vet, every test, the race detector
	@unformatted=$$(gofmt -l .); if [ -n "$$unformatted" ]; then echo "run gofmt -w on:" $$unformatted; exit 1; fi
	go vet ./...
	go test ./...
	go test -race $(CONCURRENT)

bench: build ## Measure the server against bare handlers (Linux, some minutes)
	go run ./test/bench -bin $(BIN) -npm $(NPM)
	go test -run '^$$' -bench 'Key|GroupCommit' ./cache ./store

oracle: ## Compare token counts with the vendor's tokenizer (npm; needs Node.js)
	go run ./test/oracle

truth: tools ## Measure the token counts against billed requests (RECORDED=path says where)
	@go run ./test/truth $(RECORDED)

clean: ## Remove what was built; databases stay
	rm -rf bin

# tools tells what is missing before Go does so in its own words.
tools:
	@needed=$$(sed -n 's/^go //p' go.mod); \
	command -v go >/dev/null || { echo "needs Go $$needed or newer: https://go.dev/doc/install"; exit 1; }; \
	have=$$(go env GOVERSION) || { echo "needs Go $$needed or newer: https://go.dev/doc/install"; exit 1; }; \
	printf '%s\n' "$$needed" "$${have#go}" | sort -VC || { echo "needs Go $$needed or newer, this is $$have: https://go.dev/doc/install"; exit 1; }; \
	cc=$$(go env CC); \
	command -v $${cc%% *} >/dev/null || { echo "needs $$cc for SQLite: apt-get install gcc libc6-dev"; exit 1; }; \
	echo '#include <stdlib.h>' | $$cc -E - >/dev/null 2>&1 || { echo "needs the C library's headers for SQLite: apt-get install libc6-dev"; exit 1; }

.PHONY: help demo run build test check bench oracle truth clean tools
