#!/usr/bin/env bash
# `make bench`: measures target/plugin against the floor of this machine and prints the tables of
# docs/performance.md, also to target/bench/table.md. QUICK=1 leaves out the block engine; UPDATE_DOCS=1, formerly
# UPDATE_README=1, writes the tables into docs/performance.md. Without a kube-apiserver (tests/install-go-tools.sh) the
# tables of Kubernetes are left out, and a line reports it. Run it on an otherwise idle machine, since the medians
# depend on the load.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PATH:/usr/sbin:/sbin" RUST_BACKTRACE=0
work=target/bench
rm -rf "$work"
mkdir -p "$work"

# The floor is linked like the plugin; otherwise the comparison would include the C library.
musl=$(uname -m)-unknown-linux-musl
build=(cargo build --release -p integration-tests --bin floor --bin bench)
if [ -d "$(rustc --print target-libdir --target "$musl" 2>/dev/null)" ]; then
    build+=(--target "$musl")
    built=target/$musl/release
else
    built=target/release
fi
"${build[@]}"

bench=("$built/bench" target/plugin "$built/floor" "$work")
[ "$(id -u)" = 0 ] || bench=(unshare --user --map-root-user "${bench[@]}")
"${bench[@]}" | tee "$work/table.md"

block_engine() {
    echo
    echo "| block engine | per second |"
    echo "|---|---:|"
    # Criterion prints: test NAME ... bench:  1,234 ns/iter (+/- 5)
    cargo bench -q -p libcalico --bench block --bench selector -- --output-format bencher |
        sed -n 's/^test \(.*\) \.\.\. bench: *\([0-9,]*\) ns.*/\1;\2/p' |
        awk -F ';' '{ gsub(",", "", $2); if ($2 > 0) printf "| %s | %d |\n", $1, 1e9 / $2 }'
}
[ "${QUICK:-}" = 1 ] || block_engine | tee -a "$work/table.md"

if [ "${UPDATE_DOCS:-${UPDATE_README:-}}" = 1 ]; then
    sed -i -e '/^<!-- bench -->$/,/^<!-- end of bench -->$/ { //!d }' \
        -e "/^<!-- bench -->\$/r $work/table.md" docs/performance.md
fi
