#!/bin/bash
# Process 1 of a node. Started by unshare(1) in new mount, network, UTS and PID namespaces; when it is killed, the kernel
# ends every process of the node and with them all its mounts, links and packet-filter rules.
# Usage: node-init.sh NODE_NAME PRIVATE_DIR
set -eu
name=$1 private=$2

hostname "$name"
# What a node keeps on its default paths is its own, as on a machine of its own.
for path in /etc/cdi /etc/cni /etc/kubernetes /opt/cni /var/lib/cni /var/lib/kubelet \
            /var/log/containers /var/log/pods; do
    mkdir -p "$path" "$private$path"
    mount --bind "$private$path" "$path"
done
# Images and containers live in memory: unpacking and removing thousands of files costs a disk half a minute.
mkdir -p /var/lib/containerd
mount -t tmpfs -o mode=711 tmpfs /var/lib/containerd
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs /run
mkdir /run/lock /run/cdi /run/sysctl
# The kubelet sets these for the whole machine (reboot on an oops, among others). Here it sets copies.
for setting in kernel/panic kernel/panic_on_oops kernel/keys/root_maxbytes kernel/keys/root_maxkeys \
               vm/overcommit_memory vm/panic_on_oom; do
    copy=/run/sysctl/${setting//\//.}
    cat "/proc/sys/$setting" >"$copy"
    mount --bind "$copy" "/proc/sys/$setting"
done
ip link set lo up
# The kubelet needs shared mounts for volumes with mount propagation. Only now, or the private folders would be peers
# of the paths they were bound from; towards the host the namespace is private.
mount --make-rshared /
touch /run/node-mounted

# Orphans of the node become children of this shell, which reaps them while it waits.
while :; do
    sleep infinity &
    wait
done
