package proxy

import (
	"fmt"
	"net"
	"strings"
	"testing"
)

func TestAFailedLookupDoesNotNameOurResolver(t *testing.T) {
	err := fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: "api.example.com", Server: "10.1.2.3:53", IsNotFound: true}})
	if got := plainCause(err); strings.Contains(got, "10.1.2.3") || !strings.Contains(got, "api.example.com: no such host") {
		t.Errorf("%q", got)
	}
}
