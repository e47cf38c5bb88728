package guard

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestAddressesThatCallsMayGoTo(t *testing.T) {
	const (
		always      = "always"
		ifPrivate   = "with allow_private"
		never       = "never"
		metadata    = "169.254.169.254"
		metadataAWS = "fd00:ec2::254"
	)
	cases := map[string]string{
		"93.184.215.14": always, "1.1.1.1": always, "172.15.255.255": always, "172.32.0.1": always, "100.63.255.255": always,
		"100.128.0.1": always, "192.167.1.1": always, "198.20.0.1": always, "223.255.255.254": always, "2606:4700::1111": always,
		"2a00:1450:4001::1": always, "::ffff:93.184.215.14": always, "64:ff9b::5db8:d70e": always, "2001:4860:4860::8888": always,

		"127.0.0.1": ifPrivate, "127.255.0.9": ifPrivate, "::1": ifPrivate, "10.0.0.1": ifPrivate, "172.16.0.1": ifPrivate,
		"172.31.255.255": ifPrivate, "192.168.1.1": ifPrivate, "100.64.0.1": ifPrivate, "100.127.255.255": ifPrivate,
		"fc00::1": ifPrivate, "fdff::1": ifPrivate, metadataAWS: ifPrivate, "::ffff:127.0.0.1": ifPrivate,
		"::ffff:10.0.0.1": ifPrivate, "64:ff9b::7f00:1": ifPrivate, "64:ff9b::a00:1": ifPrivate,

		metadata: never, "::ffff:" + metadata: never, "64:ff9b::a9fe:a9fe": never, "0.0.0.0": never, "0.1.2.3": never, "::": never,
		"::ffff:0.0.0.0": never, "169.254.0.1": never, "fe80::1": never, "fe80::1%eth0": never, "2606:4700::1111%eth0": never,
		"224.0.0.1": never, "239.255.255.255": never, "240.0.0.1": never, "255.255.255.255": never, "192.0.0.1": never,
		"192.0.2.1": never, "198.18.0.1": never, "198.19.255.255": never, "198.51.100.1": never, "203.0.113.1": never,
		"192.88.99.1": never, "ff02::1": never, "fec0::1": never, "2002:7f00:1::1": never, "2001::1": never, "2001:db8::1": never,
		"64:ff9b:1::1": never, "100::1": never, "::7f00:1": never, "3fff::1": never, "5f00::1": never, "4000::1": never,
	}
	for text, want := range cases {
		addr := netip.MustParseAddr(text)
		got := never
		switch {
		case admitted(addr, false) == nil:
			got = always
		case admitted(addr, true) == nil:
			got = ifPrivate
		}
		if got != want {
			t.Errorf("%s is admitted %s, want %s", text, got, want)
		}
		if admitted(addr, false) == nil && admitted(addr, true) != nil {
			t.Errorf("%s is admitted, but not with allow_private", text)
		}
	}
}

