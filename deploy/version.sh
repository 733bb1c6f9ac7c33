#!/usr/bin/env bash
# Prints the version that Cargo.toml has, the one place for it. With --stamp it is written into what names it below deploy/:
# the tags of images in manifests, and the chart.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
if [ "${1:-}" = --stamp ]; then
    # A manifest of upstream's that somebody has put beside ours is not tracked.
    git ls-files -- 'deploy/*.yaml' deploy/README.md | grep -v '^deploy/install.yaml$' | while read -r file; do
        # Not the chart's links.
        [ ! -f "$file" ] || [ -L "$file" ] || sed -i -E "$file" \
            -e "s#((calico|\\\$REGISTRY)/(cni|kube-controllers)|\\\$image):v[0-9][0-9A-Za-z.-]*#\1:v$version#g"
    done
    sed -i -E "s#^(version|appVersion): .*#\1: $version#" deploy/helm/calico-cni/Chart.yaml
else
    echo "$version"
fi
