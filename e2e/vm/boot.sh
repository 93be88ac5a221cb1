#!/bin/sh
# Process 1 of the machine, first half: modules, then the disk. What goes wrong here ends the machine.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for m in $($b cat /modules/order); do
	$b insmod /modules/$m || echo "vm: module $m cannot be loaded"
done
n=0
while [ ! -b /dev/vda ] && [ $n -lt 100 ]; do $b usleep 50000; n=$((n+1)); done
$b mount -t ext4 /dev/vda /disk || { echo "vm: no disk"; $b reboot -f; }
for d in proc sys dev; do $b mount --move /$d /disk/$d; done
exec $b switch_root /disk /bin/sh /tests/run
