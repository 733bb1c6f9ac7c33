# The commands for developers. `make` without a target lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The folder of the built programs. Each program is a single file with two names.
PLUGIN := target/plugin
MUSL := $(shell uname -m)-unknown-linux-musl
# CI builds with exactly the versions in Cargo.lock.
LOCKED := $(if $(filter true,$(CI)),--locked)

.PHONY: help check suite demo demo-kubernetes demo-controllers e2e test flaky bench bench-controllers bench-migration fuzz-faults fuzz-tenant simulate build build-test image release publish reproduce generate audit lint clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The demos build only the programs that they run, without the slow optimization of a release.
demo: ## run three pods on two nodes in private namespaces (KEEP=1: leave them running)
	@tests/install-needs.sh build demo
	@$(MAKE) --no-print-directory plugin PROFILE=quick
	@tests/demo/run.sh

demo-kubernetes: ## run two pods with a real API server, with calls like kubelet's and an outage (KEEP=1: leave it running)
	@tests/install-needs.sh build demo-kubernetes
	@$(MAKE) --no-print-directory plugin PROFILE=quick
	@tests/demo/run.sh kubernetes

demo-controllers: ## run kube-controllers: release a leak, convert a policy, replace a leader, delete a node (KEEP=1: leave it running)
	@tests/install-needs.sh build demo-controllers
	@$(MAKE) --no-print-directory plugin PROFILE=quick
	@$(MAKE) --no-print-directory controllers PROFILE=quick
	@tests/demo/run.sh controllers

# The images have the names of deploy/install.yaml, independently of the variables of this shell. A quick build may have
# any size.
e2e: build ## test a real node with kubelet and containerd: install, upgrade, power failure, uninstall (KEEP=1: leave it running)
	@tests/install-needs.sh e2e image
	@env -u REGISTRY -u VERSION deploy/images/build.sh --programs $(PLUGIN) --out target/images-here
	@CALICO_VERSION=v0.0.9 $(MAKE) --no-print-directory plugin PROFILE=quick PLUGIN=target/plugin-former
	@install -m 0755 $(PLUGIN)/kube-controllers target/plugin-former/
	@env -u REGISTRY VERSION=v0.0.9 MOST_BYTES=1000000000 deploy/images/build.sh --programs target/plugin-former --out target/images-former
	@tests/demo/run.sh node

check: ## the checks before a commit: formatting, lints, unit tests, rules for sources and documents (3 minutes)
	@tests/install-needs.sh build check
	@tests/check.sh

# The programs are built quickly.
suite: ## run one suite, or its tests whose names contain TEST: make suite NAME=kubernetes_pods TEST=late_del (first: half an hour)
	@[ -n "$(NAME)" ] || { echo "which suite? make suite NAME=SUITE [TEST=PART_OF_A_NAME]; suites: docs/testing.md#suites" >&2; exit 2; }
	@echo "the first run also installs and builds all that suites need: half an hour on two cores"
	@tests/install-needs.sh build test
	@$(MAKE) --no-print-directory build-test
	@PATH="$$(tests/install-go-tools.sh --path):$$PATH:/usr/sbin:/sbin:$${XDG_CACHE_HOME:-$$HOME/.cache}/calico-tests/bin" \
	    tests/suite.sh "$(NAME)" "$(TEST)"

test: ## run all tests: lint, unit tests, golden replays, faults, podman; list the skipped ones
	@tests/run.sh

# Each run continues after the previous one: `FLAKY_SECONDS=3600 make flaky` runs for an hour.
flaky: build-test ## run each test program three or ten times, alone and beside four busy processes; count the failures
	@tests/install-needs.sh demo test
	@tests/flaky.sh

bench: build ## measure the speed against the minimum that this machine permits, as a table
	@tests/install-needs.sh bench
	@tests/bench.sh

bench-controllers: build ## measure kube-controllers with 20,000 and 150,000 pods: memory, CPU, speed of garbage collection
	@tests/install-needs.sh bench
	@tests/bench-controllers.sh

bench-migration: build ## measure a migration of 20,000 objects to projectcalico.org/v3: memory (at most 64 MiB), time of the lock, requests
	@tests/install-needs.sh bench
	@tests/bench-controllers.sh bench-migration

# The tests of etcd, v1 and v3 run concurrently, each with its own clusters.
fuzz-faults: build-test ## run calls of two nodes with random faults for an hour (FUZZ_FAULTS_SECONDS: duration, FUZZ_FAULTS_SEED: seed)
	@tests/install-needs.sh test
	@FUZZ_FAULTS_SECONDS=$${FUZZ_FAULTS_SECONDS:-3600} RUST_TEST_THREADS=3 tests/suite.sh fuzz_faults

fuzz-tenant: build-test ## run pods with arbitrary texts of a tenant beside pods of other owners for an hour (FUZZ_TENANT_SECONDS, FUZZ_TENANT_SEED)
	@tests/install-needs.sh test
	@FUZZ_TENANT_SECONDS=$${FUZZ_TENANT_SECONDS:-3600} RUST_TEST_THREADS=3 tests/suite.sh tenant

