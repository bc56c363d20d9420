#!/usr/bin/env bash
# Checks that Copal works in the object store of COPAL_REMOTE_URL, with credentials in the environment:
#   conformance   the suite of a volume store
#   fleet         the cases of a fleet: several hosts back up, prune and clean up at once
#   page          the life of a repository, by the commands of docs/operating-elsewhere.md
# Names of parts run these only. Each run has prefixes of its own, and leaves its objects there.
#   scripts/with-store.sh minio scripts/check-store.sh
set -euo pipefail
cd "$(dirname "$0")/.."
: "${COPAL_REMOTE_URL:?is the address of a store, such as s3://BUCKET/PREFIX?endpoint=URL; with-store.sh sets it}"
parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(conformance fleet page)
for part in "${parts[@]}"; do
    case "$part" in
    conformance) cargo test --locked -p copal-remote --lib -- servers_of_others_pass_the_suite ;;
    fleet)
        COPAL_FLEET_CASES=all cargo test --locked -p copal-backup --test it -- \
            the_cases_of_a_fleet_hold_over_an_object_server
        ;;
    page)
        cargo build --locked --workspace --bins
        cargo test --locked -p copal --test it -- the_commands_of_the_page_work_over_a_server_of_others
        ;;
    *)
        echo "there is no part '$part': conformance, fleet or page" >&2
        exit 2
        ;;
    esac
done
