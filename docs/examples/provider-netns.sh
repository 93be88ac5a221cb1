#!/bin/bash
# A provider of type exec: a cloud on one machine. Its instances are network namespaces, each with processes,
# a directory and an OpenSSH server of its own. Needs root, jq, iproute2, util-linux and openssh-server.
#
# It reads one request from stdin and writes one answer to stdout; docs/providers.md says what is in them.
#
#   CLOUD_DIR       where it keeps what it made (required)
#   CLOUD_KEY       public key that may log in as root (required for machines)
#   CLOUD_NET       first two numbers of the instances' addresses, as 10.213
#   CLOUD_LIMIT     how many instances there may be, as 8
#   CLOUD_MACHINES  no: keep records and make nothing, to try a protocol without root
set -euo pipefail

cloud=${CLOUD_DIR:?}
net=${CLOUD_NET:-10.213}
limit=${CLOUD_LIMIT:-32}
machines=${CLOUD_MACHINES:-yes}

request=$(cat)
ask() { jq -r "$@" <<<"$request"; }
owner=$(ask .owner)

mkdir -p "$cloud/instances"
# One call at a time: a token must never make two instances, whoever asks.
exec 9>"$cloud/lock"
flock 9

# fault KIND MESSAGE [SCOPE] is one error.
fault() { jq -cn --arg kind "$1" --arg message "$2" --argjson scope "${3:-{\}}" '{error: {kind: $kind, message: $message, scope: $scope}}'; }

# machine_start ID makes the machine and says how it is reached. What it starts must not hold our outputs open.
machine_start() {
	local id=$1 dir="$cloud/machines/$1" n=0 pid
	[ "$machines" = yes ] || { jq -cn '{}'; return; }
	mkdir -p "$dir/muster" /var/lib/muster /run/sshd
	while ! mkdir "$cloud/number-$n" 2>/dev/null; do n=$((n + 1)); done
	echo "$n" >"$dir/number"
	ssh-keygen -q -t ed25519 -N '' -C "$id" -f "$dir/host_key" </dev/null
	printf '%s\n' "$CLOUD_KEY" >"$dir/authorized_keys"
	cat >"$dir/sshd_config" <<-CONFIG
		ListenAddress $net.$n.2
		HostKey $dir/host_key
		AuthorizedKeysFile $dir/authorized_keys
		PidFile none
		UsePAM no
		StrictModes no
		PasswordAuthentication no
		PermitRootLogin prohibit-password
	CONFIG
	ip netns add "$id"
	ip link add "mv${net##*.}-$n" type veth peer name eth0 netns "$id"
	ip addr add "$net.$n.1/30" dev "mv${net##*.}-$n"
	ip link set "mv${net##*.}-$n" up
	ip -n "$id" addr add "$net.$n.2/30" dev eth0
	ip -n "$id" link set eth0 up
	ip -n "$id" link set lo up
	# The machine is what runs below its first process: when that is killed, all of it is gone.
	ip netns exec "$id" setsid unshare --mount --pid --fork --kill-child --mount-proc sh -c \
		'mount --bind "$1/muster" /var/lib/muster && exec /usr/sbin/sshd -D -e -f "$1/sshd_config"' sh "$dir" \
		>"$dir/log" 2>&1 </dev/null 9>&- &
	pid=$!
	echo "$pid" >"$dir/pid"
	jq -cn --arg address "$net.$n.2" --arg key "$(cat "$dir/host_key.pub")" '{address: $address, host_keys: [$key]}'
}

# machine_stop ID ends the machine and all that runs on it. Safe to repeat.
machine_stop() {
	local id=$1 dir="$cloud/machines/$1" n p
	[ -d "$dir" ] || return 0
	if [ -f "$dir/pid" ]; then
		kill -KILL "$(cat "$dir/pid")" 2>/dev/null || true
		# Nothing of it may be left when we say that it is destroyed.
		while p=$(ip netns pids "$id" 2>/dev/null) && [ -n "$p" ]; do
			kill -KILL $p 2>/dev/null || true
			sleep 0.01
		done
	fi
	ip netns delete "$id" 2>/dev/null || true
	if n=$(cat "$dir/number" 2>/dev/null); then
		ip link delete "mv${net##*.}-$n" 2>/dev/null || true
		rm -rf "$cloud/number-$n"
	fi
	rm -rf "$dir"
}

