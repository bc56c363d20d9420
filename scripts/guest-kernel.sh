#!/usr/bin/env bash
# Unpacks Debian's cloud kernel into .cache/kernel, for tests and benches that boot a guest. It installs
# nothing, and does nothing if a kernel is there already. Without apt-get, or without the package, it prints a
# message, and the tests that need a guest are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

has_kernel() { compgen -G "$1/boot/vmlinuz-*-cloud-amd64" >/dev/null; }
if has_kernel "${COPAL_TEST_KERNEL:-}" || has_kernel .cache/kernel; then
    exit 0
fi
if ! command -v apt-get >/dev/null || [ "$(uname -m)" != x86_64 ]; then
    echo "no kernel for guests here: put the files of linux-image-cloud-amd64 into .cache/kernel to run the tests of guests" >&2
    exit 0
fi

new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
chmod 755 "$new" # apt's own user downloads into it
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
# The unversioned package depends on the versioned one that holds the files.
versioned_package() {
    apt-cache depends linux-image-cloud-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*-cloud-amd64\)$/\1/p' | head -n 1
}
fetch() { local package; package=$(versioned_package) && [ -n "$package" ] && (cd "$new" && apt-get download -qq "$package"); }
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