# Optimized, because schedules take computing time only.
simulate: ## run calls of many nodes in one process, in a million drawn orders (SCHEDULES, SEED, PLANT: a fault to find)
	@tests/install-needs.sh build
	@cargo run $(LOCKED) --quiet --profile simulate -p simulation --bin simulate -- --schedules $${SCHEDULES:-1000000} --seed $${SEED:-0} $${PLANT:+--plant $$PLANT}

build: ## build the plugin and kube-controllers in target/plugin, each a static binary with two names
	@tests/install-needs.sh build
	@$(MAKE) --no-print-directory plugin PROFILE=release
	@$(MAKE) --no-print-directory controllers PROFILE=controllers

build-test: ## build the same programs faster, for daily work
	@tests/install-needs.sh build
	@$(MAKE) --no-print-directory plugin PROFILE=quick
	@$(MAKE) --no-print-directory controllers PROFILE=quick

.PHONY: plugin controllers program
plugin:
	@$(MAKE) --no-print-directory program PACKAGE=cni-plugin PROGRAM=calico ALIAS=calico-ipam

controllers:
	@$(MAKE) --no-print-directory program PACKAGE=kube-controllers-program PROGRAM=kube-controllers ALIAS=check-status NAMES=kube-controllers.debug

program:
	@if rustc --print target-libdir --target $(MUSL) 2>/dev/null | xargs -I{} test -d {}; then \
	    cargo build $(LOCKED) --profile $(PROFILE) -p $(PACKAGE) --bin $(PROGRAM) --target $(MUSL); \
	    built=target/$(MUSL)/$(PROFILE)/$(PROGRAM); \
	else \
	    echo "note: no Rust target $(MUSL) here; building against this machine's glibc (slower start)" >&2; \
	    cargo build $(LOCKED) --profile $(PROFILE) -p $(PACKAGE) --bin $(PROGRAM); \
	    built=target/$(PROFILE)/$(PROGRAM); \
	fi; \
	mkdir -p $(PLUGIN); \
	install -m 0755 "$$built" $(PLUGIN)/.$(PROGRAM).new; \
	$(if $(NAMES),deploy/split-symbols.sh $(PLUGIN)/.$(PROGRAM).new $(PLUGIN)/$(NAMES);) \
	mv -f $(PLUGIN)/.$(PROGRAM).new $(PLUGIN)/$(PROGRAM); \
	ln -f $(PLUGIN)/$(PROGRAM) $(PLUGIN)/$(ALIAS); \
	echo "$(PLUGIN)/$(PROGRAM) = $(PLUGIN)/$(ALIAS): $$(stat -c %s $(PLUGIN)/$(PROGRAM)) bytes ($(PROFILE))"

image: ## build the images cni and kube-controllers for amd64 and arm64, as OCI layouts in target/images
	@tests/install-needs.sh build image
	@deploy/images/build.sh

release: ## build a release in target/release-VERSION from a clean tree: programs, images, manifests, chart, checksums (SIGNING_KEY: sign them)
	@tests/install-needs.sh build image
	@tests/install-go-tools.sh kubectl
	@deploy/release.sh

publish: ## push the images, bills of materials, provenance and chart of target/release-VERSION to its registry; needs the network
	@tests/install-needs.sh image
	@deploy/publish.sh "target/release-$$(deploy/version.sh)"

reproduce: ## build the release of the last commit twice, with separate downloads and caches, and compare (40 minutes)
	@tests/install-needs.sh build image
	@deploy/reproduce.sh

generate: ## write the generated files of deploy/: JSON Schema of the configuration, CRDs, version, manifests, chart README
	@tests/install-needs.sh build image
	@mkdir -p target
	@deploy/version.sh --stamp
	@cargo run -q $(LOCKED) -p netconf --features schema >target/netconf.schema.json
	@mv target/netconf.schema.json deploy/netconf.schema.json
	@rm -rf target/crds
	@cargo run -q $(LOCKED) -p libcalico --features schema --bin crds -- target/crds
	@rm -rf deploy/crds
	@mv target/crds deploy/crds
	@tests/install-go-tools.sh kubectl
	@deploy/render.sh >target/install.yaml
	@deploy/render.sh workloads >target/workloads.yaml
	@mv target/install.yaml target/workloads.yaml deploy/
	@deploy/helm/readme.sh >target/chart.md
	@mv target/chart.md deploy/helm/calico-cni/README.md
	@git status --short deploy

audit: ## look for published security advisories of the crates (RustSec) and of the Go programs; needs the network
	@tests/install-needs.sh image
	@"$$(tests/install-cargo-deny.sh)" check advisories
	@tests/audit-go.sh

lint: ## check formatting, clippy and documentation, with warnings as errors
	@cargo fmt --all --check
	@cargo clippy $(LOCKED) --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc $(LOCKED) --workspace --no-deps --document-private-items

clean: ## remove all build results
	cargo clean
