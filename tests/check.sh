#!/usr/bin/env bash
# `make check`: the checks before each commit, without programs, servers and privileges: formatting, lints, each crate
# alone, unit tests, and the rules for sources, documents and dependencies. A failing stage does not stop the following
# ones.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export CARGO_TERM_PROGRESS_WHEN=never RUST_BACKTRACE=0 FUZZ_SECONDS="${FUZZ_SECONDS:-1}"
# Two of the rules need programs that `make test` installs.
export MAY_SKIP=1
failed=()

# stage NAME COMMAND...: runs the command, and prints its output if it fails
stage() {
    local name=$1 begin=$SECONDS output
    shift
    if output=$("$@" </dev/null 2>&1); then
        grep '^SKIPPED ' <<<"$output" || true
        echo "$name: ok, $((SECONDS - begin)) s"
    else
        printf '%s\n%s: FAILED, %s s\n' "$output" "$name" "$((SECONDS - begin))"
        failed+=("$name")
    fi
}

# The other stages build each crate with the features that any crate asks for. A crate must also compile with those of the
# programs that use it: calico-ipam without the embedded datastore, the plugin, kube-controllers.
alone() {
    cargo check --quiet --lib --no-default-features -p netconf -p libcalico -p os -p node-process -p datastore \
        -p dataplane -p allocation -p ipam-plugin || return
    cargo check --quiet --lib -p installation -p installer -p node-agent -p doctor -p node-commands -p cni-plugin || return
    cargo check --quiet --lib -p kube-controllers -p migration
}

stage format cargo fmt --all --check
stage clippy cargo clippy --quiet --workspace --all-targets -- -D warnings
stage alone alone
# Each of these stages names the same crates: another set enables other features, for which the compiler would build all
# crates once more.
crates=(--workspace --exclude integration-tests)
stage unit cargo test --quiet "${crates[@]}" --lib
# A key of the configuration without an entry in the schema is found here.
keys=()
for source in netconf/tests/*; do
    name=${source##*/}
    keys+=(--test "${name%.rs}")
done
stage keys cargo test --quiet "${crates[@]}" "${keys[@]}"
stage rules cargo test --quiet "${crates[@]}" --test sources --test dependencies
[ ${#failed[@]} = 0 ] || {
    echo "failed: ${failed[*]}"
    exit 1
}