# create WANTED makes one instance; one that the token has already is the answer.
create() {
	local wanted=$1 id record way
	id=i-$(jq -j '.tags["muster-owner"], "/", .token' <<<"$wanted" | sha256sum | cut -c 1-11)
	record="$cloud/instances/$id.json"
	if [ ! -f "$record" ]; then
		# One at a time is recorded, so that the limit holds.
		exec 8>"$cloud/recording"
		flock 8
		if ! jq -e '.offering == "small" and .market == "on-demand" and (.zone // "") == ""' >/dev/null <<<"$wanted"; then
			fault invalid "there is no offering $(jq -r .offering <<<"$wanted")"
			return
		fi
		if [ "$(ls "$cloud/instances" | grep -c '\.json$')" -ge "$limit" ]; then
			fault capacity "all $limit instances are in use" '{"offering": "small", "market": "on-demand"}'
			return
		fi
		# The record with its tags comes before the machine: whatever breaks off, it is listed, and can be destroyed.
		jq --arg id "$id" '{id: $id, tags, offering, market, created: (now | floor | todate)}' <<<"$wanted" >"$record.tmp"
		mv "$record.tmp" "$record"
		exec 8>&-
		if ! way=$(machine_start "$id"); then
			machine_stop "$id"
			rm -f "$record"
			fault transient "instance $id did not start"
			return
		fi
		jq --argjson way "$way" '. + $way' "$record" >"$record.tmp"
		mv "$record.tmp" "$record"
	fi
	jq -c '{instance: .}' "$record"
}

# mine ID is the record of an instance of this owner; an id of our own making has no other letters.
mine() {
	local record="$cloud/instances/$1.json"
	[[ $1 =~ ^i-[0-9a-f]+$ ]] && [ -f "$record" ] && jq -e --arg owner "$owner" '.tags["muster-owner"] == $owner' "$record" >/dev/null
}

destroy() {
	local id=$1
	if ! [[ $id =~ ^i-[0-9a-f]+$ ]] || [ ! -f "$cloud/instances/$id.json" ]; then
		echo '{}' # it is not there, which is what was asked for
	elif mine "$id"; then
		machine_stop "$id"
		rm -f "$cloud/instances/$id.json"
		echo '{}'
	else
		fault not-found "there is no instance $id of owner $owner"
	fi
}

case $(ask .op) in
offers)
	jq -n --argjson limit "$limit" '{offers: [{name: "small", cpu: 1, memory: "512MiB", disk: "1GiB", price: 0.01, limit: $limit}]}'
	;;
create)
	# Machines are started at the same time: the call takes as long as the slowest of them, not as all together.
	answers=$(mktemp -d "$cloud/answers-XXXXXX")
	trap 'rm -rf "$answers"' EXIT
	number=0
	while read -r wanted; do
		create "$wanted" >"$answers/$(printf %06d $number)" &
		number=$((number + 1))
	done < <(ask -c '.create[]')
	wait
	shopt -s nullglob
	cat /dev/null "$answers"/* | jq -s '{results: .}'
	;;
destroy)
	ask '.destroy[]' | while read -r id; do destroy "$id"; done | jq -s '{results: .}'
	;;
list)
	find "$cloud/instances" -name '*.json' -exec cat {} + | jq -s --arg owner "$owner" '{instances: map(select(.tags["muster-owner"] == $owner)), complete: true}'
	;;
tags)
	id=$(ask .id)
	if mine "$id"; then
		jq --argjson tags "$(ask -c .tags)" '.tags = $tags' "$cloud/instances/$id.json" >"$cloud/instances/$id.json.tmp"
		mv "$cloud/instances/$id.json.tmp" "$cloud/instances/$id.json"
		echo '{}'
	else
		fault not-found "there is no instance $id of owner $owner"
	fi
	;;
*)
	echo "op $(ask .op) is unknown" >&2
	exit 64
	;;
esac
