{{/* The objects of a file below files/, as a map with the list `items`. */}}
{{- define "calico-cni.read" -}}
{{- $items := list -}}
{{- range regexSplit "(?m)^---$" (required (printf "the chart has no files/%s" .file) (.root.Files.Get (printf "files/%s" .file))) -1 -}}
  {{- $object := fromYaml . -}}
  {{- if $object -}}{{- $items = append $items $object -}}{{- end -}}
{{- end -}}
{{- toYaml (dict "items" $items) -}}
{{- end -}}

{{/* Writes an object, in the namespace of the release. */}}
{{- define "calico-cni.write" -}}
{{- $namespace := .root.Release.Namespace -}}
{{- if hasKey .object.metadata "namespace" -}}{{- $_ := set .object.metadata "namespace" $namespace -}}{{- end -}}
{{- range $subject := .object.subjects -}}
  {{- if eq $subject.kind "ServiceAccount" -}}{{- $_ := set $subject "namespace" $namespace -}}{{- end -}}
{{- end -}}
---
{{ toYaml .object }}
{{ end -}}

{{/* Writes the objects of a file as they are. */}}
{{- define "calico-cni.file" -}}
{{- $root := .root -}}
{{- range (include "calico-cni.read" . | fromYaml).items }}
{{ include "calico-cni.write" (dict "root" $root "object" .) }}
{{- end -}}
{{- end -}}

{{/* An image with its registry, and its digest or tag. */}}
{{- define "calico-cni.image" -}}
{{- $general := .root.Values.image -}}
{{- if $general.registry }}{{ $general.registry }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest -}}@{{ .image.digest }}{{- else -}}:{{ default (printf "v%s" .root.Chart.AppVersion) $general.tag }}{{- end -}}
{{- end -}}

{{/* Gives the containers of a workload their image, and what image.* says. */}}
{{- define "calico-cni.setImage" -}}
{{- $root := .root -}}
{{- $image := include "calico-cni.image" . -}}
{{- $pod := .object.spec.template.spec -}}
{{- range concat ($pod.initContainers | default list) $pod.containers -}}
  {{- $_ := set . "image" $image -}}
  {{- $_ := set . "imagePullPolicy" $root.Values.image.pullPolicy -}}
{{- end -}}
{{- if $root.Values.image.pullSecrets -}}
  {{- $secrets := list -}}
  {{- range $root.Values.image.pullSecrets -}}{{- $secrets = append $secrets (dict "name" .) -}}{{- end -}}
  {{- $_ := set $pod "imagePullSecrets" $secrets -}}
{{- end -}}
{{- end -}}

{{/* Merges a file below files/ into an object. */}}
{{- define "calico-cni.mergeFile" -}}
{{- range (include "calico-cni.read" . | fromYaml).items -}}
  {{- include "calico-cni.merge" (dict "into" $.object "patch" .) -}}
{{- end -}}
{{- end -}}
