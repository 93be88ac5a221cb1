// Package network gives sandboxes networks of their own: a network namespace
// with nothing but its loopback (none), or one with a way out and declared ports
// in (bridge). Made ahead of need, a namespace is handed out in about a millisecond.
//
// The agent's container runtime calls it. It must never touch a rule, a route or an
// interface that is not its own, never undo what a running sandbox uses, and
// never let a packet of a sandbox pass that no rule here allowed.
//
// # How a sandbox is wired
//
// Each sandbox has a veth pair and one address; the host's end has a route to it
// and no address. There is no bridge in the kernel's sense: on a bridge,
// neighbours reach one another below the firewall, can answer ARP for each other, and
// are at most 1,023. Here every packet is routed, so that every packet meets the rules. There is
// no ARP either: both ends know each other's fixed hardware address.
//
// # What keeps what alive
//
// A namespace is held by a descriptor of the agent and by the processes of its
// sandbox; nothing is mounted. When the agent is killed, its spare namespaces
// are gone by themselves and with them their veth pairs and routes; those of
// running sandboxes stay. Only rules and records can be left behind, and Restore
// writes the whole table anew from the records of what is kept.
//
// # What is changed on the host
//
//   - interfaces muNAME-XXXX, one per sandbox or spare, each with a host route;
//   - one route "unreachable SUBNET", so that unused addresses lead nowhere;
//   - one nftables table "inet muster-NAME";
//   - net.ipv4.conf.IF.forwarding = 1 for interfaces with an IPv4 address that did not forward (the
//     replies come in there). Between those the table drops what is not for a sandbox:
//     the host does not become a router for others. RemoveAll switches it off again.
//
// Sandboxes have no IPv6 but ::1; the table drops it besides.
package network
