package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	holdfastprometheus "github.com/holdfast-go/holdfast/contrib/prometheus"
	"github.com/holdfast-go/holdfast/internal/test/instruments"
	"github.com/holdfast-go/holdfast/internal/test/skip"
)

// serviceMonitor and scaledObject are the parts of these resources that ours have: their own modules are large.
type (
	serviceMonitor struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ObjectMeta `json:"metadata"`
		Spec            struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port, Path, Interval, ScrapeTimeout string
			} `json:"endpoints"`
		} `json:"spec"`
	}
	scaledObject struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ObjectMeta `json:"metadata"`
		Spec            struct {
			ScaleTargetRef  autoscalingv2.CrossVersionObjectReference `json:"scaleTargetRef"`
			MinReplicaCount int32                                     `json:"minReplicaCount"`
			MaxReplicaCount int32                                     `json:"maxReplicaCount"`
			PollingInterval int32                                     `json:"pollingInterval"`
			CooldownPeriod  int32                                     `json:"cooldownPeriod"`
			Advanced        struct {
				HorizontalPodAutoscalerConfig struct {
					Behavior autoscalingv2.HorizontalPodAutoscalerBehavior `json:"behavior"`
				} `json:"horizontalPodAutoscalerConfig"`
			} `json:"advanced"`
			Triggers []struct {
				Type       string                         `json:"type"`
				MetricType autoscalingv2.MetricTargetType `json:"metricType"`
				Metadata   map[string]string              `json:"metadata"`
			} `json:"triggers"`
		} `json:"spec"`
	}
)

// kinds are what the manifests may have, decoded by Kubernetes' own types.
var kinds = map[string]func() any{
	"apps/v1 Deployment": func() any { return new(appsv1.Deployment) }, "v1 Service": func() any { return new(corev1.Service) },
	"v1 ServiceAccount": func() any { return new(corev1.ServiceAccount) }, "v1 ConfigMap": func() any { return new(corev1.ConfigMap) },
	"policy/v1 PodDisruptionBudget": func() any { return new(policyv1.PodDisruptionBudget) }, "batch/v1 Job": func() any { return new(batchv1.Job) },
	"networking.k8s.io/v1 NetworkPolicy":      func() any { return new(networkingv1.NetworkPolicy) },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() any { return new(autoscalingv2.HorizontalPodAutoscaler) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any { return new(serviceMonitor) }, "keda.sh/v1alpha1 ScaledObject": func() any { return new(scaledObject) },
}

// decoded are the resources of a folder, each into its own type, by kind. A field that the type does not have is an error.
func decoded(t *testing.T, manifests []byte) map[string]any {
	t.Helper()
	found := map[string]any{}
	for document := range strings.SplitSeq(string(manifests), "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			t.Fatal(err)
		}
		build := kinds[meta.APIVersion+" "+meta.Kind]
		if build == nil {
			t.Errorf("there is a %s of %s, which this test does not know", meta.Kind, meta.APIVersion)
			continue
		}
		into := build()
		if err := yaml.UnmarshalStrict([]byte(document), into); err != nil {
			t.Errorf("%s: %v\n%s", meta.Kind, err, document)
		}
		found[meta.Kind] = into
	}
	return found
}

// kustomized builds a folder as kubectl kustomize does.
func kustomized(t *testing.T, dir string) map[string]any {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("%s: %v", dir, err)
	}
	manifests, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decoded(t, manifests)
}