// TestTheCheckedAddressIsDialled lets a resolver answer what an attacker's would,
// and something else the second time it is asked.
func TestTheCheckedAddressIsDialled(t *testing.T) {
	cases := []struct {
		name    string
		answers []string // to the first question
		dialled []string
		code    string
	}{
		{"public", []string{"93.184.215.14"}, []string{"93.184.215.14:80"}, ""},
		{"loopback", []string{"127.0.0.1"}, nil, "target_not_allowed"},
		{"metadata", []string{"169.254.169.254"}, nil, "target_not_allowed"},
		{"mapped", []string{"::ffff:10.0.0.7"}, nil, "target_not_allowed"},
		{"private beside public", []string{"10.0.0.7", "93.184.215.14", "::1"}, []string{"93.184.215.14:80"}, ""},
		{"mapped public", []string{"::ffff:93.184.215.14"}, []string{"93.184.215.14:80"}, ""},
		{"several public", []string{"93.184.215.14", "93.184.215.15"}, []string{"93.184.215.14:80"}, ""},
		{"none", nil, nil, "downstream_unreachable"},
	}
	d := newTarget(t, nil)
	for _, c := range cases {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			t.Run(c.name+"/"+method, func(t *testing.T) {
				rt := routeTo(t, "http://api.example.com/v1")
				rt.AllowPrivate = false
				f := forward(t, newGuard(t), rt)
				asked := 0
				var dialled []string
				f.resolve = func(_ context.Context, host string) (addrs []netip.Addr, err error) {
					if asked++; asked > 1 {
						return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
					}
					for _, text := range c.answers {
						addrs = append(addrs, netip.MustParseAddr(text))
					}
					if host != "api.example.com" {
						err = fmt.Errorf("asked for %s", host)
					}
					return addrs, err
				}
				f.connect = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
					dialled = append(dialled, addr.String())
					return new(net.Dialer).DialContext(ctx, "tcp", d.Listener.Addr().String())
				}
				a, err := f.do(t.Context(), method, forwardBase+"row/x", "")
				if err != nil {
					t.Fatal(err)
				}
				if fmt.Sprint(dialled) != fmt.Sprint(c.dialled) || asked != 1 {
					t.Errorf("dialled %v after %d questions, want %v after one", dialled, asked, c.dialled)
				}
				if c.code == "" && a.status != 201 || c.code != "" && (a.status != 502 || !strings.Contains(a.body, c.code)) {
					t.Errorf("got %d %s, want %s", a.status, a.body, or(c.code, "201"))
				}
				if retry := a.header.Get("X-Should-Retry"); c.code == "target_not_allowed" && retry != "false" {
					t.Errorf("x-should-retry: %q", retry)
				}
				if c.code != "" && method == http.MethodPost {
					a.is(t, 502, "failed", c.code)
				}
			})
		}
	}
}

func TestAnotherAddressIsTriedBeforeAnythingIsSent(t *testing.T) {
	d := newTarget(t, nil)
	f := forward(t, newGuard(t), routeTo(t, "http://api.example.com"))
	f.resolve = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("93.184.215.14"), netip.MustParseAddr("93.184.215.15")}, nil
	}
	f.connect = func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
		if addr.Addr().String() == "93.184.215.14" {
			return nil, errors.New("connection refused")
		}
		return new(net.Dialer).DialContext(ctx, "tcp", d.Listener.Addr().String())
	}
	f.post("{}").is(t, 201, "completed", "r1")
	if n := len(d.got()); n != 1 {
		t.Errorf("%d requests", n)
	}
}

// TestEachGrantHasAConnectionOfItsOwn looks at what a downstream sees that would
// keep connections and speak HTTP/2.
func TestEachGrantHasAConnectionOfItsOwn(t *testing.T) {
	d := &target{handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "done") }}
	d.Server = httptest.NewUnstartedServer(d)
	d.EnableHTTP2 = true
	d.StartTLS()
	t.Cleanup(d.Close)
	f := forward(t, newGuard(t), routeTo(t, d.URL))
	roots := x509.NewCertPool()
	roots.AddCert(d.Certificate())
	f.tls = &tls.Config{RootCAs: roots}
	for i := range 3 {
		f.post("{}", "Idempotency-Key", fmt.Sprint("k", i)).is(t, 200, "completed", "done")
	}
	froms := map[string]bool{}
	for _, r := range d.got() {
		froms[r.from] = true
		if r.proto != 1 || r.header.Get("Accept-Encoding") != "" {
			t.Errorf("HTTP/%d, %v", r.proto, r.header)
		}
	}
	if len(froms) != 3 || len(d.got()) != 3 {
		t.Errorf("%d requests on %d connections, want 3 on 3", len(d.got()), len(froms))
	}
}

