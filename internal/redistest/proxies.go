package redistest

import (
	"context"
	"fmt"
	"net"
	"testing"
)

// Proxies are the fault proxies of several nodes. Clients reach them by Dialer,
// so that the nodes keep the addresses which they announce to each other.
//
// All is on loopback, so the port tells the nodes apart. Clients with manual
// ClusterSlots leave the host out.
type Proxies struct{ byPort map[string]*Proxy }

// NewProxies starts one proxy to each of addrs. They are closed when t ends.
func NewProxies(t testing.TB, addrs ...string) *Proxies {
	t.Helper()
	ps := &Proxies{byPort: make(map[string]*Proxy, len(addrs))}
	for _, addr := range addrs {
		_, port, _ := net.SplitHostPort(addr)
		ps.byPort[port] = NewProxy(t, addr)
	}
	return ps
}

// For is the proxy in front of the node at addr, nil when there is none.
func (ps *Proxies) For(addr string) *Proxy {
	_, port, _ := net.SplitHostPort(addr)
	return ps.byPort[port]
}

// Dialer goes, for the options of any client, to the proxy where the client
// means the node. An address without a proxy is an error: nothing may go past
// the proxies unnoticed.
func (ps *Proxies) Dialer() func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		p := ps.For(addr)
		if p == nil {
			return nil, fmt.Errorf("redistest: no proxy in front of %s", addr)
		}
		c, err := new(net.Dialer).DialContext(ctx, network, p.Addr)
		if err != nil {
			return nil, err
		}
		node, err := net.ResolveTCPAddr(network, p.backend)
		if err != nil {
			c.Close()
			return nil, err
		}
		return &proxied{c.(*net.TCPConn), node}, nil
	}
}

// proxied is a connection that says it leads to the node. The client of a
// Sentinel compares this address with the new master's.
type proxied struct {
	*net.TCPConn
	node net.Addr
}

func (c *proxied) RemoteAddr() net.Addr { return c.node }
