#!/usr/bin/env bash
# `make reproduce`: builds the release of the last commit twice, from scratch, and compares the results.
#
#   deploy/reproduce.sh [FOLDER]
#
# The first build is the same as `make release`. The second build is in another folder and downloads and builds its own
# crates, Go modules, Go, zig and plugins of the CNI project, with another umask, time zone and locale. That is the
# closest approximation of a second machine: only Rust and the C compiler are the same. The script takes 40 minutes and
# 12 GB on two cores. It works in FOLDER, by default a new folder in TMPDIR, and removes the folder if both releases are
# equal.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tree=$PWD
# The time of a release is that of its commit. A setting of this shell must not affect only one of the builds. The
# comparison needs no signature, and the clones do not have a key whose path is relative to the tree.
unset SOURCE_DATE_EPOCH CARGO_TARGET_DIR SIGNING_KEY
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    [ -z "$(ls -A "$1")" ] || { echo "$1 is not empty" >&2; exit 2; }
    work=$(cd "$1" && pwd)
else
    work=$(mktemp -d "${TMPDIR:-/tmp}/reproduce.XXXXXX")
fi
# cargo reads the settings of all parent folders, so below this tree it would read the tree's settings twice.
case $work/ in "$tree"/*) echo "$work is inside the tree; name a folder outside of it" >&2; exit 2 ;; esac
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain)" ] || echo "note: uncommitted changes are not included"

# Clones the commit and builds its release in the clone, with a log file beside it.
make_release() {
    local folder=$1 begin=$SECONDS
    echo "building the release of ${commit:0:12} in $folder: $folder.log shows the progress"
    mkdir -p "$(dirname "$folder")"
    git clone --quiet --no-checkout "$tree" "$folder"
    git -C "$folder" checkout --quiet --detach "$commit"
    make -C "$folder" release >"$folder.log" 2>&1 || { tail -n 20 "$folder.log" >&2; echo "no release: $folder.log" >&2; exit 1; }
    echo "built in $((SECONDS - begin)) s"
}

first=$work/one second=$work/somewhere/else/another
make_release "$first"
(
    umask 077
    export TZ=Pacific/Chatham LC_ALL=C.UTF-8 XDG_CACHE_HOME=$work/cache CARGO_HOME=$work/cargo
    make_release "$second"
)
first=$(echo "$first"/target/release-*) second=$(echo "$second"/target/release-*)
if ! diff "$first/SHA256SUMS" "$second/SHA256SUMS" || ! diff --recursive --brief "$first" "$second"; then
    echo "the releases differ; compare $first with $second" >&2
    exit 1
fi
for missing in {cni,kube-controllers}:{amd64,arm64}; do
    grep -q "/${missing%:*}:.* linux/${missing#*:}\$" "$first/digests.txt" || { echo "no image $missing was built" >&2; exit 1; }
done
echo "identical: $(wc -l <"$first/SHA256SUMS") files, among them both images for both architectures"
cat "$first/SHA256SUMS" "$first/digests.txt"
rm -rf "$work"