// withComponents is the base with these components.
func withComponents(t *testing.T, names ...string) map[string]any {
	t.Helper()
	root, err := filepath.Abs("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	relative, err := filepath.Rel(dir, root)
	if err != nil {
		t.Fatal(err)
	}
	text := "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [" + relative + "/base]\ncomponents:\n"
	for _, name := range names {
		text += "- " + relative + "/components/" + name + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return kustomized(t, dir)
}

func TestKubernetes_KustomizeBuildsManifestsOfKubernetesOwnTypes(t *testing.T) {
	for _, c := range []struct {
		name  string
		found map[string]any
		want  []string
	}{
		{"base", kustomized(t, "kubernetes/base"), []string{"ConfigMap", "Deployment", "PodDisruptionBudget", "Service", "ServiceAccount"}},
		{"migrate", kustomized(t, "kubernetes/migrate"), []string{"Job"}},
		{"example", kustomized(t, "kubernetes/example"), []string{"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceAccount", "ServiceMonitor"}},
		{"keda", withComponents(t, "keda"), []string{"ConfigMap", "Deployment", "PodDisruptionBudget", "ScaledObject", "Service", "ServiceAccount"}},
		{"hpa", withComponents(t, "hpa"), []string{"ConfigMap", "Deployment", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Service", "ServiceAccount"}},
	} {
		var got []string
		for kind := range c.found {
			got = append(got, kind)
		}
		if slices.Sort(got); !slices.Equal(got, c.want) {
			t.Errorf("%s has %q, want %q", c.name, got, c.want)
		}
	}
}

// restricted says what of a pod the level "restricted" of Kubernetes' Pod Security Standards refuses, and what we want besides.
func restricted(pod corev1.PodSpec) (found []string) {
	wrong := func(is bool, what string) {
		if is {
			found = append(found, what)
		}
	}
	s := pod.SecurityContext
	wrong(s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0, "it may run as root")
	wrong(s == nil || s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault, "it has no seccomp profile")
	wrong(pod.HostNetwork || pod.HostPID || pod.HostIPC, "it shares namespaces of the node")
	wrong(pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken, "it has a token for the API")
	for _, v := range pod.Volumes {
		wrong(v.ConfigMap == nil && v.Secret == nil, "volume "+v.Name+" is neither a config map nor a secret")
	}
	for _, c := range pod.Containers {
		s := c.SecurityContext
		wrong(s == nil || s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation, "it may gain privileges")
		wrong(s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem, "it may write to its disk")
		wrong(s == nil || s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0, "it has capabilities")
		wrong(c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero(), "it has no bounds")
	}
	return found
}

func TestKubernetes_PodsAreRestricted(t *testing.T) {
	relay := kustomized(t, "kubernetes/base")["Deployment"].(*appsv1.Deployment).Spec.Template.Spec
	for name, pod := range map[string]corev1.PodSpec{"relay": relay, "migrate": kustomized(t, "kubernetes/migrate")["Job"].(*batchv1.Job).Spec.Template.Spec} {
		for _, what := range restricted(pod) {
			t.Errorf("%s: %s", name, what)
		}
	}
	relay.Containers[0].SecurityContext.ReadOnlyRootFilesystem = nil
	relay.SecurityContext.RunAsNonRoot = nil
	if found := restricted(relay); len(found) != 2 {
		t.Errorf("of a pod with two faults it finds %q", found)
	}
}

func TestKubernetes_ManifestsFitTogether(t *testing.T) {
	all := withComponents(t, "servicemonitor", "networkpolicy", "keda")
	deployment := all["Deployment"].(*appsv1.Deployment)
	pod := deployment.Spec.Template
	labels := pod.Labels
	for name, selector := range map[string]map[string]string{
		"Deployment": deployment.Spec.Selector.MatchLabels, "Service": all["Service"].(*corev1.Service).Spec.Selector,
		"PodDisruptionBudget": all["PodDisruptionBudget"].(*policyv1.PodDisruptionBudget).Spec.Selector.MatchLabels,
		"NetworkPolicy":       all["NetworkPolicy"].(*networkingv1.NetworkPolicy).Spec.PodSelector.MatchLabels,
		"spread":              pod.Spec.TopologySpreadConstraints[0].LabelSelector.MatchLabels,
	} {
		for key, value := range selector {
			if labels[key] != value {
				t.Errorf("%s selects pods with %s=%s, and they have %q", name, key, value, labels)
			}
		}
		if len(selector) == 0 {
			t.Errorf("%s selects all pods", name)
		}
	}
	service := all["Service"].(*corev1.Service)
	for key, value := range all["ServiceMonitor"].(*serviceMonitor).Spec.Selector.MatchLabels {
		if service.Labels[key] != value {
			t.Errorf("ServiceMonitor selects services with %s=%s, and ours has %q", key, value, service.Labels)
		}
	}
	relay := pod.Spec.Containers[0]
	port := relay.Ports[0]
	for name, to := range map[string]string{"Service": service.Spec.Ports[0].TargetPort.String(), "liveness": relay.LivenessProbe.HTTPGet.Port.String(), "readiness": relay.ReadinessProbe.HTTPGet.Port.String(),
		"NetworkPolicy": all["NetworkPolicy"].(*networkingv1.NetworkPolicy).Spec.Ingress[0].Ports[0].Port.String(), "ServiceMonitor": all["ServiceMonitor"].(*serviceMonitor).Spec.Endpoints[0].Port} {
		if to != port.Name {
			t.Errorf("%s asks the port %s, and it is called %s", name, to, port.Name)
		}
	}
	if relay.LivenessProbe.HTTPGet.Path != "/livez" || relay.ReadinessProbe.HTTPGet.Path != "/readyz" {
		t.Errorf("probes ask %s and %s", relay.LivenessProbe.HTTPGet.Path, relay.ReadinessProbe.HTTPGet.Path)
	}
	if !service.Spec.PublishNotReadyAddresses {
		t.Error("a relay in trouble is not measured")
	}
	if to := all["ScaledObject"].(*scaledObject).Spec.ScaleTargetRef; to.Name != deployment.Name || to.Kind != "Deployment" {
		t.Errorf("KEDA scales %+v", to)
	}
}

// The relay takes the arguments, the variables and the file that the manifests give it.
func TestKubernetes_TheRelayTakesTheSettingsOfTheManifests(t *testing.T) {
	skip.InShort(t, "it takes 234 s beside the others")
	for _, dir := range []string{"base", "example"} {
		all := kustomized(t, "kubernetes/"+dir)
		relay := all["Deployment"].(*appsv1.Deployment).Spec.Template.Spec.Containers[0]
		root := t.TempDir()
		text := all["ConfigMap"].(*corev1.ConfigMap).Data["relay.yaml"]
		for _, secret := range regexp.MustCompile(`/run/secrets/holdfast/([\w-]+)`).FindAllStringSubmatch(text, -1) {
			if err := os.WriteFile(filepath.Join(root, secret[1]), []byte("postgres://u@h/x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(root, "relay.yaml")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(text, "/run/secrets/holdfast", root)), 0o600); err != nil {
			t.Fatal(err)
		}
		var args, env []string
		for _, arg := range relay.Args {
			args = append(args, strings.Replace(arg, "/etc/holdfast/relay.yaml", file, 1))
		}
		for _, v := range relay.Env {
			env = append(env, v.Name+"="+v.Value)
		}
		out := holdfast(t, env, append(args, "--print-config")...)
		if !strings.Contains(out, `listen: ':9090' # `+file) && !strings.Contains(out, `listen: :9090 # `+file) {
			t.Errorf("%s: it listens elsewhere than the manifests say:\n%s", dir, out)
		}
	}
}

func TestKubernetes_ScalersAskForAMetricThatThereIs(t *testing.T) {
	known := map[string]bool{}
	for _, i := range instruments.All() {
		known[holdfastprometheus.Name(i)] = true
	}
	for _, file := range []string{"keda/scaledobject.yaml", "hpa/horizontalpodautoscaler.yaml"} {
		names := regexp.MustCompile(`holdfast_\w+`).FindAllString(read(t, "kubernetes/components/"+file), -1)
		if len(names) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s asks for %s, which no relay has", file, name)
			}
		}
	}
	// No more relays than a new installation has lanes.
	if most := withComponents(t, "keda")["ScaledObject"].(*scaledObject).Spec.MaxReplicaCount; most != 8 {
		t.Errorf("KEDA runs up to %d relays", most)
	}
	if most := withComponents(t, "hpa")["HorizontalPodAutoscaler"].(*autoscalingv2.HorizontalPodAutoscaler).Spec.MaxReplicas; most != 8 {
		t.Errorf("the autoscaler runs up to %d relays", most)
	}
}
