#!/usr/bin/env bash
# Runs a command beside an object store of this machine with an empty bucket, and ends the store with it.
# install-clients.sh installs the store; scripts/stores has a file for each. The command finds the bucket in
# COPAL_REPOSITORY and COPAL_REMOTE_URL, and the credentials in the variables of the provider's tools:
#   with-store.sh azure cargo test -p copal-remote --lib servers_of_others
#   with-store.sh google copal store probe
#   with-store.sh minio scripts/check-store.sh       also seaweedfs and ceph
#   with-store.sh hdfs cargo test -p copal-remote --features hdfs --lib servers_of_others
# With COPAL_BUCKET=versions the bucket keeps old versions, with COPAL_BUCKET=locked it has Object Lock (S3 only).
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:-}
[ -f "scripts/stores/$kind.sh" ] || { echo "there is no store '$kind': azure, ceph, google, hdfs, minio or seaweedfs" >&2; exit 2; }
shift
bash scripts/install-clients.sh "$kind"
# Those of another store would be sent with the keys of this one.
unset AWS_PROFILE AWS_SESSION_TOKEN
clients=$PWD/.cache/clients
dir=$(mktemp -d)
# Nothing of a store is kept, so that no process needs time for its end.
end() {
    # The shell would tell that its jobs were killed.
    exec 2>/dev/null
    kill -KILL $(jobs -p) || true
    wait
    rm -rf "$dir"
}
trap end EXIT

# free_ports N: ports of 127.0.0.1 that nothing uses now.
free_ports() {
    python3 -c '
import socket, sys
taken = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in taken:
    one.bind(("127.0.0.1", 0))
    print(one.getsockname()[1])' "$1"
}

# Keys of an S3 store that takes the keys it is given.
use_s3_keys() {
    export AWS_ACCESS_KEY_ID=copal AWS_REGION=us-east-1
    AWS_SECRET_ACCESS_KEY=$(python3 -c 'import secrets; print(secrets.token_hex(20))')
    export AWS_SECRET_ACCESS_KEY
}

# make_s3_bucket ENDPOINT
make_s3_bucket() { "$clients/moto/bin/python" - "$1" "${COPAL_BUCKET:-plain}" <<'PYTHON'
import boto3, sys
endpoint, kind = sys.argv[1:]
s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
s3.create_bucket(Bucket="box", **({"ObjectLockEnabledForBucket": True} if kind == "locked" else {}))
if kind == "versions":
    s3.put_bucket_versioning(Bucket="box", VersioningConfiguration={"Status": "Enabled"})
if kind == "locked":
    rule = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
    lock = {"ObjectLockEnabled": "Enabled", "Rule": rule}
    s3.put_object_lock_configuration(Bucket="box", ObjectLockConfiguration=lock)
PYTHON
}

# Starts the store in the background: sets `url` and `make_bucket`, and writes to "$dir/log".
# shellcheck source=/dev/null
. "scripts/stores/$kind.sh"
for try in $(seq 100); do
    make_bucket >"$dir/bucket" 2>&1 && break
    [ "$try" -lt 100 ] || { cat "$dir/log" "$dir/bucket" >&2; exit 1; }
    sleep 0.2
done
COPAL_REPOSITORY=$url COPAL_REMOTE_URL=$url "$@"
