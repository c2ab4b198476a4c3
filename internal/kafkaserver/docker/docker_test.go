package docker

import "testing"

func TestOnlyHostsOfThisMachineAreTaken(t *testing.T) {
	t.Parallel()
	for host, ok := range map[string]bool{
		"127.0.0.1":   true,
		"127.1.2.3":   true,
		"::1":         true,
		"localhost":   true,
		"172.17.0.1":  false,
		"10.0.0.1":    false,
		"example.com": false,
		"":            false,
	} {
		if err := checkLoopback(host); (err == nil) != ok {
			t.Errorf("%q: %v", host, err)
		}
	}
}
