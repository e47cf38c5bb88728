package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

const connectTimeout = 10 * time.Second // for each address of a host

var (
	errLeaseOver  = errors.New("the lease was over before the request was sent")
	errSecondLine = errors.New("a grant is worth one connection")
)

// forbiddenError says that a host has no address that calls may go to.
type forbiddenError struct{ reason string }

func (e *forbiddenError) Error() string { return e.reason }

// line is the one connection of a grant. It knows whether anything of the
// request may have left on it, and lets nothing leave when the lease is over.
type line struct {
	f       *Forwarder
	private bool
	// Nothing is written from until on, by the monotonic clock, nor after wall, in
	// Unix ms: a machine that slept stops the one, and setting the clock the other.
	until time.Time
	wall  int64

	dialled atomic.Bool
	got     atomic.Bool // there is a connection, and from now on what is written is the request
	sent    atomic.Bool // some of the request may have left
	lapsed  atomic.Bool // the first byte of the request was held back
}

// transport makes a fresh connection for its one request, which it never sends
// again: only requests on used connections are.
func (l *line) transport() http.RoundTripper {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		DialContext:            l.dial,
		Protocols:              protocols,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		TLSClientConfig:        l.f.tls.Clone(),
		TLSHandshakeTimeout:    connectTimeout,
		MaxResponseHeaderBytes: 256 << 10,
	}
}

func (l *line) over() bool {
	return !time.Now().Before(l.until) || time.Now().UnixMilli() > l.wall
}

// dial connects to the first address of a host that admits it. What is checked
// is what is dialled: names are looked up once.
func (l *line) dial(ctx context.Context, _, hostport string) (net.Conn, error) {
	if l.dialled.Swap(true) {
		return nil, errSecondLine
	}
	l.f.failpoint("before_dial")
	if l.over() {
		return nil, errLeaseOver
	}
	conn, err := l.f.dial(ctx, hostport, l.private)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(l.until); err != nil {
		conn.Close()
		return nil, err
	}
	return &leasedConn{conn, l}, nil
}

// nothingLeft tells whether, after an error, the request certainly stayed here.
func (l *line) nothingLeft() bool {
	return !l.got.Load() || l.lapsed.Load() && !l.sent.Load()
}

// leasedConn looks at the lease and writes in one place.
type leasedConn struct {
	net.Conn
	line *line
}

func (c *leasedConn) Write(p []byte) (int, error) {
	l := c.line
	if l.lapsed.Load() {
		return 0, errLeaseOver
	}
	if l.over() {
		l.lapsed.Store(true)
		return 0, errLeaseOver
	}
	first := l.got.Load() && !l.sent.Swap(true)
	n, err := c.Conn.Write(p)
	if first {
		l.f.failpoint("after_write")
	}
	return n, err
}

// dial connects to a host, at the first of its admitted addresses that answers.
func (f *Forwarder) dial(ctx context.Context, hostport string, private bool) (net.Conn, error) {
	addrs, err := f.addresses(ctx, hostport, private)
	if err != nil {
		return nil, err
	}
	connect := f.connect
	if connect == nil {
		dialer := &net.Dialer{Timeout: connectTimeout}
		connect = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", addr.String())
		}
	}
	var failed []error
	for _, addr := range addrs {
		conn, err := connect(ctx, addr)
		if err == nil {
			return conn, nil
		}
		if failed = append(failed, err); ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(failed...)
}

// addresses are those of a host that calls may go to. Its error is a
// [*forbiddenError] where there are others only.
func (f *Forwarder) addresses(ctx context.Context, hostport string, private bool) ([]netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	if literal, err := netip.ParseAddr(host); err == nil {
		found = []netip.Addr{literal}
	} else {
		resolve := f.resolve
		if resolve == nil {
			resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
				return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
			}
		}
		if found, err = resolve(ctx, host); err != nil {
			return nil, err
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no address", host)
	}
	var addrs []netip.AddrPort
	for _, addr := range found {
		if forbidden := admitted(addr, private); forbidden != nil {
			err = forbidden
			continue
		}
		addrs = append(addrs, netip.AddrPortFrom(addr.Unmap(), uint16(port)))
	}
	if len(addrs) == 0 {
		return nil, err
	}
	return addrs, nil
}

// reserved are the prefixes, beside those that netip knows, that no public host
// is at (IANA's registries of special-purpose addresses). Addresses of IPv6 are
// admitted within 2000::/3 only.
var reserved = prefixes("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")

// private are those that allow_private admits beside loopback: RFC 1918, shared
// (RFC 6598) and unique local (RFC 4193) addresses.
var private = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")

var (
	globalUnicast6 = netip.MustParsePrefix("2000::/3")
	translated     = netip.MustParsePrefix("64:ff9b::/96") // IPv4 behind NAT64 (RFC 6052)
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func within(list []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// admitted tells why calls may not go to an address, as a [*forbiddenError]. An
// IPv4 address is the same in each of its forms.
func admitted(addr netip.Addr, allowPrivate bool) error {
	if addr.Zone() != "" {
		return &forbiddenError{addr.String() + " is an address of this link only"}
	}
	a := addr.Unmap()
	if translated.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	switch {
	case a.IsLoopback() || within(private, a):
		if !allowPrivate {
			return &forbiddenError{addr.String() + " is a private address; set allow_private for this target if that is meant"}
		}
	case !a.IsGlobalUnicast() || within(reserved, a) || a.Is6() && !globalUnicast6.Contains(a):
		return &forbiddenError{addr.String() + " is no address of a host"}
	}
	return nil
}

// unreachable is the answer where no connection came about.
func unreachable(err error) *Problem {
	if f, ok := errors.AsType[*forbiddenError](err); ok {
		return &Problem{Status: http.StatusBadGateway, Code: "target_not_allowed", Retry: &no, Message: "Nothing was sent: " + f.reason}
	}
	return &Problem{Status: http.StatusBadGateway, Code: "downstream_unreachable", Retry: &yes,
		Message: fmt.Sprintf("There was no connection to the downstream, so nothing happened: %s", cut(err.Error()))}
}

// passing is the transport of requests that need no guard.
func (f *Forwarder) passing(private bool) http.RoundTripper {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, hostport string) (net.Conn, error) {
			return f.dial(ctx, hostport, private)
		},
		DisableKeepAlives:   true,
		DisableCompression:  true,
		TLSClientConfig:     f.tls.Clone(),
		TLSHandshakeTimeout: connectTimeout,
	}
}
