package clouds

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/cloud"
)

func TestPricesOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prices.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("m7i.large: 0.12\nm7i.xlarge: 0.24\n")
	spec := &api.ProviderSpec{CloudSpec: api.CloudSpec{PricesFile: file, Prices: map[string]float64{"m7i.large": 0.1}, PriceFactor: 0.8}}
	p, err := pricesOf(spec)
	if err != nil || len(p.Table) != 2 || p.Table["m7i.large"] != 0.1 || p.Table["m7i.xlarge"] != 0.24 || p.Factor != 0.8 {
		t.Errorf("%+v, %v", p, err)
	}
	for text, want := range map[string]string{"m7i.large\n": "write lines as", "m7i.large: -1\n": "not below 0", "": ""} {
		write(text)
		_, err := pricesOf(&api.ProviderSpec{CloudSpec: api.CloudSpec{PricesFile: file}})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	write("")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := pricesOf(spec); err == nil || !strings.Contains(err.Error(), "prices_file") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestOpen(t *testing.T) {
	env := cloud.Env{Owner: "c1", Dir: "/tmp/m", Access: cloud.Access{KeyFile: "/key"}}
	ec2 := api.CloudSpec{Region: "eu-central-1", Subnets: []string{"subnet-0a"}, SecurityGroups: []string{"sg-0c"}}
	azure := api.CloudSpec{Subscription: "00000000-1111-2222-3333-444444444444", ResourceGroup: "muster", Location: "westeurope",
		Subnet: "/subscriptions/0/resourceGroups/net/providers/Microsoft.Network/virtualNetworks/main/subnets/nodes"}
	gce := api.CloudSpec{Project: "acme", Zones: []string{"europe-west1-b"}, Prices: map[string]float64{"n2-standard-4": 0.21}}
	for kind, c := range map[string]api.CloudSpec{"qemu": {Image: "/image.qcow2"}, "ec2": ec2, "gce": gce, "azure": azure} {
		p, err := Open(&api.ProviderSpec{Name: "x", Type: kind, CloudSpec: c}, env)
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		// What the server relies on for machines that it reaches over SSH.
		if _, ok := cloud.As[cloud.Accessor](p); !ok {
			t.Errorf("%s says not how its instances are reached", kind)
		}
		if _, ok := cloud.As[cloud.Bootable](p); !ok {
			t.Errorf("%s takes no user data", kind)
		}
		if _, ok := cloud.As[cloud.Resolver](p); !ok {
			t.Errorf("%s resolves nothing", kind)
		}
	}
	file := filepath.Join(t.TempDir(), "clouds.yaml")
	if err := os.WriteFile(file, []byte("clouds:\n  acme: {auth: {auth_url: 'https://keystone.example.org/v3'}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	openstack := &api.ProviderSpec{Name: "x", Type: "openstack", CloudSpec: api.CloudSpec{Cloud: "acme", Network: "nodes", Image: "debian-12",
		Credentials: api.CloudCredentials{File: file}}}
	if p, err := Open(openstack, env); err != nil {
		t.Errorf("openstack: %v", err)
	} else if _, ok := cloud.As[cloud.Resolver](p); !ok {
		t.Error("openstack resolves nothing")
	}
	if _, err := Open(&api.ProviderSpec{Name: "x", Type: "vmware"}, env); err == nil || !strings.Contains(err.Error(), "docs/providers.md") {
		t.Errorf("%v", err)
	}
}
