# The package and its unit in a machine with systemd: docs/install.md. Nothing of it may be left in the end.
set -ex
fails() { if "$@"; then return 1; fi; }
# What others write all the time is not ours.
files() {
	find / -xdev \( -path /proc -o -path /sys -o -path /run -o -path /dev -o -path /tmp -o -path /var/tmp -o -path /var/log -o -path /var/cache \
		-o -path /var/lib/systemd -o -path /var/lib/dpkg \) -prune -o -print | sort
}
links() { ip -o link | awk '{print $2}' | sort; }
files >/tmp/files
links >/tmp/links
dpkg -i /var/tmp/muster.deb
# The configuration comes first.
test "$(systemctl is-active muster)" = inactive
sed -i 's/idle_timeout: .*}/idle_timeout: 1s}/' /etc/muster/muster.yaml
muster config check -c /etc/muster/muster.yaml
systemctl enable --now muster
trap 'systemctl status --no-pager muster; journalctl --no-pager -u muster | tail -n 100' ERR
ready() { until muster job list >/dev/null 2>&1; do systemctl is-active -q muster; sleep 0.5; done; }
pid() { systemctl show -p MainPID --value muster; }
ready
systemctl is-enabled muster
test "$(muster run -q -- echo from the unit)" = "from the unit"
muster image load /var/tmp/busybox.tar
test "$(muster run -q --image busybox:e2e -- cat /etc/hostname)" != "$(cat /etc/hostname)"
# Limits hold in cgroups of version 2, of which systemd has the root.
for image in "" "--image busybox:e2e"; do
	fails muster run --name memory $image --memory 32MiB -- tail /dev/zero
	muster job show memory | grep 'over its memory limit of 32MiB'
done
# Work outlives a restart, a kill and an upgrade of the server.
muster run --detach --name long --image busybox:e2e -- sleep 100000
until muster job show long | grep '1 running'; do sleep 0.5; done
work=$(pgrep -x -f 'sleep 100000')
was=$(pid)
systemctl restart muster
ready
test "$(pid)" != "$was"
was=$(pid)
kill -9 "$was"
until test "$(pid)" != 0 && test "$(pid)" != "$was"; do sleep 0.2; done
ready
was=$(pid)
dpkg -i /var/tmp/muster.deb
ready
test "$(pid)" != "$was"
grep 'idle_timeout: 1s' /etc/muster/muster.yaml
test "$(pgrep -x -f 'sleep 100000')" = "$work"
muster job show long | grep '^0 *running *1 ' # its first attempt
# A change of the configuration is taken over by a reload.
was=$(pid)
sed -i 's/max: 4/max: 3/' /etc/muster/muster.yaml
systemctl reload muster
until muster pool show main | grep '0 to 3 nodes'; do sleep 0.2; done
test "$(pid)" = "$was"
# The uninstallation.
muster job stop long
while muster node list --json | grep '"id"'; do sleep 0.5; done
dpkg -r muster
trap - ERR
test "$(systemctl is-active muster)" = inactive
test -e /etc/muster/muster.yaml
test -e /var/lib/muster/token
dpkg -P muster
rm -rf /root/.config
systemctl reset-failed
fails systemctl cat muster
test -z "$(pgrep -l muster)"
test -z "$(find /sys/fs/cgroup -name '*muster*')"
fails grep muster /proc/mounts
links | diff /tmp/links -
files | diff /tmp/files -
echo "the unit: work outlives the server, nothing is left"
