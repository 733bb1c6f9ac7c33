#!/usr/bin/env bash
# Runs a test program as cargo does: in the directory of its crate.
#
#   tests/run-program.sh DIRECTORY PROGRAM                  all its tests
#   tests/run-program.sh DIRECTORY PROGRAM SUITE [PART]     the tests of a suite, those whose names contain PART
#
# The arguments are columns 2, 4 and 5 of tests/test-programs.sh. Fails if no test has such a name.
set -euo pipefail
directory=$1 program=$2 suite=${3:-} part=${4:-}
cd "$directory"
export CARGO_MANIFEST_DIR=$directory
[ -n "$suite" ] || exec "$program"
mapfile -t tests < <("$program" --list --format terse | sed -n 's/: test$//p' | { grep "^$suite::" || true; } | { grep -F -- "$part" || true; })
[ ${#tests[@]} -gt 0 ] || { echo "the suite $suite has no test${part:+ with $part in its name}" >&2; exit 1; }
exec "$program" --exact "${tests[@]}"
