# Each target does its own set-up and can be run first. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help test lint generate sim soak conformance e2e bench demo cluster-up cluster-down images deny clean rust
.NOTPARALLEL:

# Flags for another Go module would break the build of Kubernetes.
unexport GOFLAGS
# With `make -j` cargo would inherit a job server that it cannot use.
unexport MAKEFLAGS

# The values of `--version`. The date is the commit's, so that builds are reproducible.
export NODEKEEPER_COMMIT := $(or $(NODEKEEPER_COMMIT),$(shell git rev-parse --short=12 --verify --quiet HEAD 2>/dev/null),unknown)
export NODEKEEPER_DATE := $(or $(NODEKEEPER_DATE),$(shell git show -s --format=%cs HEAD 2>/dev/null),unknown)

# The folder of cargo's binaries. Evaluated in the recipes, because only they see the RUSTUP_HOME set below.
BUILT = $$(cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/debug
CACHE := $(or $(NODEKEEPER_CACHE),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME)/nodekeeper,$(HOME)/.cache/nodekeeper))
DENY = $(or $(shell command -v cargo-deny 2>/dev/null || :),$(wildcard .tools/bin/cargo-deny))
# All dependencies, the order of our crates, and the tree of core: as `DENY` in xtask/src/run.rs.
deny_checks = $(1) check bans licenses sources && $(1) --exclude-dev --config crates/deny.toml check bans && \
	$(1) --exclude-dev --config crates/core/deny.toml --manifest-path crates/core/Cargo.toml check bans

# rustup's cargo expects its toolchains below HOME. With another HOME (a CI job, `env -i`), find them next to cargo.
ifneq ($(shell cargo --version >/dev/null 2>&1 && echo works),works)
  CARGO_FILE := $(realpath $(shell command -v cargo 2>/dev/null || echo "$(HOME)/.cargo/bin/cargo"))
  ifneq ($(CARGO_FILE),)
    export PATH := $(PATH):$(patsubst %/,%,$(dir $(CARGO_FILE)))
    RUSTUP_DIR := $(firstword $(wildcard $(addprefix $(dir $(CARGO_FILE))../../,.rustup rustup)))
    ifneq ($(RUSTUP_DIR),)
      export RUSTUP_HOME := $(abspath $(RUSTUP_DIR))
    endif
  endif
endif

help: ## this list
	@echo "Nodekeeper. Needs Rust 1.95 or newer; 'make test' also Go 1.26 or newer and python3 with venv. Times are for 2 cores."
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

test: rust ## all test tiers; 45 min on a cold machine, 20 min after that
	@echo "test: builds once, then runs every test tier (usually 45 min on a cold machine, 20 min after that)"
	@cargo run -q -p xtask -- test

lint: rust ## format, clippy, repository rules, cargo-deny if it is installed; 3 min cold, 10 s after that
	@echo "lint: format, clippy, repository rules (usually 3 min cold, 10 s after that)"
	@failed=0; \
	cargo fmt --all --check || failed=1; \
	cargo clippy -q --workspace --all-targets -- -D warnings || failed=1; \
	cargo run -q -p xtask -- lint || failed=1; \
	if [ -n "$(DENY)" ]; then { $(call deny_checks,"$(DENY)" --log-level error); } || failed=1; \
	else echo "SKIPPED: cargo-deny is not installed; 'make deny' installs and runs it (1 min)"; fi; \
	exit $$failed

generate: rust ## write the generated files; seconds
	@echo "generate: writes the generated files (usually seconds)"
	@cargo run -q -p xtask -- generate

sim: rust ## simulated runs with random faults: SEEDS=n FROM=s, or SEED=x to replay one; 5 min to build, then 5 seeds a second
	@[ -n "$(SEED)" ] || echo "sim: simulates random faults on the embedded cluster (usually 5 min to build, then 5 seeds a second)"
	@cargo test -q --workspace --test sim

