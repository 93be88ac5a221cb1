package server

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/musterhq/muster"
	"github.com/musterhq/muster/api"
	"github.com/musterhq/muster/internal/outbound"
)

// caDir is where the data directory has the certificates of network.ca_file, alone in a directory
// because a process trusts all certificates of one.
const caDir = "network-ca"

// UseNetwork makes this process reach what is outside as the configuration says. It changes
// http.DefaultTransport and the environment of the process, since some libraries and the programs
// of providers know nothing else; so it is called once, before Run, and not for each server of a
// process. The error names the field.
func UseNetwork(config *api.ServerConfig) error {
	s, err := networkSettings(&config.Network, "network")
	if err != nil {
		return err
	}
	if err := s.Use(); err != nil {
		return err
	}
	dir, err := filepath.Abs(filepath.Join(config.DataDir, caDir))
	if err != nil {
		return err
	}
	return s.Environ(dir)
}

// networkSettings reads the files that a configuration names. at is the field it stands in.
func networkSettings(n *api.NetworkConfig, at string) (outbound.Settings, error) {
	s := outbound.Settings{Proxy: n.Proxy, NoProxy: strings.Join(n.NoProxy, ","), Field: at + ".proxy of the server's configuration"}
	if n.PasswordFile != "" {
		password, err := os.ReadFile(n.PasswordFile)
		if err != nil {
			return s, fmt.Errorf("%s.password_file: %w", at, err)
		}
		u, err := url.Parse(n.Proxy)
		if err != nil {
			return s, fmt.Errorf("%s.proxy: is no URL", at)
		}
		u.User = url.UserPassword(n.Username, string(bytes.TrimRight(password, "\r\n")))
		s.Proxy = u.String()
	}
	if n.CAFile != "" {
		ca, err := os.ReadFile(n.CAFile)
		if err != nil {
			return s, fmt.Errorf("%s.ca_file: %w", at, err)
		}
		s.CA = string(ca)
	}
	return s, nil
}

// nodeNetwork is what an agent of a pool is told of the network; nil: nothing, so that its own
// environment counts. The password of its proxy is read anew for each start of an agent.
func (s *Server) nodeNetwork(pool muster.PoolName) ([]byte, error) {
	config := s.config()
	n, at := &config.Network, "network"
	if own := config.Pool(string(pool)).Network; own != nil {
		n, at = own, fmt.Sprintf("pools[%s].network", pool)
	} else if n.Proxy == "" && n.CAFile == "" {
		return nil, nil
	}
	settings, err := networkSettings(n, at)
	if err != nil {
		// An agent that started without them would fail in its pulls, for a reason far from this one.
		return nil, muster.Faultf(muster.FaultInvalid, "%v", err)
	}
	return settings.Encode(), nil
}
