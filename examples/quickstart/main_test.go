package main

import (
	"net"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relock-go/relock/internal/redistest"
)

func TestMain(m *testing.M) {
	if os.Getenv("QUICKSTART_MAIN") == "1" {
		os.Args = os.Args[:1]
		main()
		return
	}
	logging.Disable()
	goleak.VerifyTestMain(m)
}

func TestEmbedded(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, ""), "%s", &out)
	checkTimeline(t, out.String())
}

func TestRealServer(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t)
	rdb := s.Client(t)
	require.NoError(t, rdb.Set(t.Context(), "mine", "1", 0).Err())
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out, "redis://"+s.Addr+"/0"), "%s", &out)
	checkTimeline(t, out.String())
	require.Equal(t, []string{"mine"}, rdb.Keys(t.Context(), "*").Val(), "it touches only its own key")
}

// checkTimeline looks at the form: that it is true, the program checks itself.
func checkTimeline(t *testing.T, out string) {
	t.Helper()
	t.Log(out)
	head, story, _ := strings.Cut(out, "\n1. ")
	require.Contains(t, head, "relock quickstart on ")
	story, end, done := strings.Cut(story, "\nDone: 4 scenes in ")
	require.True(t, done)
	require.Contains(t, end, "nothing is left in Redis")
	line := regexp.MustCompile(`^ +\d+\.\d{3} s  (orders-1|orders-2|ops     |redis   )  \S.*$`)
	title := regexp.MustCompile(`^(\d\. )?[A-Z].*$`)
	for l := range strings.Lines(story) {
		l = strings.TrimSuffix(l, "\n")
		require.True(t, l == "" || title.MatchString(l) || line.MatchString(l), "%q", l)
	}
}

func TestBadURL(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	nobody := l.Addr().String()
	require.NoError(t, l.Close())
	for url, want := range map[string]string{
		"localhost:6379":                 "REDIS_URL is not usable",
		"http://localhost":               "REDIS_URL is not usable",
		"redis://u:secret@localhost:x/0": "REDIS_URL is not usable",
		"redis://" + nobody + "/0":       "does not answer",
	} {
		var out strings.Builder
		err := run(t.Context(), &out, url)
		require.ErrorContains(t, err, want, url)
		require.NotContains(t, err.Error(), "secret")
		require.NotContains(t, err.Error(), "\n")
		require.Empty(t, out.String())
	}
}

func TestPasswordWanted(t *testing.T) {
	t.Parallel()
	s := redistest.StartServer(t, "--requirepass", "secret")
	var out strings.Builder
	err := run(t.Context(), &out, "redis://"+s.Addr)
	require.ErrorContains(t, err, "Put user and password in REDIS_URL")
	_, err = openServer(t.Context(), "redis://:secret@"+s.Addr)
	require.NoError(t, err)
}

// TestExitCode runs the program as a user does.
func TestExitCode(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0]) // this test, which becomes the program: see TestMain
	cmd.Env = append(cmd.Environ(), "QUICKSTART_MAIN=1", "REDIS_URL=nonsense")
	text, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Regexp(t, `^quickstart: REDIS_URL is not usable: .*\n$`, string(text))
}
