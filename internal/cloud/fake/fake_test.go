package fake_test

import (
	"testing"
	"time"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/internal/cloud"
	"github.com/musterhq/muster/internal/cloud/cloudtest"
	"github.com/musterhq/muster/internal/cloud/fake"
)

type account struct{ c *fake.Cloud }

func (a account) Open(_ *testing.T, owner string) cloud.Provider { return a.c.Owner(owner) }

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  fake.Config
	}{
		{"instant", fake.Config{}},
		{"slow, in pages", fake.Config{Seed: 7, Delay: time.Millisecond, Jitter: 5 * time.Millisecond, Page: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cloudtest.Run(t, 10*time.Second, func(*testing.T) cloudtest.Cloud {
				cfg := c.cfg
				cfg.Offerings = []muster.Offering{{Provider: "fake", Name: "small", Market: muster.OnDemand, Price: 1e5,
					Capacity: muster.Resources{CPU: 2000, Memory: muster.GiB}, Available: true}}
				return account{fake.New(cfg)}
			})
		})
	}
}
