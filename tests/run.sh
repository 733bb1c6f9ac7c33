#!/usr/bin/env bash
# `make test`: every stage in turn, each with its duration, then one line with the number of all tests. A failing stage
# does not stop the following ones. With CI=true a test that cannot run fails.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
export PATH="$PATH:/usr/sbin:/sbin:${XDG_CACHE_HOME:-$HOME/.cache}/calico-tests/bin"
export CARGO_TERM_PROGRESS_WHEN=never RUST_BACKTRACE=0
# Elsewhere a test that the machine cannot run is skipped, and counted at the end.
[ "${CI:-}" = true ] || export MAY_SKIP=1
locked=()
# CI builds only once, so it needs no incremental build data, which is two thirds of the disk space. Without backtraces
# it needs no line numbers either, which take time in the compiler and in the linker of each of 100 test programs.
[ "${CI:-}" != true ] || { locked=(--locked) && export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0; }

logs=target/test-logs
rm -rf "$logs"
mkdir -p "$logs"
failed=()

# stage NAME COMMAND...: runs the command, stores its output, prints its duration
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
    echo "cannot continue without these packages and programs" >&2
    exit 1
fi
# The start of an API server allocates so much that the collection of garbage takes a large part of the processor time
# (kubernetes/kubernetes#66368). With these values a program in Go collects no garbage below this much memory. Each of
# the two suites has at most one API server per running test, and three that wait for a test: twelve on two processors.
export GOGC="${GOGC:-off}" GOMEMLIMIT="${GOMEMLIMIT:-512MiB}"
stage format cargo fmt --all --check
stage clippy cargo clippy "${locked[@]}" --workspace --all-targets -- -D warnings
stage documentation env RUSTDOCFLAGS="-D warnings" cargo doc "${locked[@]}" --workspace --no-deps --document-private-items
# The programs of all tests are built together. For another set of crates, which enables other features, the compiler
# would build the dependencies again.
build() { tests/test-programs.sh "${locked[@]}" --workspace >"$logs/programs"; }
stage build build
# The state of the machine before the first test must be the same after the last. The program is part of the build,
# because it is in a crate with suites.
machine() { target/debug/machine-state; }
# The servers of the last suite may take a moment to exit.
as_it_was() {
    for _ in {1..100}; do
        machine | diff "$logs/machine.before" - >/dev/null && return
        sleep 0.1
    done
    machine | diff "$logs/machine.before" -
}
machine >"$logs/machine.before"
# Skipped by name without a control plane, as the suites are.
demo_on_api_server() {
    if PATH="$(tests/install-go-tools.sh --path):$PATH" type kube-apiserver kubectl >/dev/null 2>&1; then
        tests/demo/run.sh "$1"
    else
        echo "SKIPPED make demo-$1: there is no kube-apiserver or no kubectl"
    fi
}
# kube-controllers is built without SQLite. The other stages build the workspace with every feature, and so miss code
# that kube-controllers does not use.
programs() {
    local plugin status=0
    make --no-print-directory plugin PROFILE=release &
    plugin=$!
    make --no-print-directory controllers PROFILE=controllers 2>&1 | tee "$logs/controllers" || status=1
    wait "$plugin" || status=1
    ! grep -q '^warning' "$logs/controllers" || status=1
    return "$status"
}
image() {
    if [ -x "$(tests/install-go-tools.sh --place images)/images" ]; then
        deploy/images/build.sh --programs target/plugin --out target/test-images
    else
        echo "SKIPPED make image: the image tool could not be built"
    fi
}
# job NAME COMMAND...: runs the command, and prints its output when it ends
job() {
    local name=$1 begin=$SECONDS status=ok log=$logs/jobs/${1//\//-}.log
    shift
    "$@" >"$log" 2>&1 || {
        status=FAILED
        echo "$name" >>"$logs/failed-jobs"
    }
    {
        flock 9
        echo "--- $name"
        cat "$log"
        echo "--- $name: $status, $((SECONDS - begin)) s"
    } 9>"$logs/lock"
    [ $status = ok ]
}
# Runs the jobs of its input, a line with name and command for each, two at a time.
two_at_a_time() {
    mkdir -p "$logs/jobs"
    xargs --max-procs=2 --max-lines=1 bash -c 'job "$@"' job
}
export logs
export -f job demo_on_api_server
# The tests of each crate; the suites in `tests` run later. One long test keeps one processor busy.
unit() {
    grep -v '^tests/' "$logs/programs" | while read -r name directory _ program; do
        echo "$name tests/run-program.sh $directory $program"
    done | two_at_a_time
}
FUZZ_SECONDS="${FUZZ_SECONDS:-10}" stage unit unit
# The tests run the released programs, whose size matters too: an image has room for 12 MiB of them. Both are built
# together, because the last step of each build, the optimization of the whole program, uses a single processor.
stage programs programs
stage image image
# Suites wait for servers for a part of their time, so two of them run at a time, each with one test more than there are
# processors. The suites with the largest numbers start first, so that no processor waits for the last one: `number` is
# about the minutes of a suite on two processors.
number() {
    case $1 in
    demo*) echo 9 ;;
    faults_kubernetes) echo 4 ;;
    chained_plugins | concurrency | controllers_leader | controllers_rbac | controllers_start | deploy_manifests | \
        installer_agent | installer_doctor | kubernetes_annotations | migration_to_v3 | faults_etcd) echo 2 ;;
    adopt | busy_addresses | controllers_* | deploy_helm | deploy_release | golden_kubernetes | installer_install | \
        integration_tests | journal | kubernetes_requests | mixed_history | stolen_tokens) echo 1 ;;
    *) echo 0 ;;
    esac
}
suites() {
    local name directory program suite
    export RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) + 1))}"
    {
        echo demo tests/demo/run.sh
        echo demo-kubernetes demo_on_api_server kubernetes
        echo demo-controllers demo_on_api_server controllers
        grep '^tests/' "$logs/programs" | while read -r name directory _ program suite; do
            echo "${name#*/} tests/run-program.sh $directory $program $suite"
        done
        echo "doc cargo test ${locked[*]} --doc --workspace"
    } | while read -r name rest; do echo "$(number "$name") $name $rest"; done | sort --stable --key 1,1nr | cut -d ' ' -f 2- |
        two_at_a_time
}
stage suites suites
stage machine-as-it-was as_it_was

