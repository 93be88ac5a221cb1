#!/bin/sh
# Builds a disk image for providers of type qemu: Debian 12 with cloud-init, OpenSSH's server and crun,
# and its kernel and initrd beside it. It needs root, mmdebstrap, qemu-utils, e2fsprogs and a Debian mirror.
#
# Usage: vm-image.sh IMAGE.qcow2   (MIRROR names another mirror, MORE further packages, separated by commas)
set -eu
image=${1:?usage: vm-image.sh IMAGE.qcow2}
for program in mmdebstrap qemu-img mke2fs; do
	command -v "$program" >/dev/null || { echo "$program is missing: apt-get install mmdebstrap qemu-utils e2fsprogs" >&2; exit 1; }
done
mkdir -p "$(dirname "$image")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
echo "1 of 3: installing Debian 12 (about 110 MB are downloaded)"
mmdebstrap --quiet --variant=minbase \
	--include=systemd-sysv,udev,dbus,openssh-server,cloud-init,sudo,crun,iproute2,linux-image-cloud-amd64,ca-certificates,netbase,e2fsprogs,procps${MORE:+,$MORE} \
	bookworm "$work/root.tar" ${MIRROR:+"$MIRROR"}
mkdir "$work/root"
tar -C "$work/root" -xf "$work/root.tar"
rm "$work/root.tar"
echo "2 of 3: settings"
cd "$work/root"
# Machines get their names and their keys at their first boot.
rm -f etc/ssh/ssh_host_* etc/hostname
: >etc/machine-id
echo '/dev/vda / ext4 defaults,discard 0 1' >etc/fstab
# QEMU's own network has one interface and a name server of its own.
mkdir -p etc/systemd/network
printf '[Match]\nName=e*\n\n[Network]\nDHCP=ipv4\n' >etc/systemd/network/10-dhcp.network
ln -sf /lib/systemd/system/systemd-networkd.service etc/systemd/system/multi-user.target.wants/systemd-networkd.service
rm -f etc/resolv.conf
echo 'nameserver 10.0.2.3' >etc/resolv.conf
# There are no locales to choose from: the module would fail, and the machine would count as degraded.
printf 'datasource_list: [NoCloud, None]\nnetwork: {config: disabled}\nmanage_etc_hosts: true\nlocale: false\n' >etc/cloud/cloud.cfg.d/90-muster.cfg
cd - >/dev/null
echo "3 of 3: writing $image"
truncate -s 1200M "$work/disk.raw"
mke2fs -q -t ext4 -L root -d "$work/root" "$work/disk.raw"
qemu-img convert -q -O qcow2 "$work/disk.raw" "$work/disk.qcow2"
cp "$work"/root/boot/vmlinuz-* "$image.vmlinuz"
cp "$work"/root/boot/initrd.img-* "$image.initrd"
# The image goes last: without it nobody boots the kernel of another one.
mv "$work/disk.qcow2" "$image"
echo "done: $image with $image.vmlinuz and $image.initrd"
