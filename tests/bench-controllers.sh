#!/usr/bin/env bash
# `make bench-controllers`: measures target/plugin/kube-controllers on large clusters and prints the tables of
# docs/performance.md, also to target/bench-controllers/table.md. SCENARIOS="real served growth" selects the scenarios;
# UPDATE_DOCS=1, formerly UPDATE_README=1, writes the tables into docs/performance.md. Without a kube-apiserver
# (tests/install-go-tools.sh) the scenario `real` is left out, and a line reports it. Needs 3 GiB of memory for the
# clusters. Run it on an otherwise idle machine.
#
#   tests/bench-controllers.sh bench-migration
#
# `make bench-migration`: does the same with the scenario `migration` alone, a migration of 20,000 objects to
# projectcalico.org/v3 in a real API server, and fails if kube-controllers need more than 64 MiB. Takes about ten
# minutes and 3 GiB of memory, most of both for the API server. Without a kube-apiserver a line reports that nothing is
# measured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" RUST_BACKTRACE=0
name=${1:-bench-controllers}
scenarios=${SCENARIOS:-}
[ "$name" != bench-migration ] || scenarios=migration
work=target/$name
rm -rf "$work"
mkdir -p "$work"

cargo build --release -p integration-tests --bin bench-controllers
bench=(target/release/bench-controllers target/plugin/kube-controllers "$work")
# shellcheck disable=SC2206 # one word for each scenario
bench+=($scenarios)
[ "$(id -u)" = 0 ] || bench=(unshare --user --map-root-user "${bench[@]}")
"${bench[@]}" | tee "$work/table.md"

if [ "${UPDATE_DOCS:-${UPDATE_README:-}}" = 1 ]; then
    sed -i -e "/^<!-- $name -->\$/,/^<!-- end of $name -->\$/ { //!d }" \
        -e "/^<!-- $name -->\$/r $work/table.md" docs/performance.md
fi
