// Package script holds what relock runs inside Redis: one .lua file for each
// request, the names that go with them, and the runner that sends them.
//
// Every script states the wanted state and may run twice. The header of each
// file names keys, arguments and replies; it is not sent to Redis.
package script

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
)

//go:embed *.lua
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
	Acquire = load("acquire")
	Keep    = load("keep")
	Release = load("release")
	Pass    = load("pass")
	Renew   = load("renew")
	Force   = load("force")
	Info    = load("info")
)

func load(name string) *Script {
	file, err := files.ReadFile(name + ".lua")
	if err != nil {
		panic("script: bug: " + err.Error())
	}
	text := strip(string(file))
	sum := sha1.Sum([]byte(text))
	sha := hex.EncodeToString(sum[:])
	return &Script{Name: name, Text: text, SHA: sha, text: text, sha: sha}
}

// strip drops the comment at the top of a file.
func strip(file string) string {
	for strings.HasPrefix(file, "--") {
		_, file, _ = strings.Cut(file, "\n")
	}
	return strings.TrimSpace(file)
}
