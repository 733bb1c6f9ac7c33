#!/usr/bin/env bash
# Builds cargo-deny, which checks the dependencies against deny.toml, once, and prints its path.
#
# cargo-deny is installed in ~/.cache/calico-tests/cargo-deny-VERSION. The build is not optimized: it takes one to two
# minutes, and a check takes a few seconds. Cargo.lock of its release fixes all of its dependencies.
set -euo pipefail
VERSION=0.20.2
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/calico-tests
PLACE=$CACHE/cargo-deny-$VERSION

if [ ! -x "$PLACE/bin/cargo-deny" ]; then
    mkdir -p "$CACHE"
    exec {lock}>"$CACHE/lock"
    flock "$lock"
    if [ ! -x "$PLACE/bin/cargo-deny" ]; then
        echo "building cargo-deny $VERSION into $PLACE" >&2
        CARGO_PROFILE_DEV_STRIP=true cargo install --quiet --locked --debug --version "=$VERSION" cargo-deny \
            --root "$PLACE" --target-dir "$CACHE/build-cargo-deny" >&2
        rm -rf "$CACHE/build-cargo-deny"
    fi
fi
echo "$PLACE/bin/cargo-deny"