// TestBeforeThereIsAConnectionNothingHappened covers what fails before the
// boundary: the record says so, and the next begin is granted.
func TestBeforeThereIsAConnectionNothingHappened(t *testing.T) {
	refusing, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refusing.Close()
	plain := newTarget(t, nil)
	distrusted := httptest.NewUnstartedServer(plain)
	distrusted.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that clients break off
	distrusted.StartTLS()
	t.Cleanup(distrusted.Close)
	cases := map[string]string{
		"refused":          "http://" + refusing.Addr().String(),
		"no such host":     "http://nowhere.invalid",
		"TLS, distrusted":  distrusted.URL,
		"TLS, not spoken":  strings.Replace(plain.URL, "http://", "https://", 1),
		"a forbidden host": "http://metadata.example.com",
	}
	for name, to := range cases {
		t.Run(name, func(t *testing.T) {
			rt := routeTo(t, to)
			f := forward(t, newGuard(t), rt)
			f.resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
				if host == "metadata.example.com" {
					return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
				}
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			a := f.post(`{"a":1}`)
			if a.status != 502 || a.header.Get("Guard-State") != "failed" {
				t.Errorf("got %d, %s: %s", a.status, a.header.Get("Guard-State"), a.body)
			}
			if name != "a forbidden host" && a.header.Get("X-Should-Retry") != "true" {
				t.Errorf("x-should-retry: %q", a.header.Get("X-Should-Retry"))
			}
			if again := f.post(`{"a":1}`); again.header.Get("Guard-Fence") != "2" {
				t.Errorf("the second attempt got %d, fence %s", again.status, again.header.Get("Guard-Fence"))
			}
			if n := len(plain.got()); n != 0 {
				t.Errorf("%d requests arrived", n)
			}
		})
	}
}

func TestTheLeaseIsLookedAtWhereBytesAreWritten(t *testing.T) {
	soon := func() time.Time { return time.Now().Add(time.Minute) }
	cases := map[string]struct {
		until time.Time
		wall  int64
		got   bool
		wrote bool // something was written while the lease lasted
		left  bool
	}{
		"in time":                        {soon(), soon().UnixMilli(), true, true, true},
		"over by the monotonic clock":    {time.Now(), soon().UnixMilli(), true, false, false},
		"over by the wall clock":         {soon(), time.Now().Add(-time.Second).UnixMilli(), true, false, false},
		"over before a connection":       {time.Now(), soon().UnixMilli(), false, false, false},
		"a handshake is not a request":   {soon(), soon().UnixMilli(), false, true, false},
		"nothing is known after GotConn": {soon(), soon().UnixMilli(), true, false, true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			near, far := net.Pipe()
			defer near.Close()
			read := make(chan int)
			go func() {
				n, _ := io.Copy(io.Discard, far)
				read <- int(n)
			}()
			l := &line{f: &Forwarder{}, until: c.until, wall: c.wall}
			l.got.Store(c.got)
			conn := &leasedConn{near, l}
			if name != "nothing is known after GotConn" {
				n, err := conn.Write([]byte("POST"))
				if (err == nil) != c.wrote || c.wrote != (n == 4) || !c.wrote && !errors.Is(err, errLeaseOver) {
					t.Errorf("wrote %d, %v", n, err)
				}
			}
			if !c.wrote { // once held back, nothing leaves, whatever the clocks say
				if l.lapsed.Load() {
					l.until, l.wall = soon(), soon().UnixMilli()
					if n, err := conn.Write([]byte("POST")); n != 0 || !errors.Is(err, errLeaseOver) {
						t.Errorf("after a refusal wrote %d, %v", n, err)
					}
				}
			}
			near.Close()
			if n := <-read; (n > 0) != c.wrote {
				t.Errorf("%d bytes arrived", n)
			}
			if left := !l.nothingLeft(); left != c.left {
				t.Errorf("left is %v, want %v", left, c.left)
			}
		})
	}
}

func TestAGrantIsWorthOneConnection(t *testing.T) {
	d := newTarget(t, nil)
	f := forward(t, newGuard(t), routeTo(t, d.URL))
	l := &line{f: f.Forwarder, private: true, until: time.Now().Add(time.Minute), wall: time.Now().Add(time.Minute).UnixMilli()}
	conn, err := l.dial(t.Context(), "tcp", d.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if _, err := l.dial(t.Context(), "tcp", d.Listener.Addr().String()); !errors.Is(err, errSecondLine) {
		t.Errorf("a second connection: %v", err)
	}
}
