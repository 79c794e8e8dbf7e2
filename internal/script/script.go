// Package script holds what relock runs inside Redis: one .lua file for each
// request, the names that go with them, and the runner that sends them.
//
// Every script states the wanted state and may run twice. The header of each
// file names keys, arguments and replies; it is not sent to Redis. What several
// scripts do lies in parts/.
package script

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed *.lua parts/*.lua
var files embed.FS

// Script is a Lua script as it is sent.
type Script struct {
	Name string // of its file, without the ending
	Text string
	SHA  string // as EVALSHA wants it

	// The words of the command as go-redis takes them, made once: boxing a
	// string anew costs an allocation for each request.
	text, sha any
}

// The scripts. They are never changed.
var (
	Acquire = load("acquire", "guard", "foreign", "held", "deep", "token")
	Keep    = load("keep", "raise", "token")
	Release = load("release", "tell")
	Pass    = load("pass", "raise", "token")
	Renew   = load("renew")
	Force   = load("force", "foreign", "tell", "next")
	Info    = load("info", "readers")

	FairAcquire = load("fair_acquire", "guard", "foreign", "held", "deep", "queue", "raise")
	FairRelease = load("fair_release", "tell", "next")
	FairPass    = load("fair_pass", "queue", "raise", "tell", "next")
	FairLeave   = load("fair_leave", "queue", "tell", "next")
	FairBeat    = load("fair_beat", "queue")

	RWAcquire = load("rw_acquire", "guard", "foreign", "held", "deep", "readers")
	RWKeep    = load("rw_keep", "raise", "readers")
	RWRelease = load("rw_release", "readers", "tell", "rest")
	RWPass    = load("rw_pass", "raise", "readers", "tell", "rest")
	RWRenew   = load("rw_renew", "raise", "readers")
	RWForce   = load("rw_force", "readers", "tell")
)

// load reads a script and puts the parts before it that it uses, each once.
func load(name string, parts ...string) *Script {
	var text strings.Builder
	for _, part := range parts {
		text.WriteString(read("parts/"+part) + "\n")
	}
	text.WriteString(read(name))
	sum := sha1.Sum([]byte(text.String()))
	sha := hex.EncodeToString(sum[:])
	return &Script{Name: name, Text: text.String(), SHA: sha, text: text.String(), sha: sha}
}

// read returns what a file has for Redis.
func read(name string) string {
	file, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic("script: bug: " + err.Error())
	}
	return strip(string(file))
}

// strip drops the comments. No string of a script has the two hyphens in it.
func strip(file string) string {
	var lines []string
	for line := range strings.Lines(file) {
		code, _, _ := strings.Cut(line, "--")
		if code = strings.TrimRight(code, " \n"); code != "" {
			lines = append(lines, code)
		}
	}
	return strings.Join(lines, "\n")
}
