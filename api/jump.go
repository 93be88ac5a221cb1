package api

import "strings"

// SplitJump takes the bastion of SSHSpec.ProxyJump apart, USER@HOST:PORT. The user may be missing.
func SplitJump(jump string) (user, address string) {
	if at := strings.LastIndex(jump, "@"); at >= 0 {
		return jump[:at], jump[at+1:]
	}
	return "", jump
}
