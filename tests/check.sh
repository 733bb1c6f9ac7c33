#!/usr/bin/env bash
# `make check`: the checks before each commit, without programs, servers and privileges: formatting, lints, each crate
# alone, unit tests, and the rules for sources, documents and dependencies. A failing stage does not stop the following
# ones.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export CARGO_TERM_PROGRESS_WHEN=never RUST_BACKTRACE=0 FUZZ_SECONDS="${FUZZ_SECONDS:-1}" KILL_EVERY="${KILL_EVERY:-4}"
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

# All tests are built at once. Another set of crates or of tests enables other features, for which the compiler would build
# the crates once more. The tests named by their files find a key of the configuration without an entry in the schema, and
# what breaks a rule for sources, documents or dependencies.
programs=target/check-programs
build() {
    mkdir -p target
    rm -f "$programs"
    local source tests=()
    for source in netconf/tests/* tests/repository/tests/*; do
        source=${source##*/}
        tests+=(--test "${source%.rs}")
    done
    tests/test-programs.sh --quiet --workspace --exclude integration-tests --exclude on --lib "${tests[@]}" >"$programs"
}
# run_one DIRECTORY PROGRAM: runs a test program, and prints its output if a test fails
run_one() {
    local output
    if output=$(tests/run-program.sh "$@" 2>&1); then
        grep '^SKIPPED ' <<<"$output" || true
    else
        echo "$output"
        return 1
    fi
}
export -f run_one
# Two programs run at a time, because one long test keeps one processor busy.
run() { cut -d ' ' -f 2,4 "$programs" | xargs --max-procs=2 --max-lines=1 bash -c 'run_one "$@"' run; }

stage format cargo fmt --all --check
stage build build
# The tests run beside the lints: neither keeps two processors busy all the time.
if [ -s "$programs" ]; then
    (failed=() && stage tests run && [ ${#failed[@]} = 0 ]) >target/check-tests &
    tests=$!
fi
stage clippy cargo clippy --quiet --workspace --all-targets -- -D warnings
stage alone alone
if [ -n "${tests:-}" ]; then
    wait "$tests" || failed+=(tests)
    cat target/check-tests
fi
[ ${#failed[@]} = 0 ] || {
    echo "failed: ${failed[*]}"
    exit 1
}
