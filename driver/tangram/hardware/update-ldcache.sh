#!/bin/sh
# OCI createContainer hook: update-ldcache.sh DIRECTORY...
#
# Puts the driver's library directories (paths inside the container) into the container's ld.so.cache. For hosts
# without nvidia-cdi-hook. Runs on the host as root, before pivot_root, with the container's state (OCI runtime
# spec, "State") on standard input. Image and pod are not trusted here:
# - nothing of the state but "bundle", and nothing of config.json but root.path, is used, and both are found by
#   reading JSON token by token, because annotations and environment may hold any text;
# - ldconfig runs in a mount namespace of its own in which the container's /proc is gone, so that no link of
#   the image leads out through /proc/<pid>/root;
# - where that cannot be done, nothing is done.
#
# Never fails: libraries in the image's default directories are found without a cache too.

set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
cd / || exit 0

skip() {
    echo "tangram update-ldcache: $1; driver libraries outside of the image's default directories are not found" >&2
    exit 0
}

# json_string KEY[.KEY]: the string at this path of the JSON object on standard input; empty if there is none.
json_string() {
    awk -v wanted="$1" '
        { text = text $0 "\n" }
        END {
            depth = 0
            while (match(text, /"([^"\\]|\\.)*"|[][{}:,]|[^][{}:," \t\r\n]+/)) {
                token = substr(text, RSTART, RLENGTH)
                text = substr(text, RSTART + RLENGTH)
                if (token == "{" || token == "[") { depth++; kind[depth] = token; key[depth] = ""; is_key = token == "{"; continue }
                if (token == "}" || token == "]") { depth--; is_key = 0; continue }
                if (token == ",") { is_key = kind[depth] == "{"; continue }
                if (token == ":") { is_key = 0; continue }
                if (is_key) { key[depth] = token; continue }
                path = ""
                for (i = 1; i <= depth; i++) path = path (i > 1 ? "." : "") key[i]
                gsub(/"/, "", path)
                if (path == wanted && token ~ /^"[^\\]*"$/) { print substr(token, 2, length(token) - 2); exit }
            }
        }
    '
}

[ "$#" -gt 0 ] || skip "no directory given"
for tool in awk unshare umount; do
    command -v "$tool" >/dev/null 2>&1 || skip "no $tool on this host"
done
# On Ubuntu ldconfig is a wrapper around ldconfig.real that does not know -r.
ldconfig=$(command -v ldconfig.real) || ldconfig=$(command -v ldconfig) || skip "no ldconfig on this host"

bundle=$(json_string bundle)
[ -n "$bundle" ] && [ -f "$bundle/config.json" ] || skip "no bundle in the container's state"
root=$(json_string root.path <"$bundle/config.json")
case $root in
    "") skip "no root in $bundle/config.json" ;;
    /*) ;;
    *) root=$bundle/$root ;;
esac
root=$(cd -P -- "$root" 2>/dev/null && pwd -P) || skip "no root file system at $root"
[ "$root" != / ] || skip "the root file system is the host's"
[ -d "$root/etc" ] || skip "no /etc in the image"

export root ldconfig
unshare --mount --propagation private sh -c '
    umount -l "$root/proc" 2>/dev/null
    [ ! -e "$root/proc/self" ] || exit 1
    exec "$ldconfig" -r "$root" "$@"
' sh "$@" >&2 || skip "ldconfig failed"
exit 0
