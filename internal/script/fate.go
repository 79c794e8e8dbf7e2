package script

import (
	"errors"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"
)

// Fate is what an attempt proves about the script that it sent.
type Fate int

const (
	// Unknown: it may have run, may still run, or may never run.
	Unknown Fate = iota
	// Ran: it ran and its reply came back.
	Ran
	// NotRun: it did not run and changed nothing. Another attempt may succeed.
	NotRun
	// Refused: it did not run, or stopped before it changed anything, and
	// another attempt would fare no better.
	Refused
)

// passing are the refusals of a server that may accept the same request soon.
// Redis 6.2 wraps what a command inside a script raised into an ERR of its own,
// so they are looked for anywhere in the text.
var passing = []string{
	"LOADING ", "READONLY ", "TRYAGAIN ", "CLUSTERDOWN ", "MASTERDOWN ",
	"BUSY ", "NOREPLICAS ", "MISCONF ", "max number of clients",
	"non local key", // a script's key has moved on; they ask for it before they change anything
}

// redirects are answers of a node that does not serve the key; go-redis has
// followed as many as it may. nowhere is what go-redis says, without having sent
// anything, when it knows no node to send to.
var (
	redirects = []string{"MOVED ", "ASK "}
	nowhere   = []string{"redis: all ring shards are down", "redis: cluster has no nodes"}
)

func fateOf(err error) Fate {
	if errors.Is(err, redis.ErrClosed) {
		return Refused
	}
	for _, text := range nowhere {
		if strings.HasPrefix(err.Error(), text) {
			return NotRun
		}
	}
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
		return NotRun
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return NotRun
	}
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, redis.Nil) {
		return Unknown
	}
	for _, word := range redirects {
		if strings.HasPrefix(reply.Error(), word) {
			return NotRun
		}
	}
	for _, word := range passing {
		if strings.Contains(reply.Error(), word) {
			return NotRun
		}
	}
	return Refused
}

// WrongType tells whether err says that the key is of another type.
func WrongType(err error) bool {
	if err == nil { // the common case, and it allocates nothing
		return false
	}
	var reply redis.Error
	return errors.As(err, &reply) && strings.Contains(reply.Error(), "WRONGTYPE ")
}

// CrossSlot tells whether err says that the keys of one call lie in several slots
// of a cluster. Nothing ran then.
func CrossSlot(err error) bool {
	if err == nil {
		return false
	}
	var reply redis.Error
	return errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "CROSSSLOT")
}
