#!/bin/busybox sh
# /init of the guest booted by nfs.py: an NFS server, two mounts of its export without a shared cache, and saves through both
# mounts. Each client saves COUNT times. Prints a line per trial, and at the end "guest: 0" if every trial passed.
export PATH=/bin:/usr/sbin:/sbin
/bin/busybox mkdir -p /proc /sys /dev /run /srv /mnt/a /mnt/b /var/lib/nfs/v4recovery /tmp /etc
/bin/busybox --install -s /bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
read -r count versions < /settings
for module in $(cat /modules/order); do insmod "/modules/$module" || echo "insmod $module failed"; done
mount -t ext4 /dev/vda /srv || echo "no disk"
mount -t nfsd none /proc/fs/nfsd
mount -t rpc_pipefs none /var/lib/nfs/rpc_pipefs 2>/dev/null
ip link set lo up
echo 127.0.0.1 localhost > /etc/hosts
: > /etc/exports; : > /var/lib/nfs/etab; : > /var/lib/nfs/rmtab
printf 'tcp 6 TCP\nudp 17 UDP\n' > /etc/protocols
printf 'sunrpc 111/tcp\nsunrpc 111/udp\nnfs 2049/tcp\nnfs 2049/udp\n' > /etc/services
printf 'portmapper 100000\nnfs 100003\nmountd 100005\nnlockmgr 100021\n' > /etc/rpc
printf 'root:x:0:0:root:/:/bin/sh\n_rpc:x:101:0::/run/rpcbind:/bin/false\n' > /etc/passwd
ln -s /run /var/run
mkdir -p /run/rpcbind /run/sendsigs.omit.d
exportfs -o rw,sync,no_root_squash,no_subtree_check,insecure,fsid=0 127.0.0.1:/srv
# Delegations are off. The server takes the two mounts for one client: with a delegation the client could keep attributes
# in one mount that the second mount changes. Between two hosts the server recalls a delegation.
echo 0 > /proc/sys/fs/leases-enable
rpcbind -r -f &
sleep 1
rpc.mountd
rpc.nfsd --grace-time 10 --lease-time 10 4
failed=0

# trial WORDS COMMAND...: runs COMMAND, and prints WORDS and the outcome.
trial() {
  what=$1
  shift
  if "$@"; then echo "trial: $what: well"; else echo "trial: $what: FAILED"; failed=1; fi
}

both_save() {
  nfs_saves save /mnt/a/shared "$count" > /tmp/a 2>&1 &
  a=$!
  nfs_saves save /mnt/b/shared "$count" > /tmp/b 2>&1 &
  b=$!
  wait $a; ra=$?
  wait $b; rb=$?
  sed 's/^/  client a: /' /tmp/a
  sed 's/^/  client b: /' /tmp/b
  [ $ra = 0 ] && [ $rb = 0 ]
}

for version in $versions; do
  options=vers=$version,nosharecache,proto=tcp
  mount.nfs 127.0.0.1:/ /mnt/a -o $options || { echo "mount $version failed"; failed=1; continue; }
  mount.nfs 127.0.0.1:/ /mnt/b -o $options || { failed=1; continue; }
  mkdir -p /mnt/a/shared /mnt/a/ranks
  ls /mnt/b > /dev/null
  trial "NFS $version: two clients, $count saves each into one directory" both_save
  trial "NFS $version: what they left, on the server" nfs_saves check /srv/shared
  trial "NFS $version: two ranks on two clients" nfs_saves ranks /mnt/a/ranks /mnt/b/ranks 5
  trial "NFS $version: what they left, on the server" sh -c '[ -z "$(ls -A /srv/ranks | grep cairn)" ]'
  umount /mnt/a
  umount /mnt/b
  rm -rf /srv/shared /srv/ranks
done
echo "guest: $failed"
poweroff -f
