#!/usr/bin/env bash
# `make bench-migration`: measures a migration of 20,000 objects to projectcalico.org/v3 by target/plugin/kube-controllers
# in a real API server, prints its table of docs/performance.md, and fails if kube-controllers need more than 64 MiB.
# UPDATE_DOCS=1 writes the table into docs/performance.md. Without a kube-apiserver (tests/install-go-tools.sh) a line
# reports that nothing is measured. Takes about ten minutes and 3 GiB of memory, most of both for the API server.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" RUST_BACKTRACE=0
work=target/bench-migration
rm -rf "$work"
mkdir -p "$work"

cargo build --release -p integration-tests --bin bench-controllers
bench=(target/release/bench-controllers target/plugin/kube-controllers "$work" migration)
[ "$(id -u)" = 0 ] || bench=(unshare --user --map-root-user "${bench[@]}")
"${bench[@]}" | tee "$work/table.md"

if [ "${UPDATE_DOCS:-}" = 1 ]; then
    sed -i -e '/^<!-- bench-migration -->$/,/^<!-- end of bench-migration -->$/ { //!d }' \
        -e "/^<!-- bench-migration -->\$/r $work/table.md" docs/performance.md
fi
