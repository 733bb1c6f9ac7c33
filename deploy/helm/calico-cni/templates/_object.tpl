{{/* Returns the objects of a file below files/, as a map with the list `items`. */}}
{{- define "calico-cni.read" -}}
{{- $items := list -}}
{{- range regexSplit "(?m)^---$" (required (printf "the chart has no files/%s" .file) (.root.Files.Get (printf "files/%s" .file))) -1 -}}
  {{- $object := fromYaml . -}}
  {{- if $object -}}{{- $items = append $items $object -}}{{- end -}}
{{- end -}}
{{- toYaml (dict "items" $items) -}}
{{- end -}}

{{/*
Writes an object, in the namespace of the release, with the labels and annotations that every object has. Labels and
annotations of the object itself win, because selectors and hooks use them.
*/}}
{{- define "calico-cni.write" -}}
{{- $values := .root.Values -}}
{{- $namespace := .root.Release.Namespace -}}
{{- $metadata := .object.metadata -}}
{{- if hasKey $metadata "namespace" -}}{{- $_ := set $metadata "namespace" $namespace -}}{{- end -}}
{{- range $subject := .object.subjects -}}
  {{- if eq $subject.kind "ServiceAccount" -}}{{- $_ := set $subject "namespace" $namespace -}}{{- end -}}
{{- end -}}
{{- $chart := printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" -}}
{{- $labels := dict "app.kubernetes.io/name" .root.Chart.Name "app.kubernetes.io/instance" .root.Release.Name -}}
{{- $labels = merge $labels (dict "app.kubernetes.io/version" .root.Chart.AppVersion "helm.sh/chart" $chart) -}}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .root.Release.Service -}}
{{- $_ := set $metadata "labels" (merge (dict) ($metadata.labels | default dict) $values.commonLabels $labels) -}}
{{- $annotations := dict -}}
{{- if eq .object.kind "ServiceAccount" -}}
  {{- $annotations = get $values.serviceAccountAnnotations $metadata.name | default dict -}}
{{- end -}}
{{- with merge (dict) ($metadata.annotations | default dict) $annotations $values.commonAnnotations -}}
  {{- $_ := set $metadata "annotations" . -}}
{{- end -}}
---
{{ toYaml .object }}
{{ end -}}

{{/* Writes the objects of a file without changes. */}}
{{- define "calico-cni.file" -}}
{{- $root := .root -}}
{{- range (include "calico-cni.read" . | fromYaml).items }}
{{ include "calico-cni.write" (dict "root" $root "object" .) }}
{{- end -}}
{{- end -}}

{{/*
Returns the name of an image, with its registry and its digest or tag.
  include "calico-cni.image" (dict "root" . "image" "cni")
*/}}
{{- define "calico-cni.image" -}}
{{- $image := .root.Values.image -}}
{{- $digest := get $image.digest .image -}}
{{- if not (or $digest $image.tag) -}}
  {{- /* The chart of a release knows the digests of its images. */ -}}
  {{- $digest = index (.root.Chart.Annotations | default dict) (printf "calico-cni/digest-%s" .image) -}}
{{- end -}}
{{- if $image.registry }}{{ $image.registry }}/{{ end -}}
{{- get $image .image -}}
{{- if $digest -}}@{{ $digest }}{{- else -}}:{{ default (printf "v%s" .root.Chart.AppVersion) $image.tag }}{{- end -}}
{{- end -}}

{{/*
Sets the image of a workload's pods, and the values that apply to all pods.
  include "calico-cni.setPod" (dict "root" . "object" OBJECT "image" "cni")
*/}}
{{- define "calico-cni.setPod" -}}
{{- $values := .root.Values -}}
{{- $own := get $values .image -}}
{{- $image := include "calico-cni.image" . -}}
{{- $template := .object.spec.template -}}
{{- range concat ($template.spec.initContainers | default list) $template.spec.containers -}}
  {{- $_ := set . "image" $image -}}
  {{- $_ := set . "imagePullPolicy" $values.image.pullPolicy -}}
  {{- include "calico-cni.merge" (dict "into" .securityContext "patch" $own.securityContext) -}}
{{- end -}}
{{- with $own.affinity -}}{{- $_ := set $template.spec "affinity" . -}}{{- end -}}
{{- if $values.image.pullSecrets -}}
  {{- $secrets := list -}}
  {{- range $values.image.pullSecrets -}}{{- $secrets = append $secrets (dict "name" .) -}}{{- end -}}
  {{- $_ := set $template.spec "imagePullSecrets" $secrets -}}
{{- end -}}
{{- $_ := set $template.spec "priorityClassName" (get $values.priorityClassName .image) -}}
{{- include "calico-cni.merge" (dict "into" $template.spec.nodeSelector "patch" $values.nodeSelector) -}}
{{- if hasKey ($values.podLabels | default dict) "k8s-app" -}}
  {{- fail "podLabels.k8s-app: the selectors of the workloads need their own label k8s-app; choose another name" -}}
{{- end -}}
{{- include "calico-cni.merge" (dict "into" $template.metadata.labels "patch" $values.podLabels) -}}
{{- /* A changed configuration changes the template of the pods, so that they roll. */ -}}
{{- $data := list -}}
{{- range regexSplit "(?m)^---$" (include (print .root.Template.BasePath "/calico-config.yaml") .root) -1 -}}
  {{- $data = append $data (fromYaml .).data -}}
{{- end -}}
{{- $checksum := toJson $data | sha256sum -}}
{{- $_ := set $template.metadata "annotations" (merge (dict "checksum/configuration" $checksum) $values.podAnnotations) -}}
{{- end -}}

{{/* Merges a file below files/ into an object. */}}
{{- define "calico-cni.mergeFile" -}}
{{- range (include "calico-cni.read" . | fromYaml).items -}}
  {{- include "calico-cni.merge" (dict "into" $.object "patch" .) -}}
{{- end -}}
{{- end -}}
