// SPDX-License-Identifier: Apache-2.0

// validate reads Kubernetes manifests from standard input and does with each what the API
// server does when it is created: decode it, refusing unknown and doubled fields; fill in
// defaults; validate. It prints one line of JSON for each.
//
// Of workloads it says as well which rules of the Pod Security Standards their pods break.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

// What the API server does with each kind that we ship. Another kind is an error, so that none
// goes by unexamined.
var strategies = map[string]rest.RESTCreateStrategy{
	"ClusterRole":        clusterrole.Strategy,
	"ClusterRoleBinding": clusterrolebinding.Strategy,
	"ConfigMap":          configmap.Strategy,
	"DaemonSet":          daemonset.Strategy,
	"Deployment":         deployment.Strategy,
	"Namespace":          namespace.Strategy,
	"NetworkPolicy":      networkpolicy.Strategy,
	"PriorityClass":      priorityclass.Strategy,
	"Service":            service.Strategy,
	"ServiceAccount":     serviceaccount.Strategy,
}

var decoder = serializer.NewCodecFactory(
	legacyscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// Verdict is what is said of one manifest.
type Verdict struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	Errors    []string `json:"errors"`
	Warnings  []string `json:"warnings"`
	// Of its pods, by level: the rules that are broken.
	PodSecurity map[string][]string `json:"pod_security,omitempty"`
}

func main() {
	documents := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		must(err)
		line, err := json.Marshal(examine(document))
		must(err)
		fmt.Println(string(line))
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "validate:", err)
		os.Exit(1)
	}
}

func examine(document []byte) Verdict {
	verdict := Verdict{Errors: []string{}, Warnings: []string{}}
	object, kind, err := decoder.Decode(document, nil, nil)
	if kind != nil {
		verdict.Kind = kind.Kind
	}
	if err != nil {
		verdict.Errors = append(verdict.Errors, err.Error())
		return verdict
	}
	accessor, err := meta.Accessor(object)
	must(err)
	verdict.Namespace, verdict.Name = accessor.GetNamespace(), accessor.GetName()
	verdict.PodSecurity = examinePods(object)
	warnings, err := create(object, kind.Kind, verdict.Namespace)
	verdict.Warnings = append(verdict.Warnings, warnings...)
	if err != nil {
		verdict.Errors = append(verdict.Errors, err.Error())
	}
	return verdict
}

// create does what the API server does before it stores an object.
func create(object runtime.Object, kind, namespace string) ([]string, error) {
	strategy, known := strategies[kind]
	if !known {
		return nil, fmt.Errorf("%s: this program has no rules for it", kind)
	}
	legacyscheme.Scheme.Default(object)
	internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(
		object, runtime.InternalGroupVersioner)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(internal)
	must(err)
	rest.FillObjectMetaSystemFields(accessor)
	if service, is := internal.(*core.Service); is && service.Spec.ClusterIP != "" {
		// The server's storage does it, which is not run here.
		service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	}
	ctx := request.WithRequestInfo(
		request.WithNamespace(context.Background(), namespace), &request.RequestInfo{})
	if err := rest.BeforeCreate(strategy, ctx, internal); err != nil {
		return nil, err
	}
	return strategy.WarningsOnCreate(ctx, internal), nil
}

func examinePods(object runtime.Object) map[string][]string {
	var template *corev1.PodTemplateSpec
	switch workload := object.(type) {
	case *appsv1.DaemonSet:
		template = &workload.Spec.Template
	case *appsv1.Deployment:
		template = &workload.Spec.Template
	default:
		return nil
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	must(err)
	broken := map[string][]string{}
	for _, level := range []podsecurity.Level{
		podsecurity.LevelBaseline, podsecurity.LevelRestricted,
	} {
		rules := podsecurity.LevelVersion{Level: level, Version: podsecurity.LatestVersion()}
		broken[string(level)] = []string{}
		for _, result := range evaluator.EvaluatePod(rules, &template.ObjectMeta, &template.Spec) {
			if !result.Allowed {
				broken[string(level)] = append(broken[string(level)], result.ForbiddenReason)
			}
		}
	}
	return broken
}
