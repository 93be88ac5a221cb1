# An ordinary user runs the programs of the package in a cgroup that systemd has delegated: docs/containers.md, "Containers as
# an ordinary user". Limits must hold there, and nothing may be left in the end.
set -ex
fails() { if "$@"; then return 1; fi; }
test "$(id -u)" != 0
dpkg-deb -x /var/tmp/muster.deb "$HOME/m"
PATH=$HOME/m/usr/bin:$PATH
# A session of the user without a login by PAM.
sudo loginctl enable-linger "$(id -un)"
export XDG_RUNTIME_DIR=/run/user/$(id -u)
until systemctl --user show -p Version; do sleep 0.5; done
test -s /etc/subuid
# Debian lets users open it, where udev has a rule for it.
sudo modprobe tun
export MUSTER_DATA_DIR=$HOME/d
systemd-run --user --scope --unit muster-e2e -p Delegate=yes muster dev --listen 127.0.0.1:0 --data-dir "$HOME/d" >"$HOME/dev.log" 2>&1 &
dev=$!
trap 'cat "$HOME/dev.log"; muster node list; muster events' ERR
until muster job list; do sleep 0.5; done
cat "$HOME/dev.log"
# It says at its start what a host lacks.
fails grep -i limits "$HOME/dev.log"
muster image load /var/tmp/busybox.tar
test "$(muster run -q --image busybox:e2e -- id -u)" = 0
test "$(muster run -q --image busybox:e2e -- sh -c 'touch /x; chown app /x; stat -c %U /x')" = app
# Memory.
fails muster run --name memory --image busybox:e2e --memory 32MiB -- tail /dev/zero
muster job show memory | grep 'over its memory limit of 32MiB'
# Processes.
muster run -q --image busybox:e2e --pids 20 -- sh -c 'for i in $(seq 50); do sleep 5 & done; wait' >"$HOME/pids" 2>&1 || true
grep -i "can't fork" "$HOME/pids"
# A network of its own, whose packets slirp4netns carries out: this machine's own SSH server answers there.
ip=$(ip -4 -o addr show scope global | awk '{print $4}' | cut -d/ -f1 | head -n 1)
muster run -q --image busybox:e2e --network bridge -- sh -c "nc -w 10 $ip 22 </dev/null | head -n 1" | grep SSH
# The end of muster dev is the end of all.
kill -TERM "$dev"
wait "$dev" || true
while systemctl --user is-active muster-e2e.scope; do sleep 0.5; done
test -z "$(pgrep -u "$(id -u)" -l 'muster|slirp4netns|sleep' | grep -v sshd || true)"
test -z "$(find "/sys/fs/cgroup/user.slice" -name '*muster*')"
trap - ERR
rm -rf "$HOME/m" "$HOME/d" "$HOME/dev.log" "$HOME/pids" "$HOME/.config/muster"
sudo loginctl disable-linger "$(id -un)"
echo "an ordinary user: limits hold, nothing is left"
