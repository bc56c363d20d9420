# MinIO with one directory. See with-store.sh.
port=$(free_ports 1)
use_s3_keys
url="s3://box/office?endpoint=http://127.0.0.1:$port&region=us-east-1"
MINIO_ROOT_USER=$AWS_ACCESS_KEY_ID MINIO_ROOT_PASSWORD=$AWS_SECRET_ACCESS_KEY MINIO_BROWSER=off MINIO_UPDATE=off \
    "$clients/bin/minio" server --quiet --address "127.0.0.1:$port" "$dir/minio" >"$dir/log" 2>&1 &
make_bucket() { make_s3_bucket "http://127.0.0.1:$port"; }
