#!/usr/bin/env bash
# Takes the names of functions out of a program into a file beside it, which the program names.
#
#   deploy/names-apart.sh PROGRAM PROGRAM.debug
#
# A third of a program is names. Whoever looks at a profile or at a core dump has use for them; the program has none.
set -euo pipefail
program=$1 names=$2

# Rust's own, which knows every architecture.
sysroot=$(rustc --print sysroot)
objcopy() {
    LD_LIBRARY_PATH=$sysroot/lib "$sysroot/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-objcopy" "$@"
}
rm -f "$names"
objcopy --only-keep-debug "$program" "$names"
chmod 0644 "$names"
objcopy --strip-all --add-gnu-debuglink="$names" "$program"
