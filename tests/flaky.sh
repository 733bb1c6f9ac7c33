#!/usr/bin/env bash
# `make flaky`: runs every test program repeatedly, alone and beside four busy processes, and prints the number of
# failures of each. A test that needs a second attempt is a defect, of the test or of the program. Results are stored in
# target/flaky, one line per run, so that an interrupted `make flaky` continues. FLAKY_SECONDS limits the time;
# FLAKY_ONLY is a pattern of names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin:${XDG_CACHE_HOME:-$HOME/.cache}/calico-tests/bin"
export RUST_BACKTRACE=0 RUST_TEST_THREADS="${RUST_TEST_THREADS:-$(($(nproc) * 2))}" FUZZ_SECONDS="${FUZZ_SECONDS:-5}"

results=target/flaky/results
mkdir -p target/flaky
touch "$results"
busy=()
stop_busy() {
    [ ${#busy[@]} = 0 ] || kill "${busy[@]}" 2>/dev/null || true
    busy=()
}
trap stop_busy EXIT

# Results are those of one build, and another build starts again.
tests/test-programs.sh --workspace 2>target/flaky/build.log >target/flaky/programs
build=$(cut -d' ' -f4 target/flaky/programs | xargs sha256sum | sha256sum | cut -c1-16)
if [ "$(cat target/flaky/build 2>/dev/null)" != "$build" ]; then
    # A suite that has ever failed is always run ten times.
    awk '$4 != "ok" { print $1 }' "$results" | sort -u >>target/flaky/failed
    : >"$results"
    echo "$build" >target/flaky/build
fi
touch target/flaky/failed

# A suite that waits for something can fail on a slow machine.
waits() { grep -rqsE 'await_|sleep\(|PATIENCE|wait_for' "$@"; }
rounds() {
    local name=$1
    shift
    if grep -qx "$name" target/flaky/failed || awk -v n="$name" '$1 == n && $4 != "ok" { found = 1 } END { exit !found }' "$results"; then
        echo 10
    elif waits "$@"; then
        echo 10
    else
        echo 3
    fi
}

run() {
    local name=$1 directory=$2 executable=$3 suite=$4 load=$5 round=$6 outcome=ok
    local log=target/flaky/${name//\//-}.$load.$round.log
    tests/run-program.sh "$directory" "$executable" "$suite" </dev/null >"$log" 2>&1 || outcome=FAILED
    [ $outcome != ok ] || rm -f "$log"
    echo "$name $load $round $outcome" | tee -a "$results"
}

be_busy() {
    for _ in 1 2 3 4; do
        (while :; do :; done) &
        busy+=($!)
    done
}

# Every program has its first round before any has its second, so that an early end still covers all programs.
end=$((SECONDS + ${FLAKY_SECONDS:-86400}))
for round in $(seq 10); do
    for load in alone busy; do
        [ $load = alone ] || be_busy
        while read -r name directory source executable suite; do
            [[ $name =~ ${FLAKY_ONLY:-.} ]] || continue
            # The modules of a.rs are in the folder a, those of main.rs and lib.rs beside it.
            places=("$source" "${source%.rs}")
            [[ ! $source =~ /(main|lib)\.rs$ ]] || places=("$(dirname "$source")")
            [ "$round" -le "$(rounds "$name" "${places[@]}")" ] || continue
            ! grep -q "^$name $load $round " "$results" || continue
            [ $SECONDS -lt $end ] || break 3
            run "$name" "$directory" "$executable" "$suite" $load "$round"
        done <target/flaky/programs
        stop_busy
    done
done
stop_busy

echo
awk '{ runs[$1 " " $2]++; if ($4 != "ok") failed[$1 " " $2]++ }
     END { for (s in runs) printf "%-60s %3d runs, %d failed\n", s, runs[s], failed[s] }' "$results" | sort
failures=$(grep -c ' FAILED$' "$results" || true)
echo "$(wc -l <"$results") runs, $failures failed; the logs of those are in target/flaky"
[ "$failures" = 0 ]
