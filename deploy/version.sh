#!/usr/bin/env bash
# Prints the version in Cargo.toml, which is the only source of the version. With --stamp, writes it to the files that
# contain the version: the image tags in manifests and in docs/install.md, and the chart.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
if [ "${1:-}" = --stamp ]; then
    # List tracked files only: a user may have copied upstream's manifest into this folder.
    git ls-files -- 'deploy/*.yaml' docs/install.md | grep -vE '^deploy/(install|workloads).yaml$' | while read -r file; do
        # Skip the links in the chart.
        [ ! -f "$file" ] || [ -L "$file" ] || sed -i -E "$file" \
            -e "s#((calico|\\\$REGISTRY)/(cni|kube-controllers)|\\\$image):v[0-9][0-9A-Za-z.-]*#\1:v$version#g"
    done
    sed -i -E "s#^(version|appVersion): .*#\1: $version#" deploy/helm/calico-cni/Chart.yaml
else
    echo "$version"
fi
