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
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS=$$'\t' read -r target text; do printf '  make %-9s %s\n' "$$target" "$$text"; done

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
	go test -race -skip 'EveryInterleaving|TheExploration' ./guard # both walk alone, and far
	@for dir in node/node_modules python/.venv; do \
	  [ -e test/clients/$$dir ] || echo "SKIPPED: the clients under test/clients/$${dir%/*}, which are not installed; do so by: make clients"; \
	done

clients: packages ## Install real clients (Node.js, Python) and run them against the server
	LLMPROXY_CLIENTS_REQUIRED=1 go test -count=1 -v -run '^TestClients$$' ./test/clients | grep -E '^ *(---|FAIL|ok|panic)|_test.go'

# packages installs what is pinned, nothing newer, into ignored folders.
packages: tools
	@command -v node >/dev/null && command -v npm >/dev/null || { echo "needs Node.js 20 or newer and npm: https://nodejs.org"; exit 1; }
	@command -v python3 >/dev/null || { echo "needs Python 3.10 or newer: https://python.org"; exit 1; }
	npm ci --prefix test/clients/node --ignore-scripts --loglevel=error
	python3 -m venv test/clients/python/.venv
	test/clients/python/.venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r test/clients/python/requirements.txt

# Outside of what CI runs: installing takes minutes.
upstreams: tools ## Install a real compatible upstream (LiteLLM, Python) and run the server before it
	@command -v python3 >/dev/null || { echo "needs Python 3.10 or newer: https://python.org"; exit 1; }
	python3 -m venv test/upstreams/.venv
	test/upstreams/.venv/bin/pip install --quiet --disable-pip-version-check --no-deps -r test/upstreams/requirements.txt
	LLMPROXY_UPSTREAMS_REQUIRED=1 go test -count=1 -v ./test/upstreams | grep -E '^ *(---|FAIL|ok|panic)|_test.go'

bench: build ## Measure the server against bare handlers (Linux, some minutes)
	go run ./test/bench -bin $(BIN) -npm $(NPM)
	go test -run '^$$' -bench 'Key|GroupCommit' ./cache ./store

oracle: ## Compare token counts with the vendor's tokenizer (npm; needs Node.js)
	go run ./test/oracle

truth: tools ## Measure the token counts against billed requests (RECORDED=path says where)
	@go run ./test/truth $(RECORDED)

clean: ## Remove what was built or installed; databases stay
	rm -rf bin test/clients/node/node_modules test/clients/python/.venv test/upstreams/.venv

# tools tells what is missing before Go does so in its own words.
tools:
	@needed=$$(sed -n 's/^go //p' go.mod); \
	command -v go >/dev/null || { echo "needs Go $$needed or newer: https://go.dev/doc/install"; exit 1; }; \
	have=$$(go env GOVERSION) || { echo "needs Go $$needed or newer: https://go.dev/doc/install"; exit 1; }; \
	printf '%s\n' "$$needed" "$${have#go}" | sort -VC || { echo "needs Go $$needed or newer, this is $$have: https://go.dev/doc/install"; exit 1; }; \
	cc=$$(go env CC); \
	command -v $${cc%% *} >/dev/null || { echo "needs $$cc for SQLite: apt-get install gcc libc6-dev"; exit 1; }; \
	echo '#include <stdlib.h>' | $$cc -E - >/dev/null 2>&1 || { echo "needs the C library's headers for SQLite: apt-get install libc6-dev"; exit 1; }

.PHONY: help demo run build test check clients packages upstreams bench oracle truth clean tools
