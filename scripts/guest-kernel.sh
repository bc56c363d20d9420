#!/usr/bin/env bash
# Unpacks Debian's cloud kernel into .cache/kernel, for tests and benches that boot a guest; nothing is installed, and nothing is
# done where one is there. Without apt-get, or without the package, it says so and the tests of guests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

there() { compgen -G "$1/boot/vmlinuz-*-cloud-amd64" >/dev/null; }
if there "${COPAL_TEST_KERNEL:-}" || there .cache/kernel; then
    exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(uname -m)" != x86_64 ]; then
    echo "no kernel for guests here: put linux-image-cloud-amd64's files into .cache/kernel to have their tests" >&2
    exit 0
fi

new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
chmod 755 "$new" # apt's own user downloads into it
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
# The package without a version names the one with a version that has the files.
named() {
    apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*-cloud-amd64\)$/\1/p' | head -n 1
}
fetch() { local package; package=$(named) && [ -n "$package" ] && (cd "$new" && apt-get download -qq "$package"); }
if ! fetch 2>/dev/null; then
    if ! { $sudo apt-get update -qq && fetch; }; then
        echo "no kernel for guests here: linux-image-cloud-amd64 cannot be fetched" >&2
        exit 0
    fi
fi
dpkg-deb -x "$new"/linux-image-*.deb "$new/root"
mkdir -p .cache
rm -rf .cache/kernel
mv "$new/root" .cache/kernel
