#!/usr/bin/env bash
# `make suite`: builds the program of a suite, and runs the suite, or its tests whose names contain PART.
#
#   tests/suite.sh SUITE [PART]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
suite=$1 part=${2:-}
sources=(tests/tests/*/"$suite.rs")
[ -e "${sources[0]}" ] || { echo "no suite $suite; suites: docs/testing.md#suites" >&2; exit 2; }
area=$(basename "$(dirname "${sources[0]}")")
locked=()
[ "${CI:-}" != true ] || locked=(--locked)
read -r _ directory _ program _ < <(tests/test-programs.sh "${locked[@]}" -p integration-tests --test "$area" | grep "^tests/$suite ")
exec tests/run-program.sh "$directory" "$program" "$suite" "$part"
