#!/usr/bin/env bash
# `make test`: every stage in turn, each with its time, then one line that counts all tests. A failing stage does not
# stop the ones after it. With CI=true a skipped test is a failed one.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export PATH="$PATH:/usr/sbin:/sbin:${XDG_CACHE_HOME:-$HOME/.cache}/calico-tests/bin"
export CARGO_TERM_PROGRESS_WHEN=never RUST_BACKTRACE=0
locked=()
# A machine that builds once has no use for what speeds up the second build, and it is two thirds of the disk space.
[ "${CI:-}" != true ] || { locked=(--locked) && export CARGO_INCREMENTAL=0; }

logs=target/test-logs
rm -rf "$logs"
mkdir -p "$logs"
failed=()

# stage NAME COMMAND...: runs it, keeps what it printed, says how long it took
stage() {
    local name=$1 begin=$SECONDS status=ok
    shift
    echo "=== $name"
    "$@" </dev/null 2>&1 | tee "$logs/$name.log" || {
        status=FAILED
        failed+=("$name")
    }
    echo "=== $name: $status, $((SECONDS - begin)) s"
}

stage needs tests/install-needs.sh build image demo demo-kubernetes demo-controllers test
if [ ${#failed[@]} -gt 0 ]; then
    echo "nothing can run without these" >&2
    exit 1
fi
stage format cargo fmt --all --check
stage clippy cargo clippy "${locked[@]}" --workspace --all-targets -- -D warnings
# As kube-controllers has it, without SQLite: the workspace as a whole has every feature.
stage clippy-narrow cargo clippy "${locked[@]}" -p datastore -p ipam-plugin --no-default-features --lib -- -D warnings
stage documentation env RUSTDOCFLAGS="-D warnings" cargo doc "${locked[@]}" --workspace --no-deps --document-private-items
# What is on the machine before the first test must be all that is there after the last.
machine() { cargo run "${locked[@]}" --quiet -p integration-tests --bin machine-state; }
as_it_was() { machine | diff "$logs/machine.before" -; }
machine >"$logs/machine.before"
# Like the suites, these are left out by name where there is no control plane.
demo_on_api_server() {
    if PATH="$(tests/install-go-tools.sh --path):$PATH" type kube-apiserver kubectl >/dev/null 2>&1; then
        tests/demo/run.sh "$1"
    else
        echo "SKIPPED make demo-$1: there is no kube-apiserver or no kubectl"
    fi
}
programs() {
    local plugin status=0
    make --no-print-directory plugin PROFILE=release &
    plugin=$!
    make --no-print-directory controllers PROFILE=controllers || status=1
    wait "$plugin" || status=1
    return "$status"
}
image() {
    if [ -x "$(tests/install-go-tools.sh --place images)/images" ]; then
        deploy/images/build.sh --programs target/plugin --out target/test-images
    else
        echo "SKIPPED make image: what writes images could not be built"
    fi
}
stage unit env FUZZ_SECONDS="${FUZZ_SECONDS:-20}" cargo test "${locked[@]}" --no-fail-fast --workspace --exclude integration-tests
# What is tested is what is released, in its size too: an image has room for 12 MiB of ours. Both at once: the last step of
# each build, the optimisation of the whole program, uses one processor.
stage programs programs
stage image image
stage demo tests/demo/run.sh
stage demo-kubernetes demo_on_api_server kubernetes
stage demo-controllers demo_on_api_server controllers
# Suites wait for servers more than they compute: twice as many tests at once as there are processors.
stage suites env RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 2))}" \
    cargo test "${locked[@]}" --no-fail-fast -p integration-tests
stage machine-as-it-was as_it_was

# The sums of libtest's closing lines.
count() { sed -n "s/^test result: .* \([0-9]*\) $1;.*/\1/p" "$logs"/*.log | awk '{ n += $1 } END { print n + 0 }'; }
skips=$(grep -h '^SKIPPED ' "$logs"/*.log | sort -u || true)
# A test that another one runs, as a process of its own, says so; it is no skip.
ignored=$(grep -h ' \.\.\. ignored' "$logs"/*.log | grep -v ', run by ' || true)
skipped=$(($(grep -c . <<<"$skips") + $(grep -c . <<<"$ignored")))
[ -z "$skips" ] || printf 'skipped on this machine:\n%s\n' "$skips"
[ ${#failed[@]} = 0 ] || echo "failed stages: ${failed[*]}"
echo "whole run: $SECONDS s"
# A skipped test is counted by libtest as passed.
echo "$(($(count passed) - $(grep . <<<"$skips" | grep -vc '^SKIPPED make '))) passed, $(count failed) failed, $skipped skipped"

[ ${#failed[@]} = 0 ] || exit 1
[ "${CI:-}" != true ] || [ "$skipped" = 0 ] || { echo "skips are failures in CI" >&2; exit 1; }
