#!/usr/bin/env bash
# Looks for published advisories of the Go modules, and of Go itself, in programs of the images (govulncheck).
#
#   tests/audit-go.sh [PROGRAM ...]
#
# By default these are flannel and the plugins of the CNI project for both architectures, and the program that builds the
# images.
# The advisories come from https://vuln.go.dev, or from GO_ADVISORIES, such as file:///folder. Exit status 1: a program
# has some, or cannot be checked. Released programs have no symbols, so an advisory of a package counts, whether its
# functions are called or not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tools=tests/install-go-tools.sh

"$tools" govulncheck
programs=("$@")
if [ $# -eq 0 ]; then
    made=(images cni-plugins-amd64 cni-plugins-arm64)
    "$tools" "${made[@]}"
    for name in "${made[@]}"; do
        mapfile -t -O ${#programs[@]} programs < <(find "$("$tools" --place "$name")" -maxdepth 1 -type f | sort)
    done
fi
status=0
for program in "${programs[@]}"; do
    echo "$program"
    "$("$tools" --place govulncheck)/govulncheck" -mode=binary ${GO_ADVISORIES:+-db "$GO_ADVISORIES"} "$program" || status=1
done
exit $status