# Sums the closing lines of libtest.
count() { sed -n "s/^test result: .* \([0-9]*\) $1;.*/\1/p" "$logs"/*.log | awk '{ n += $1 } END { print n + 0 }'; }
skips=$(grep -h '^SKIPPED ' "$logs"/*.log | sort -u || true)
# A test that another test runs in a separate process is reported as ignored, but is not skipped.
ignored=$(grep -h ' \.\.\. ignored' "$logs"/*.log | grep -v ', run by ' || true)
skipped=$(($(grep -c . <<<"$skips") + $(grep -c . <<<"$ignored")))
[ -z "$skips" ] || printf 'skipped on this machine:\n%s\n' "$skips"
# The reasons of failures are repeated at the end, because the log of a run in CI is often cut off at its beginning.
# reason NAME LOG: the failed tests in the log with their output, and the panics of tests that run in another process;
# the last lines of the log if no test failed, as when a signal ended the program
reason() {
    echo "=== why $1 failed"
    sed -n -e '/^failures:$/,/^test result: FAILED/{p;b' -e '}' -e '/^thread .* panicked at /,+9p' "$2"
    grep -q '^test result: FAILED' "$2" || tail -n 20 "$2"
}
for name in "${failed[@]}"; do
    [[ $name = unit || $name = suites ]] || reason "$name" "$logs/$name.log"
done
[ ! -e "$logs/failed-jobs" ] || {
    while read -r job; do reason "$job" "$logs/jobs/${job//\//-}.log"; done <"$logs/failed-jobs"
    echo "failed: $(paste -sd ' ' "$logs/failed-jobs")"
}
[ ${#failed[@]} = 0 ] || echo "failed stages: ${failed[*]}"
echo "whole run: $SECONDS s"
# libtest counts a skipped test as passed.
echo "$(($(count passed) - $(grep . <<<"$skips" | grep -vc '^SKIPPED make '))) passed, $(count failed) failed, $skipped skipped"

[ ${#failed[@]} = 0 ] || exit 1
[ "${CI:-}" != true ] || [ "$skipped" = 0 ] || { echo "skips are failures in CI" >&2; exit 1; }
