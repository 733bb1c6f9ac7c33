#!/usr/bin/env bash
# Installs rustup, unless there is one, and the toolchain of rust-toolchain.toml with its components. Needs curl.
#
# CI and the dev container use it. rustup and cargo are then in ~/.cargo/bin, or in CARGO_HOME.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VERSION=1.29.0
# The checksums that Rust publishes beside the installers.
declare -A CHECKSUMS=(
    [x86_64]=4acc9acc76d5079515b46346a485974457b5a79893cfb01112423c89aeb5aa10
    [aarch64]=9732d6c5e2a098d3521fca8145d826ae0aaa067ef2385ead08e6feac88fa5792
)

if ! command -v rustup >/dev/null; then
    machine=$(uname -m)
    checksum=${CHECKSUMS[$machine]:-}
    [ -n "$checksum" ] || { echo "no checksum of rustup $VERSION for $machine" >&2; exit 1; }
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    echo "installing rustup $VERSION"
    curl --proto '=https' --tlsv1.2 --retry 3 -fsS -o "$folder/rustup-init" \
        "https://static.rust-lang.org/rustup/archive/$VERSION/$machine-unknown-linux-gnu/rustup-init"
    sha256sum --check --strict --quiet <<<"$checksum  $folder/rustup-init"
    chmod +x "$folder/rustup-init"
    "$folder/rustup-init" -y --quiet --no-modify-path --profile minimal --default-toolchain none >/dev/null
    PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi
# Without a name, rustup installs the toolchain of this folder.
rustup toolchain install --no-self-update
