#!/usr/bin/env bash
# `make bench-controllers`: measures target/plugin/kube-controllers on large clusters and prints the tables of
# docs/performance.md, also to target/bench-controllers/table.md. SCENARIOS="real served growth" selects the scenarios;
# UPDATE_DOCS=1, formerly UPDATE_README=1, writes the tables into docs/performance.md. Without a kube-apiserver
# (tests/install-go-tools.sh) the scenario `real` is left out, and a line reports it. Needs 3 GiB of memory for the
# clusters. Run it on an otherwise idle machine.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" RUST_BACKTRACE=0
work=target/bench-controllers
rm -rf "$work"
mkdir -p "$work"

cargo build --release -p integration-tests --bin bench-controllers
bench=(target/release/bench-controllers target/plugin/kube-controllers "$work")
# shellcheck disable=SC2206 # one word for each scenario
bench+=(${SCENARIOS:-})
[ "$(id -u)" = 0 ] || bench=(unshare --user --map-root-user "${bench[@]}")
"${bench[@]}" | tee "$work/table.md"

if [ "${UPDATE_DOCS:-${UPDATE_README:-}}" = 1 ]; then
    sed -i -e '/^<!-- bench-controllers -->$/,/^<!-- end of bench-controllers -->$/ { //!d }' \
        -e "/^<!-- bench-controllers -->\$/r $work/table.md" docs/performance.md
fi
