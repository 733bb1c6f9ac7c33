#!/usr/bin/env bash
# Builds test programs, and prints a line for each: crate and name, directory of the crate, source, program.
#
#   tests/test-programs.sh ARGUMENT...     arguments of `cargo test`, such as --workspace
#
# Fails if there is none, because a caller would run nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo test "$@" --no-run --message-format=json-render-diagnostics </dev/null |
    jq -r 'select(.executable and .profile.test) | (.manifest_path | rtrimstr("/Cargo.toml")) as $crate |
        "\($crate | split("/") | last)/\(.target.name) \($crate) \(.target.src_path) \(.executable)"' |
    sort -u | grep .
