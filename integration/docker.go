package integration

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/redis/go-redis/v9"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
	tcredis "github.com/testcontainers/testcontainers-go/modules/redis"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/relock-go/relock/internal/redistest"
)

const (
	defaultImage = "redis:7"
	probeLimit   = 2 * time.Second // to find out whether there is Docker
	pullLimit    = 3 * time.Minute // to start a container whose image is not here yet
	dockerLimit  = 30 * time.Second
)

func image() string {
	if name := os.Getenv(envImage); name != "" {
		return name
	}
	return defaultImage
}

// engine is the Docker engine of this machine, asked for once.
var engine = sync.OnceValues(func() (e dockerEngine, err error) {
	log.SetDefault(log.NewNoopLogger())
	if os.Getenv(envNoDocker) == "1" {
		return e, errNoRedis
	}
	defer func() {
		// testcontainers-go panics where it finds no trace of Docker.
		if recover() != nil {
			err = errNoRedis
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
	defer cancel()
	e.client, err = testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		return e, errNoRedis
	}
	if _, err := e.client.Ping(ctx, client.PingOptions{}); err != nil {
		return e, errNoRedis
	}
	provider, err := testcontainers.NewDockerProvider()
	if err != nil {
		return e, errNoRedis
	}
	defer provider.Close()
	if e.host, err = provider.DaemonHost(ctx); err != nil {
		return e, errNoRedis
	}
	if e.host == "localhost" {
		e.host = "127.0.0.1"
	}
	return e, nil
})

type dockerEngine struct {
	client *testcontainers.DockerClient
	host   string // where its containers' ports are
}

// dockerRedis is a container with a Redis, as a backend.
type dockerRedis struct {
	engine    dockerEngine
	addr      string
	container testcontainers.Container
}

func startDocker(logf func(string, ...any), args []string) (*Server, error) {
	e, err := engine()
	if err != nil {
		if os.Getenv(envImage) != "" && os.Getenv(envNoDocker) != "1" {
			return nil, fmt.Errorf("%s asks for %s, but there is no Docker", envImage, image())
		}
		return nil, err
	}
	d, err := newDockerRedis(e, args)
	if err != nil {
		if os.Getenv(envImage) == "" {
			logf("Docker is here, but %s does not start: %v", image(), err)
			return nil, errNoRedis
		}
		return nil, err
	}
	return &Server{Addr: d.addr, Kind: "docker", backend: d}, nil
}

func newDockerRedis(e dockerEngine, args []string) (*dockerRedis, error) {
	ctx, cancel := context.WithTimeout(context.Background(), pullLimit)
	defer cancel()
	// A port chosen by the engine changes with every start of the container.
	port, err := redistest.FreePort()
	if err != nil {
		return nil, err
	}
	program := "redis-server"
	if strings.Contains(image(), "valkey") {
		program = "valkey-server"
	}
	command := append([]string{program, "--save", "", "--appendonly", "no", "--protected-mode", "no"}, args...)
	bind := netip.IPv4Unspecified()
	if ip, err := netip.ParseAddr(e.host); err == nil && ip.IsLoopback() {
		bind = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	c, err := tcredis.Run(ctx, image(),
		testcontainers.WithCmd(command...),
		testcontainers.WithHostConfigModifier(func(h *container.HostConfig) {
			h.PortBindings = network.PortMap{
				network.MustParsePort("6379/tcp"): {{HostIP: bind, HostPort: strconv.Itoa(port)}},
			}
		}),
		testcontainers.WithWaitStrategy(wait.ForLog("eady to accept connections").WithStartupTimeout(dockerLimit)),
	)
	if err != nil {
		if c != nil && c.Container != nil {
			_ = testcontainers.TerminateContainer(c.Container) // the first error says more
		}
		return nil, fmt.Errorf("start %s: %w", image(), err)
	}
	d := &dockerRedis{engine: e, addr: net.JoinHostPort(e.host, strconv.Itoa(port)), container: c.Container}
	if err := d.answers(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// answers waits until the server does.
func (d *dockerRedis) answers(ctx context.Context) error {
	rdb := redis.NewClient(&redis.Options{Addr: d.addr, MaxRetries: -1})
	defer rdb.Close()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := rdb.Ping(ctx).Err()
		if err == nil || strings.HasPrefix(err.Error(), "NOAUTH") {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s in Docker does not answer at %s: %w", image(), d.addr, err)
		case <-tick.C:
		}
	}
}

// withEngine gives f the Docker client and a bounded ctx.
func (d *dockerRedis) withEngine(f func(ctx context.Context, c *testcontainers.DockerClient, id string) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), dockerLimit)
	defer cancel()
	return f(ctx, d.engine.client, d.container.GetContainerID())
}

func (d *dockerRedis) Stop() error {
	return d.withEngine(func(ctx context.Context, c *testcontainers.DockerClient, id string) error {
		_, err := c.ContainerPause(ctx, id, client.ContainerPauseOptions{})
		return err
	})
}

func (d *dockerRedis) Cont() error {
	return d.withEngine(func(ctx context.Context, c *testcontainers.DockerClient, id string) error {
		_, err := c.ContainerUnpause(ctx, id, client.ContainerUnpauseOptions{})
		return err
	})
}

func (d *dockerRedis) Kill() error {
	return d.withEngine(func(ctx context.Context, c *testcontainers.DockerClient, id string) error {
		if _, err := c.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			return err
		}
		wait := c.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
		select {
		case <-wait.Result:
			return nil
		case err := <-wait.Error:
			return err
		}
	})
}

func (d *dockerRedis) Restart() error {
	return d.withEngine(func(ctx context.Context, c *testcontainers.DockerClient, id string) error {
		state, err := c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err != nil {
			return err
		}
		if state.Container.State.Running {
			if err := d.Kill(); err != nil {
				return err
			}
		}
		if _, err := c.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
			return err
		}
		return d.answers(ctx)
	})
}

func (d *dockerRedis) Close() {
	_ = testcontainers.TerminateContainer(d.container, testcontainers.StopTimeout(0)) // what stays is the reaper's
}
