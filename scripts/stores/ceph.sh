# Ceph in one process of each kind: monitor, manager, an OSD whose 4 GiB are in memory, and the gateway for S3.
# See with-store.sh. Ceph makes the keys of the user.
mapfile -t ports < <(free_ports 2)
port=${ports[1]}
ceph=$dir/ceph
mkdir -p "$ceph"/{mon,mgr,osd,run}
fsid=$(cat /proc/sys/kernel/random/uuid)
# The processes of a cluster find each other by `mon_host`; the others choose ports themselves.
cat >"$ceph/ceph.conf" <<CONF
[global]
fsid = $fsid
mon_host = v2:127.0.0.1:${ports[0]}
public_network = 127.0.0.0/8
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
auth_allow_insecure_global_id_reclaim = false
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
osd_objectstore = memstore
memstore_device_bytes = 4294967296
mgr_initial_modules =
keyring = $ceph/keyring
mon_data = $ceph/mon
mgr_data = $ceph/mgr
osd_data = $ceph/osd
rgw_data = $ceph/run
run_dir = $ceph/run
crash_dir = $ceph/run
log_file = $dir/log
admin_socket = $ceph/run/\$name.\$pid
pid_file =
rgw_frontends = beast endpoint=127.0.0.1:$port
CONF
export CEPH_CONF=$ceph/ceph.conf
of_ceph() { timeout 30 "$@" >>"$dir/log" 2>&1; }
# new_key NAME CAPABILITY...
new_key() { timeout 30 ceph auth get-or-create "$@" >>"$ceph/keyring" 2>>"$dir/log"; }
start_ceph() {
    of_ceph ceph-authtool --create-keyring "$ceph/keyring" --gen-key -n mon. --cap mon 'allow *'
    of_ceph ceph-authtool "$ceph/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    of_ceph monmaptool --create --addv a "v2:127.0.0.1:${ports[0]}" --fsid "$fsid" "$ceph/monmap"
    of_ceph ceph-mon --mkfs -i a --monmap "$ceph/monmap"
    ceph-mon -f -i a >>"$dir/log" 2>&1 &
    new_key mgr.a mon 'allow profile mgr' osd 'allow *' mds 'allow *'
    ceph-mgr -f -i a >>"$dir/log" 2>&1 &
    local osd
    osd=$(cat /proc/sys/kernel/random/uuid)
    of_ceph ceph osd new "$osd"
    new_key osd.0 mon 'allow profile osd' mgr 'allow profile osd' osd 'allow *'
    of_ceph ceph-osd -i 0 --mkfs --osd-uuid "$osd"
    ceph-osd -f -i 0 >>"$dir/log" 2>&1 &
    # The gateway makes its pools at its start, and waits for the OSD.
    radosgw -f -n client.admin >>"$dir/log" 2>&1 &
    timeout 60 radosgw-admin user create --uid copal --display-name copal >"$ceph/user" 2>>"$dir/log"
}
start_ceph || { cat "$dir/log" >&2; exit 1; }
AWS_ACCESS_KEY_ID=$(jq -r '.keys[0].access_key' "$ceph/user")
AWS_SECRET_ACCESS_KEY=$(jq -r '.keys[0].secret_key' "$ceph/user")
export AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_REGION=us-east-1
url="s3://box/office?endpoint=http://127.0.0.1:$port&region=us-east-1"
make_bucket() { make_s3_bucket "http://127.0.0.1:$port"; }
