#!/usr/bin/env bash
# Moves the names of functions from a program into a separate file, to which the program contains a link.
#
#   deploy/split-symbols.sh PROGRAM PROGRAM.debug
#
# Names are a fifth of a program. Only readers of a profile or a core dump need them. The separate file is the whole
# program, because pprof does not accept a file that contains only the names.
set -euo pipefail
program=$1 names=$2

# The objcopy of the Rust toolchain, which supports every architecture.
sysroot=$(rustc --print sysroot)
objcopy() {
    LD_LIBRARY_PATH=$sysroot/lib "$sysroot/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/rust-objcopy" "$@"
}
rm -f "$names"
install -m 0644 "$program" "$names"
objcopy --strip-all --add-gnu-debuglink="$names" "$program"
