package destinations

import (
	"net/netip"
	"testing"
)

func TestDestinationsRefuse(t *testing.T) {
	allowed, err := Parse([]string{"127.0.0.2", "169.254.9.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	for address, refused := range map[string]bool{
		"169.254.169.254": true, "fd00:ec2::254": true, "fd20:ce::254": true, "100.100.100.200": true, "168.63.129.16": true, "127.0.0.1": true, "::1": true,
		"::ffff:127.0.0.1": true, "::ffff:169.254.169.254": true, "0.0.0.0": true, "::": true, "0.1.2.3": true, "127.255.0.9": true,
		"fe80::1": true, "224.0.0.1": true, "ff02::1": true, "255.255.255.255": true,
		"64:ff9b::a9fe:a9fe": true, "64:ff9b:1::7f00:1": true, "2002:7f00:1::": true, "::7f00:1": true, "fe80::1%eth0": true,
		"192.0.2.1": false, "10.0.0.1": false, "192.168.1.1": false, "2001:db8::1": false, "64:ff9b::c000:201": false, "fd12::1": false,
		"127.0.0.2": false, "::ffff:127.0.0.2": false, "169.254.9.7": false, "127.0.0.3": true,
	} {
		if got := allowed.Refuses(netip.MustParseAddr(address)); got != refused {
			t.Errorf("%s: refused %v, want %v", address, got, refused)
		}
	}
	for _, text := range []string{"localhost", "10.0.0.0/33", "", "10.0.0.1:80"} {
		if _, err := Parse([]string{text}); err == nil {
			t.Errorf("%q was read", text)
		}
	}
}
