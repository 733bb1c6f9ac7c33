#!/usr/bin/env bash
# `make reproduce`: makes the release of the last commit twice, from nothing, and says whether it came out the same.
#
#   deploy/reproduce.sh [FOLDER]
#
# The first is made as `make release` makes it. The second lies in another folder and has crates, Go modules, Go, zig and the
# plugins of the CNI project of its own, fetched and built anew, another umask, time zone and language: as near as one machine comes
# to being two. Only Rust and the C compiler are the same. Takes 40 minutes and 12 GB on two cores; FOLDER is where, a new one
# in TMPDIR otherwise. It is removed if both are the same, and kept if not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tree=$PWD
# The time of a release is its commit's; and a name for the images must not be in one alone.
unset SOURCE_DATE_EPOCH CARGO_TARGET_DIR
if [ $# -gt 0 ]; then
    mkdir -p "$1"
    [ -z "$(ls -A "$1")" ] || { echo "$1 is not empty" >&2; exit 2; }
    work=$(cd "$1" && pwd)
else
    work=$(mktemp -d "${TMPDIR:-/tmp}/reproduce.XXXXXX")
fi
# cargo reads the settings of every folder above: those of this tree would be read twice.
case $work/ in "$tree"/*) echo "$work is in the tree: name a folder outside" >&2; exit 2 ;; esac
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain)" ] || echo "note: what is not committed is left out"

# Clones the commit and makes its release there, with a log beside.
make_release() {
    local folder=$1 begin=$SECONDS
    echo "making the release of ${commit:0:12} in $folder: $folder.log tells how far it is"
    mkdir -p "$(dirname "$folder")"
    git clone --quiet --no-checkout "$tree" "$folder"
    git -C "$folder" checkout --quiet --detach "$commit"
    make -C "$folder" release >"$folder.log" 2>&1 || { tail -n 20 "$folder.log" >&2; echo "no release: $folder.log" >&2; exit 1; }
    echo "made in $((SECONDS - begin)) s"
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
    echo "NOT the same: compare $first with $second" >&2
    exit 1
fi
echo "the same: $(wc -l <"$first/SHA256SUMS") files of both architectures"
cat "$first/SHA256SUMS"
rm -rf "$work"
