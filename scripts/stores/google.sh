# fake-gcs-server, an emulator of Google. See with-store.sh.
port=$(free_ports 1)
url="gs://box/office?endpoint=http://127.0.0.1:$port"
"$clients/bin/fake-gcs-server" -scheme http -host 127.0.0.1 -port "$port" -public-host "127.0.0.1:$port" \
    -backend memory >"$dir/log" 2>&1 &
make_bucket() {
    curl --silent --fail -H 'Content-Type: application/json' -d '{"name":"box"}' "http://127.0.0.1:$port/storage/v1/b?project=p"
}
