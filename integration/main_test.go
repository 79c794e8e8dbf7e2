package integration

import (
	"flag"
	"testing"
)

// roles are what child processes of these tests can do.
var roles = map[string]Role{}

// together is how many parallel tests run at a time, if nobody says otherwise: they
// wait for timeouts most of the time, and not for a processor.
const together = "8"

func TestMain(m *testing.M) {
	flag.Parse()
	said := false
	flag.Visit(func(f *flag.Flag) { said = said || f.Name == "test.parallel" })
	if !said {
		if err := flag.Set("test.parallel", together); err != nil {
			panic(err)
		}
	}
	Main(m, roles)
}
