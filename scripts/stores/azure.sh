# Azurite, the emulator of Azure. See with-store.sh.
port=$(free_ports 1)
# The account that every Azurite has; its key is public.
export AZURE_STORAGE_ACCOUNT_KEY=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==
url="az://devstoreaccount1/box/office?endpoint=http://127.0.0.1:$port/devstoreaccount1"
"$clients/azurite/node_modules/.bin/azurite-blob" --inMemoryPersistence --skipApiVersionCheck --silent \
    --blobHost 127.0.0.1 --blobPort "$port" >"$dir/log" 2>&1 &
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
