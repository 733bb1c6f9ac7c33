#!/usr/bin/env bash
# Takes the names of functions out of a program; the file beside it, which the program names, has them.
#
#   deploy/names-apart.sh PROGRAM PROGRAM.debug
#
# A fifth of a program is names. Whoever looks at a profile or at a core dump has use for them; the program has none. The other file is
# the whole program: pprof takes none in which only the names are.
set -euo pipefail
program=$1 names=$2

# Rust's own, which knows every architecture.
sysroot=$(rustc --print sysroot)
objcopy() {
    LD_LIBRARY_PATH=$sysroot/lib "$sysroot/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-objcopy" "$@"
}
rm -f "$names"
install -m 0644 "$program" "$names"
objcopy --strip-all --add-gnu-debuglink="$names" "$program"
