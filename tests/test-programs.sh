#!/usr/bin/env bash
# Builds test programs, and prints a line for each: crate and name, directory of the crate, source, program. A program of
# several suites has a line for each suite, which ends with the name of the suite.
#
#   tests/test-programs.sh ARGUMENT...     arguments of `cargo test`, such as --workspace
#
# Fails if there is none, because a caller would run nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo test "$@" --no-run --message-format=json-render-diagnostics </dev/null |
    jq -r 'select(.executable and .profile.test) | (.manifest_path | rtrimstr("/Cargo.toml")) as $crate |
        "\($crate | split("/") | last)/\(.target.name) \($crate) \(.target.src_path) \(.executable)"' |
    sort -u |
    while read -r name crate source program; do
        if [[ $source = */tests/tests/*/main.rs ]]; then
            sed -n 's/^mod \(.*\);$/\1/p' "$source" | while read -r suite; do
                echo "${name%%/*}/$suite $crate $(dirname "$source")/$suite.rs $program $suite"
            done
        else
            echo "$name $crate $source $program"
        fi
    done | grep .
