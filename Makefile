# Every target does its own set-up and can be the first one run. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help test lint generate sim conformance e2e bench demo cluster-up cluster-down images deny clean rust
.NOTPARALLEL:

# Flags meant for somebody else's Go module would break the build of Kubernetes.
unexport GOFLAGS
# `make -j` would offer cargo a job server that is closed to it.
unexport MAKEFLAGS

# What `--version` says. The day is the commit's, so that a build can be repeated.
export NODEKEEPER_COMMIT := $(or $(NODEKEEPER_COMMIT),$(shell git rev-parse --short=12 --verify --quiet HEAD 2>/dev/null),unknown)
export NODEKEEPER_DATE := $(or $(NODEKEEPER_DATE),$(shell git show -s --format=%cs HEAD 2>/dev/null),unknown)

# Where cargo puts binaries, whatever sets it. Asked in the recipes, because only they see the RUSTUP_HOME from below.
BUILT = $$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug
CACHE := $(or $(NODEKEEPER_CACHE),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME)/nodekeeper,$(HOME)/.cache/nodekeeper))
DENY = $(or $(shell command -v cargo-deny 2>/dev/null || :),$(wildcard .tools/bin/cargo-deny))

# rustup's cargo looks for its toolchains below HOME. With another HOME (a CI job, `env -i`) they are still beside it.
ifneq ($(shell cargo --version >/dev/null 2>&1 && echo works),works)
  CARGO_FILE := $(realpath $(shell command -v cargo 2>/dev/null || echo "$(HOME)/.cargo/bin/cargo"))
  ifneq ($(CARGO_FILE),)
    export PATH := $(PATH):$(patsubst %/,%,$(dir $(CARGO_FILE)))
    BESIDE := $(firstword $(wildcard $(addprefix $(dir $(CARGO_FILE))../../,.rustup rustup)))
    ifneq ($(BESIDE),)
      export RUSTUP_HOME := $(abspath $(BESIDE))
    endif
  endif
endif

help: ## this list
	@echo "Nodekeeper. Needs Rust 1.95 or newer; 'make test' also Go 1.26 or newer and python3 with venv. Times are for 2 cores."
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

test: rust ## everything, tier by tier; 45 min on a cold machine, 20 min after that
	@echo "test: builds once, then runs every tier (usually 45 min on a cold machine, 20 min after that)"
	@cargo run -q -p xtask -- test

lint: rust ## format, clippy, the rules of the house, cargo-deny if it is installed; 3 min cold, 10 s after that
	@echo "lint: format, clippy, the rules of the house (usually 3 min cold, 10 s after that)"
	@failed=0; \
	cargo fmt --all --check || failed=1; \
	cargo clippy -q --workspace --all-targets -- -D warnings || failed=1; \
	cargo run -q -p xtask -- lint || failed=1; \
	if [ -n "$(DENY)" ]; then "$(DENY)" --log-level error check bans licenses sources || failed=1; \
	else echo "SKIPPED: cargo-deny is not installed; 'make deny' installs and runs it (1 min)"; fi; \
	exit $$failed

generate: rust ## write the generated files; seconds
	@echo "generate: writes the generated files (usually seconds)"
	@cargo run -q -p xtask -- generate

sim: rust ## seeds with faults: SEEDS=n FROM=s, or SEED=x to replay one; 4 min to build, then 3 seeds a second
	@[ -n "$(SEED)" ] || echo "sim: runs seeds with faults on the embedded cluster (usually 4 min to build, then 3 seeds a second)"
	@cargo test -q --workspace --test sim

conformance: rust ## the API cases on the embedded and on a real cluster: KUBE=1.34.4 for another version; 10 min cold, 1 min after that
	@echo "conformance: builds Kubernetes if it is not there yet, then runs the API cases on both clusters (usually 10 min cold, 1 min after that)"
	@cargo build -q --workspace --bin kubernetes
	@"$(BUILT)/kubernetes"
	@cargo test -q --workspace --test conformance

e2e: rust ## the tests of the real control plane; 10 min cold, 1 min after that
	@echo "e2e: builds Kubernetes if it is not there yet, then tests the real control plane (usually 10 min cold, 1 min after that)"
	@cargo build -q --workspace --bin kubernetes
	@"$(BUILT)/kubernetes"
	@cargo test --workspace --test control_plane

bench: rust ## what it costs, beside the budgets, into bench/RESULTS.md: ONLY=rss for one; 8 min to build, then 7 min
	@echo "bench: builds Kubernetes and what is shipped if they are not there yet, then measures (usually 8 min to build, then 7 min)"
	@cargo run -q --profile measure -p nodekeeper-bench -- $(addprefix --only ,$(ONLY))

demo: rust ## gate and remediation on an embedded cluster in one process: ARGS=--keep leaves it up; 4 min to build, then 1 min
	@echo "demo: 24 machines join an embedded cluster (usually 4 min to build, then 1 min); Ctrl-C ends it"
	@cargo build --workspace --bin nodekeeper --bin nodekeeper-worker
	@"$(BUILT)/nodekeeper" demo $(ARGS)

cluster-up: rust ## a Kubernetes with real nodes that stays up, to try things on: NODES=3; needs root; 15 min cold, 15 s after that
	@echo "cluster-up: a control plane and $(or $(NODES),3) real nodes (usually 15 min cold, 15 s after that); 'make cluster-down' ends it"
	@cargo build -q --workspace --bin cluster
	@"$(BUILT)/cluster" up --nodes $(or $(NODES),3)

cluster-down: rust ## end it, and leave nothing behind; 2 s
	@echo "cluster-down: ends the cluster of 'make cluster-up' (usually 2 s)"
	@cargo build -q --workspace --bin cluster
	@"$(BUILT)/cluster" down

images: rust ## the static binaries that go into images, and their sizes; 4 min, then seconds
	@echo "images: builds controller and worker as static binaries (usually 4 min, then seconds)"
	@cargo build -q --workspace --bin images
	@"$(BUILT)/images"

deny: rust ## licences, bans, sources and known advisories of all dependencies; 1 min to install cargo-deny, then seconds
	@echo "deny: cargo-deny on every dependency (usually 1 min to install it, then seconds)"
	@[ -n "$(DENY)" ] || CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --quiet --locked --root .tools cargo-deny
	@PATH="$$PATH:.tools/bin"; cargo-deny check bans licenses sources && \
	if cargo-deny fetch db >/dev/null 2>&1; then cargo-deny check advisories; \
	else echo "SKIPPED: advisories, because their database (github.com/rustsec/advisory-db) cannot be reached from here"; fi

clean: ## remove what was built here; seconds
	@echo "clean: removes target and .tools (seconds)"
	@rm -rf target .tools
	@if [ -n "$(CARGO_TARGET_DIR)" ]; then echo "CARGO_TARGET_DIR is $(CARGO_TARGET_DIR): it may be shared, so it stays"; fi
	@echo "Kubernetes stays in $(CACHE): it takes 5 to 9 minutes to build. To remove it: rm -rf '$(CACHE)'"

# Says what to do where there is no Rust. An older one than `rust-version` is refused by cargo itself.
rust:
	@cargo --version >/dev/null 2>&1 || { cargo --version; \
	echo "There is no working Rust here. Install 1.95 or newer with rustup:"; \
	echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . \"\$$HOME/.cargo/env\""; \
	exit 1; }
