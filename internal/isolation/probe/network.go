package main

import (
	"net"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func networkAttempts() []attempt {
	return []attempt{
		{"sockets-raw", func() verdict {
			return each(map[string]func() error{
				"icmp":    func() error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) },
				"tcp":     func() error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP) },
				"ip":      func() error { return socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW) },
				"icmp6":   func() error { return socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6) },
				"packets": func() error { return socket(unix.AF_PACKET, unix.SOCK_RAW, 0x0300) },
				"cooked":  func() error { return socket(unix.AF_PACKET, unix.SOCK_DGRAM, 0x0300) },
			}, unix.EAFNOSUPPORT)
		}},
		{"sockets-of-the-machine", func() verdict {
			return each(map[string]func() error{
				"vsock":     func() error { return socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) },
				"alg":       func() error { return socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) },
				"xdp":       func() error { return socket(unix.AF_XDP, unix.SOCK_RAW, 0) },
				"bluetooth": func() error { return socket(unix.AF_BLUETOOTH, unix.SOCK_RAW, 1) },
				"can":       func() error { return socket(unix.AF_CAN, unix.SOCK_RAW, 1) },
				"tipc":      func() error { return socket(unix.AF_TIPC, unix.SOCK_SEQPACKET, 0) },
				"rds":       func() error { return socket(unix.AF_RDS, unix.SOCK_SEQPACKET, 0) },
				"key":       func() error { return socket(unix.AF_KEY, unix.SOCK_RAW, 2) },
				"audit":     func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT) },
				"netfilter": func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER) },
				"events":    func() error { return socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT) },
			})
		}},
		{"network-settings", func() verdict {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return judge(err)
			}
			request := func(code uintptr, change func(*[40]byte)) error {
				var r [40]byte
				copy(r[:], "lo")
				change(&r)
				return call(unix.SYS_IOCTL, uintptr(fd), code, uintptr(unsafe.Pointer(&r)))
			}
			mark := 1
			return each(map[string]func() error{
				"down": func() error { return request(unix.SIOCSIFFLAGS, func(r *[40]byte) { r[16] = unix.IFF_UP }) },
				"mtu":  func() error { return request(unix.SIOCSIFMTU, func(r *[40]byte) { r[17] = 0x10 }) },
				"route": func() error {
					return call(unix.SYS_IOCTL, uintptr(fd), unix.SIOCADDRT, uintptr(unsafe.Pointer(&[120]byte{})))
				},
				"mark": func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark) },
				"bind": func() error { return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1) },
			})
		}},
		{"network-forbidden", func() verdict { return dial("PROBE_FORBIDDEN", true) }},
		{"network-allowed", func() verdict { return dial("PROBE_ALLOWED", false) }},
		{"network-neighbours", func() verdict {
			// An abstract name of another network namespace.
			name := os.Getenv("PROBE_ABSTRACT")
			if name == "" {
				return absent("no name")
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return broken("%v", err)
			}
			return judge(unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + name}), unix.ECONNREFUSED)
		}},
	}
}

func socket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// dial tries addresses that must not, or must, be reached.
func dial(variable string, forbidden bool) verdict {
	list := strings.Fields(os.Getenv(variable))
	if len(list) == 0 {
		return absent("no addresses")
	}
	for _, address := range list {
		conn, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err == nil {
			_ = conn.Close()
		}
		if (err == nil) == forbidden {
			return broken("%s: %v", address, err)
		}
	}
	return held("%s", strings.Join(list, " "))
}
