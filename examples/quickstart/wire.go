package main

import (
	"context"
	"errors"
	"net"
	"sync"
)

// wire is the network between one process and Redis. It can be cut.
type wire struct {
	dial func(ctx context.Context, network, addr string) (net.Conn, error)

	mu    sync.Mutex
	conns []net.Conn
	cut   bool
}

var errCut = errors.New("the network is cut")

// open is a Dialer for go-redis.
func (w *wire) open(ctx context.Context, network, addr string) (net.Conn, error) {
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut {
		return nil, errCut
	}
	conn, err := w.dial(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		conn.Close()
		return nil, errCut
	}
	w.conns = append(w.conns, conn)
	return conn, nil
}

// sever closes all connections, as the kernel does for a process that dies, and
// allows no new ones.
func (w *wire) sever() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, conn := range w.conns {
		conn.Close() // the pool may have closed it already
	}
	w.conns = nil
}
