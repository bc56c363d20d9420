# SeaweedFS: master, volume server, filer and gateway for S3 in one process. See with-store.sh.
mapfile -t ports < <(free_ports 8)
use_s3_keys
port=${ports[6]}
mkdir "$dir/data"
url="s3://box/office?endpoint=http://127.0.0.1:$port&region=us-east-1"
# The process asks nobody outside: telemetry is off unless it is asked for.
"$clients/bin/weed" server -s3 -dir "$dir/data" -ip 127.0.0.1 -ip.bind 127.0.0.1 \
    -master.port "${ports[0]}" -master.port.grpc "${ports[1]}" -volume.port "${ports[2]}" -volume.port.grpc "${ports[3]}" \
    -filer.port "${ports[4]}" -filer.port.grpc "${ports[5]}" -s3.port "$port" -s3.port.grpc "${ports[7]}" \
    -filer.localSocket "$dir/filer" -s3.localSocket "$dir/s3" -s3.port.iceberg 0 -s3.port.lance 0 \
    -master.volumeSizeLimitMB 1024 -volume.max 100 >"$dir/log" 2>&1 &
make_bucket() { make_s3_bucket "http://127.0.0.1:$port"; }
