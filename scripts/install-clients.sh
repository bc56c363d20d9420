#!/usr/bin/env bash
# Installs servers of object stores into .cache/clients, for tests; with the same versions there it does nothing.
#   install-clients.sh          moto_server (S3) in a virtual environment, for `make test`
#   install-clients.sh azure    the same and Azurite (Azure), by npm
#   install-clients.sh google   the same and fake-gcs-server (Google), by Go
#   install-clients.sh minio    the same and MinIO (S3), by Go: 5 minutes on two cores
#   install-clients.sh seaweedfs  the same and SeaweedFS (S3), by Go: 15 minutes on two cores
#   install-clients.sh ceph     the same and Ceph with its gateway (S3), by apt
# Without python3's module venv, which install-deps.sh installs, or without PyPI, it prints a message, and the tests
# that need moto are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."
clients=$PWD/.cache/clients

# moto's own list for S3 has three times as much; the server starts with these.
moto=(
    moto==5.2.5 flask==3.1.3 flask-cors==6.0.5 werkzeug==3.1.9 xmltodict==1.0.4 responses==0.26.3
    boto3==1.44.8 botocore==1.44.8 s3transfer==0.19.3 jmespath==1.1.0 python-dateutil==2.9.0.post0 six==1.17.0
    requests==2.34.2 urllib3==2.8.0 certifi==2026.10.19.post1 charset-normalizer==3.5.3 idna==3.20
    jinja2==3.1.6 markupsafe==3.0.4 blinker==1.9.0 click==8.5.1 itsdangerous==2.2.0
    pyyaml==6.0.4 cryptography==50.0.2 cffi==2.1.1
)
azurite=3.37.0
fake_gcs_server=v1.56.1
minio=v0.0.0-20260212201848-7aac2a2c5b7c
seaweedfs=v0.0.0-20261109003541-7506e5f91cd6

# is_current NAME VERSIONS: whether these are installed. A stamp is written last, so an interrupted run is repeated.
is_current() { [ -f "$clients/$1.versions" ] && [ "$(cat "$clients/$1.versions")" = "$2" ]; }

install_moto() {
    is_current moto "${moto[*]}" && return
    rm -rf "$clients/moto" "$clients/moto.versions"
    mkdir -p "$clients"
    if ! { python3 -m venv "$clients/moto" &&
        "$clients/moto/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile "${moto[@]}"; } \
        >"$clients/moto.log" 2>&1; then
        tail -n 3 "$clients/moto.log" >&2
        echo "no moto_server here ($clients/moto.log): tests that need it are skipped" >&2
        return
    fi
    echo "${moto[*]}" >"$clients/moto.versions"
}

install_azurite() {
    is_current azurite "$azurite" && return
    command -v npm >/dev/null || { echo "npm is missing: apt install npm" >&2; exit 1; }
    npm install --silent --no-audit --no-fund --prefix "$clients/azurite" "azurite@$azurite"
    echo "$azurite" >"$clients/azurite.versions"
}

need_go() { command -v go >/dev/null || { echo "go is missing: install it from https://go.dev" >&2; exit 1; }; }

install_fake_gcs_server() {
    is_current fake-gcs-server "$fake_gcs_server" && return
    need_go
    GOBIN=$clients/bin go install "github.com/fsouza/fake-gcs-server@$fake_gcs_server"
    echo "$fake_gcs_server" >"$clients/fake-gcs-server.versions"
}

install_minio() {
    is_current minio "$minio" && return
    need_go
    GOBIN=$clients/bin go install "github.com/minio/minio@$minio"
    echo "$minio" >"$clients/minio.versions"
}

# `go install` refuses modules with a `replace` of their own. A module that requires them ignores it.
install_seaweedfs() {
    is_current seaweedfs "$seaweedfs" && return
    need_go
    rm -rf "$clients/seaweedfs"
    mkdir -p "$clients/seaweedfs"
    (
        cd "$clients/seaweedfs"
        go mod init stores
        go get -tool "github.com/seaweedfs/seaweedfs/weed@$seaweedfs"
        GOBIN=$clients/bin go install github.com/seaweedfs/seaweedfs/weed
    )
    echo "$seaweedfs" >"$clients/seaweedfs.versions"
}

# The version is that of the distribution.
install_ceph() {
    local missing=() package sudo=
    for package in radosgw ceph-mon ceph-mgr ceph-osd ceph-common jq; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    [ "$(id -u)" = 0 ] || sudo="sudo -E"
    export DEBIAN_FRONTEND=noninteractive
    $sudo apt-get update -qq
    $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

install_moto
case "${1:-}" in
azure) install_azurite ;;
google) install_fake_gcs_server ;;
minio) install_minio ;;
seaweedfs) install_seaweedfs ;;
ceph) install_ceph ;;
esac
