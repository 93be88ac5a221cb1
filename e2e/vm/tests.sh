# Process 1 of the machine, second half: what a node has, then the tests.
# The kernel's command line holds vm.mark, the word that begins lines that are for the other side.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/var/tmp
export MUSTER_TEST_SLOW=4 # its processor is emulated
export MUSTER_TEST_INIT=/tests/muster-init MUSTER_TEST_PROBE=/tests/probe MUSTER_ISOLATION_ALL=1
chmod 1777 /tmp /var/tmp
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ip link set lo up
hostname vm
for word in $(cat /proc/cmdline); do
	case $word in vm.mark=*) mark=${word#vm.mark=} ;; esac
done
# One argument per line.
set -f
IFS='
'
for name in $(cat /tests/order); do
	cd "/tests/$name.dir"
	echo "$mark begin $name"
	"/tests/$name.test" $(cat /tests/arguments)
	code=$?
	echo
	echo "$mark end $name $code"
done
echo "$mark over"
reboot -f