soak: rust ## many simulated runs, resumable: SEEDS=100000, FROM=s; one line a minute, the failing seeds at the end; Ctrl-C ends it
	@echo "soak: runs seeds that no run had before, or goes on with those of an earlier 'make soak' (usually 4 min to build)"
	@SOAK=1 cargo test -q --workspace --test sim

conformance: rust ## the API conformance cases on the embedded and on a real cluster: KUBE=1.34.4 for another version; 10 min cold, 1 min after that
	@echo "conformance: builds Kubernetes if it is missing, then runs the API conformance cases on both clusters (usually 10 min cold, 1 min after that)"
	@cargo run -q -p xtask -- prepare kubernetes
	@cargo test -q --workspace --test conformance

e2e: rust ## the tests of the real control plane; 10 min cold, 1 min after that
	@echo "e2e: builds Kubernetes if it is missing, then tests the real control plane (usually 10 min cold, 1 min after that)"
	@cargo run -q -p xtask -- prepare kubernetes
	@cargo test --workspace --test control_plane

bench: rust ## benchmarks with their budgets, into bench/RESULTS.md: ONLY=rss for one; 8 min to build, then 7 min
	@echo "bench: builds Kubernetes and the shipped binaries if they are missing, then measures (usually 8 min to build, then 7 min)"
	@cargo run -q --profile measure -p nodekeeper-bench -- $(addprefix --only ,$(ONLY))

demo: rust ## gate and remediation on an embedded cluster in one process: ARGS=--keep leaves it up; 4 min to build, then 1 min
	@echo "demo: 24 machines join an embedded cluster (usually 4 min to build, then 1 min); Ctrl-C ends it"
	@cargo build --workspace --bin nodekeeper --bin nodekeeper-worker
	@"$(BUILT)/nodekeeper" demo $(ARGS)

cluster-up: rust ## starts a cluster with real nodes for manual tests: NODES=3; needs root; 15 min cold, 15 s after that
	@echo "cluster-up: a control plane and $(or $(NODES),3) real nodes (usually 15 min cold, 15 s after that); 'make cluster-down' stops it"
	@cargo build -q --workspace --bin cluster
	@"$(BUILT)/cluster" up --nodes $(or $(NODES),3)

cluster-down: rust ## stops and removes that cluster; 2 s
	@echo "cluster-down: stops the cluster of 'make cluster-up' (usually 2 s)"
	@cargo build -q --workspace --bin cluster
	@"$(BUILT)/cluster" down

images: rust ## builds the static binaries for images and prints their sizes; 4 min, then seconds
	@echo "images: builds controller and worker as static binaries (usually 4 min, then seconds)"
	@cargo build -q --workspace --bin images
	@"$(BUILT)/images"

deny: rust ## licences, bans, sources and known advisories of all dependencies; 1 min to install cargo-deny, then seconds
	@echo "deny: cargo-deny on every dependency (usually 1 min to install it, then seconds)"
	@[ -n "$(DENY)" ] || CARGO_PROFILE_DEV_DEBUG=0 cargo install --debug --quiet --locked --root .tools cargo-deny
	@PATH="$$PATH:.tools/bin"; $(call deny_checks,cargo-deny) && \
	if cargo-deny fetch db >/dev/null 2>&1; then cargo-deny check advisories; \
	else echo "SKIPPED: advisories, because their database (github.com/rustsec/advisory-db) cannot be reached from here"; fi

clean: ## removes build output; seconds
	@echo "clean: removes target and .tools (seconds)"
	@rm -rf target .tools
	@if [ -n "$(CARGO_TARGET_DIR)" ]; then echo "CARGO_TARGET_DIR is $(CARGO_TARGET_DIR): it may be shared, so it is kept"; fi
	@echo "The built Kubernetes is kept in $(CACHE): it takes 5 to 9 minutes to build. To remove it: rm -rf '$(CACHE)'"

# Explains how to install Rust if it is missing. Cargo itself refuses versions older than `rust-version`.
rust:
	@cargo --version >/dev/null 2>&1 || { cargo --version; \
	echo "No working Rust found. Install 1.95 or newer with rustup:"; \
	echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y && . \"\$$HOME/.cargo/env\""; \
	exit 1; }
