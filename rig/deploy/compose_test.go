package deploy

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// composition is what compose.yaml may have.
type composition struct {
	Name     string
	Services map[string]struct {
		Image       string
		Build       struct{ Context, Dockerfile string }
		Entrypoint  []string
		Command     []string
		Environment map[string]string
		Ports       []string
		Healthcheck struct {
			Test     []string
			Interval string
			Retries  int
		}
		DependsOn       map[string]struct{ Condition string } `yaml:"depends_on"`
		ReadOnly        bool                                  `yaml:"read_only"`
		CapDrop         []string                              `yaml:"cap_drop"`
		SecurityOpt     []string                              `yaml:"security_opt"`
		StopGracePeriod string                                `yaml:"stop_grace_period"`
		Restart         string
	}
}

func TestCompose_TheCompositionFitsTogether(t *testing.T) {
	skip.InShort(t, "it takes 3 s beside the others")
	decoder := yaml.NewDecoder(strings.NewReader(read(t, "compose.yaml")))
	decoder.KnownFields(true)
	var c composition
	if err := decoder.Decode(&c); err != nil {
		t.Fatal(err)
	}
	for name, s := range c.Services {
		for on, how := range s.DependsOn {
			other, there := c.Services[on]
			switch {
			case !there:
				t.Errorf("%s waits for %s, which is not there", name, on)
			case how.Condition != "service_healthy" && how.Condition != "service_completed_successfully":
				t.Errorf("%s begins when %s is %q: it must be healthy, or done", name, on, how.Condition)
			case how.Condition == "service_healthy" && len(other.Healthcheck.Test) == 0:
				t.Errorf("%s waits until %s is well, which nobody checks", name, on)
			case how.Condition == "service_completed_successfully" && other.Restart != "":
				t.Errorf("%s waits for the end of %s, which is started again", name, on)
			}
		}
		if s.Image == "" {
			t.Errorf("%s has no image", name)
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s is open to other machines: %s", name, port)
			}
		}
	}
	relay := c.Services["relay"]
	if relay.Build.Dockerfile != "deploy/Dockerfile" || !relay.ReadOnly || len(relay.CapDrop) != 1 || relay.Environment["DATABASE_URL"] != c.Services["migrate"].Environment["DATABASE_URL"] {
		t.Errorf("the relay is %+v", relay)
	}
	for _, want := range []string{"postgres", "kafka"} {
		if !strings.Contains(relay.Environment["DATABASE_URL"]+relay.Environment["KAFKA_BROKERS"], want+":") {
			t.Errorf("the relay does not reach %s", want)
		}
	}
	var env []string
	for name, value := range relay.Environment {
		env = append(env, name+"="+value)
	}
	if out := holdfast(t, env, append(relay.Command, "--print-config")...); strings.Count(out, "HOLDFAST_LISTEN") != 1 || !strings.Contains(out, "kafka:9092 # KAFKA_BROKERS") {
		t.Error(out)
	}
}
