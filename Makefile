# The commands people type. `make` alone lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Where the programs are put, each one file under its two names.
PLUGIN := target/plugin
MUSL := $(shell uname -m)-unknown-linux-musl
# CI builds exactly what Cargo.lock says.
LOCKED := $(if $(filter true,$(CI)),--locked)

.PHONY: help demo demo-kubernetes demo-controllers e2e test flaky bench bench-controllers fuzz-faults fuzz-tenant build build-test image release reproduce generate lint clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## three pods on two nodes in private namespaces, start to end (KEEP=1: leave them up)
	@tests/install-needs.sh demo
	@tests/demo/run.sh

demo-kubernetes: build ## two pods of a real API server, as kubelet calls, with its outage (KEEP=1: leave it up)
	@tests/install-needs.sh demo-kubernetes
	@tests/demo/run.sh kubernetes

demo-controllers: build ## leaks collected, a policy converted, a leader replaced, a node deleted (KEEP=1: leave it up)
	@tests/install-needs.sh demo-controllers
	@tests/demo/run.sh controllers

# The images are called as in deploy/install.yaml, whatever the variables of this shell say. A quick build may be of any size.
e2e: build ## a real node, kubelet and containerd: installed, upgraded, power failure, uninstalled (KEEP=1: leave it up)
	@tests/install-needs.sh e2e image
	@env -u REGISTRY -u VERSION deploy/images/build.sh --programs $(PLUGIN) --out target/images-here
	@CALICO_VERSION=v0.0.9 $(MAKE) --no-print-directory plugin PROFILE=quick PLUGIN=target/plugin-former
	@install -m 0755 $(PLUGIN)/kube-controllers target/plugin-former/
	@env -u REGISTRY VERSION=v0.0.9 MOST_BYTES=1000000000 deploy/images/build.sh --programs target/plugin-former --out target/images-former
	@tests/demo/run.sh node

test: ## everything: lint, unit tests, golden replays, faults, podman; what was skipped is named
	@tests/run.sh

# Goes on where it stopped: FLAKY_SECONDS=3600 make flaky is an hour of it.
flaky: build-test ## each test program three or ten times, alone and beside four busy processes; tells which failed how often
	@tests/install-needs.sh demo test
	@tests/flaky.sh

bench: build ## speed against the floor of this machine, as a table
	@tests/install-needs.sh bench
	@tests/bench.sh

bench-controllers: build ## kube-controllers on 20,000 and on 150,000 pods: memory, processor, speed of garbage collection
	@tests/install-needs.sh bench
	@tests/bench-controllers.sh

# Each of etcd, v1 and v3 has worlds of its own, all three at once.
fuzz-faults: build-test ## calls of two nodes with random faults for an hour (FUZZ_FAULTS_SECONDS, FUZZ_FAULTS_SEED: how long, which)
	@tests/install-needs.sh test
	@FUZZ_FAULTS_SECONDS=$${FUZZ_FAULTS_SECONDS:-3600} cargo test $(LOCKED) -p integration-tests --test fuzz_faults -- --test-threads=3

fuzz-tenant: build-test ## a tenant's texts beside other owners' pods for an hour (FUZZ_TENANT_SECONDS, FUZZ_TENANT_SEED)
	@tests/install-needs.sh test
	@FUZZ_TENANT_SECONDS=$${FUZZ_TENANT_SECONDS:-3600} cargo test $(LOCKED) -p integration-tests --test tenant -- --test-threads=3

build: ## the plugin and kube-controllers, each one static binary under two names, in target/plugin
	@tests/install-needs.sh build
	@$(MAKE) --no-print-directory plugin PROFILE=release
	@$(MAKE) --no-print-directory controllers PROFILE=controllers

build-test: ## the same with a faster build, for daily work
	@tests/install-needs.sh build
	@$(MAKE) --no-print-directory plugin PROFILE=quick
	@$(MAKE) --no-print-directory controllers PROFILE=controllers-quick

.PHONY: plugin controllers program
plugin:
	@$(MAKE) --no-print-directory program PACKAGE=cni-plugin PROGRAM=calico ALIAS=calico-ipam

controllers:
	@$(MAKE) --no-print-directory program PACKAGE=kube-controllers PROGRAM=kube-controllers ALIAS=check-status NAMES=kube-controllers.debug

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
	$(if $(NAMES),deploy/names-apart.sh $(PLUGIN)/.$(PROGRAM).new $(PLUGIN)/$(NAMES);) \
	mv -f $(PLUGIN)/.$(PROGRAM).new $(PLUGIN)/$(PROGRAM); \
	ln -f $(PLUGIN)/$(PROGRAM) $(PLUGIN)/$(ALIAS); \
	echo "$(PLUGIN)/$(PROGRAM) = $(PLUGIN)/$(ALIAS): $$(stat -c %s $(PLUGIN)/$(PROGRAM)) bytes ($(PROFILE))"

image: ## the images cni and kube-controllers for amd64 and arm64, as OCI layouts in target/images
	@tests/install-needs.sh build image
	@deploy/images/build.sh

release: ## all that a release has, in target/release-VERSION, from a clean tree: programs, images, manifests, chart, checksums
	@tests/install-needs.sh build image
	@tests/install-go-tools.sh kubectl
	@deploy/release.sh

reproduce: ## make the release of the last commit twice, the second time with nothing of the first, and compare (40 minutes)
	@tests/install-needs.sh build image
	@deploy/reproduce.sh

generate: ## write deploy/ files that come from the code (JSON Schema of the configuration, CRDs, version) and deploy/install.yaml
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
	@mv target/install.yaml deploy/install.yaml
	@git status --short deploy

lint: ## formatting, clippy and documentation, warnings as errors
	@cargo fmt --all --check
	@cargo clippy $(LOCKED) --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc $(LOCKED) --workspace --no-deps --document-private-items

clean: ## remove what was built
	cargo clean
