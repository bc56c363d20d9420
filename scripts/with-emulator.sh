#!/usr/bin/env bash
# Runs a command beside an emulator of Azure or Google, or beside HDFS, with an empty bucket, and ends it afterwards.
# install-clients.sh installs the emulators. The command finds the bucket in COPAL_REPOSITORY and COPAL_REMOTE_URL:
#   with-emulator.sh azure cargo test -p copal-remote --lib servers_of_others
#   with-emulator.sh google copal store probe
#   with-emulator.sh hdfs cargo test -p copal-remote --features hdfs --lib servers_of_others
set -euo pipefail
cd "$(dirname "$0")/.."
kind=${1:?azure, google or hdfs}
shift
bash scripts/install-clients.sh "$kind"
log=$(mktemp)
trap 'kill %1 2>/dev/null; wait; rm -f "$log"' EXIT

case "$kind" in
azure)
    port=10900
    # The account that every Azurite has; its key is public.
    export AZURE_STORAGE_ACCOUNT_KEY=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==
    url="az://devstoreaccount1/box/office?endpoint=http://127.0.0.1:$port/devstoreaccount1"
    .cache/clients/azurite/node_modules/.bin/azurite-blob --inMemoryPersistence --skipApiVersionCheck --silent \
        --blobHost 127.0.0.1 --blobPort "$port" >"$log" 2>&1 &
    make_bucket() { python3 - "$port" <<'PYTHON'
import base64, hashlib, hmac, os, sys, urllib.request
from email.utils import formatdate

account, date = "devstoreaccount1", formatdate(usegmt=True)
named = f"x-ms-date:{date}\nx-ms-version:2021-12-02\n"
text = "PUT" + "\n" * 12 + named + f"/{account}/{account}/box\nrestype:container"
key = base64.b64decode(os.environ["AZURE_STORAGE_ACCOUNT_KEY"])
signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
headers = {"x-ms-date": date, "x-ms-version": "2021-12-02", "Content-Type": "",
           "Authorization": f"SharedKey {account}:{signature}"}
url = f"http://127.0.0.1:{sys.argv[1]}/{account}/box?restype=container"
urllib.request.urlopen(urllib.request.Request(url, method="PUT", data=b"", headers=headers))
PYTHON
    }
    ;;
google)
    port=10901
    url="gs://box/office?endpoint=http://127.0.0.1:$port"
    .cache/clients/bin/fake-gcs-server -scheme http -host 127.0.0.1 -port "$port" -public-host "127.0.0.1:$port" \
        -backend memory >"$log" 2>&1 &
    make_bucket() {
        curl --silent --fail -o "$log.made" -H 'Content-Type: application/json' -d '{"name":"box"}' \
            "http://127.0.0.1:$port/storage/v1/b?project=p" && rm -f "$log.made"
    }
    ;;
hdfs)
    port=10904
    url="hdfs://127.0.0.1:$port/vms/office"
    bash scripts/hdfs-server.sh "$port" "$log.ready" >"$log" 2>&1 &
    # Its directories are made by the first write. It may have to be downloaded.
    make_bucket() { while kill -0 %1 && [ ! -s "$log.ready" ]; do sleep 0.5; done; [ -s "$log.ready" ]; }
    ;;
*)
    echo "there is no emulator $kind: azure, google or hdfs" >&2
    exit 2
    ;;
esac
for try in $(seq 50); do
    make_bucket 2>/dev/null && break
    [ "$try" -lt 50 ] || { cat "$log" >&2; exit 1; }
    sleep 0.2
done
COPAL_REPOSITORY=$url COPAL_REMOTE_URL=$url "$@"
