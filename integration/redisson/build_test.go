package redisson

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	envRequire = "RELOCK_REQUIRE_REDISSON" // 1: no JDK or Maven is a failure, not a reason to skip
	buildLimit = 10 * time.Minute          // the first build downloads Redisson
)

// missing skips t, or fails it where the tests here are required.
func missing(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(envRequire) == "1" {
		t.Fatalf("%s is 1, but %s", envRequire, why)
	}
	t.Skipf("not tested beside Redisson: %s", why)
}

// jar returns the Java program, built if need be. Processes that want it at the
// same time build it once.
func jar(t testing.TB) string {
	t.Helper()
	for _, tool := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(tool); err != nil {
			missing(t, tool+" is not on PATH; install a JDK (17 or later) and Maven")
		}
	}
	target := filepath.Join("java", "target")
	jar, built := filepath.Join(target, "peer.jar"), filepath.Join(target, "built")
	require.NoError(t, os.MkdirAll(target, 0o755))
	lock, err := os.OpenFile(filepath.Join(target, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	require.NoError(t, err)
	defer lock.Close() // and so unlock it
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))

	sources := hashSources(t)
	if was, err := os.ReadFile(built); err == nil && string(was) == sources {
		return jar
	}
	// What an older source has left would go into the jar again.
	for _, old := range []string{built, jar, filepath.Join(target, "classes"), filepath.Join(target, "lib")} {
		require.NoError(t, os.RemoveAll(old))
	}
	t.Log("building the Java program; the first time, Maven downloads Redisson")
	ctx, cancel := context.WithTimeout(t.Context(), buildLimit)
	defer cancel()
	mvn := exec.CommandContext(ctx, "mvn", "-B", "-q", "-ntp", "package")
	mvn.Dir = "java"
	if out, err := mvn.CombinedOutput(); err != nil {
		if strings.Contains(string(out), "Could not transfer artifact") {
			missing(t, "Maven cannot download what the Java program needs:\n"+string(out))
		}
		t.Fatalf("mvn package: %v\n%s", err, out)
	}
	require.NoError(t, os.WriteFile(built, []byte(sources), 0o644))
	return jar
}

// hashSources is a hash of all that goes into the jar.
func hashSources(t testing.TB) string {
	t.Helper()
	sum := sha256.New()
	add := func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		sum.Write([]byte(path + "\x00"))
		sum.Write(text)
		return err
	}
	err := errors.Join(
		filepath.WalkDir(filepath.Join("java", "pom.xml"), add),
		filepath.WalkDir(filepath.Join("java", "src"), add),
	)
	require.NoError(t, err)
	return hex.EncodeToString(sum.Sum(nil))
}
