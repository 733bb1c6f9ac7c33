{{/*
Merges a patch into an object, in place, as kustomize does with the patches of deploy/. Maps are merged key by key. Lists of
named elements are merged by name, and elements of the patch come first. Any other value is replaced. null removes a key, and
`$patch: delete` removes an element of a list.
  include "calico-cni.merge" (dict "into" OBJECT "patch" PATCH)
*/}}
{{- define "calico-cni.merge" -}}
{{- $into := .into -}}
{{- range $key, $value := .patch -}}
  {{- $old := get $into $key -}}
  {{- if kindIs "invalid" $value -}}
    {{- $_ := unset $into $key -}}
  {{- else if and (kindIs "map" $value) (kindIs "map" $old) -}}
    {{- include "calico-cni.merge" (dict "into" $old "patch" $value) -}}
  {{- else if and (kindIs "slice" $value) (kindIs "slice" $old) (include "calico-cni.nameKey" (dict "key" $key "items" $value)) -}}
    {{- $nameKey := include "calico-cni.nameKey" (dict "key" $key "items" $value) -}}
    {{- $first := list -}}
    {{- $others := $old -}}
    {{- range $item := $value -}}
      {{- $result := $item -}}
      {{- $rest := list -}}
      {{- range $existing := $others -}}
        {{- if eq (get $existing $nameKey) (get $item $nameKey) -}}
          {{- $result = $existing -}}
          {{- include "calico-cni.merge" (dict "into" $existing "patch" $item) -}}
        {{- else -}}
          {{- $rest = append $rest $existing -}}
        {{- end -}}
      {{- end -}}
      {{- $others = $rest -}}
      {{- if ne (get $item "$patch") "delete" -}}{{- $first = append $first $result -}}{{- end -}}
    {{- end -}}
    {{- $_ := set $into $key (concat $first $others) -}}
  {{- else -}}
    {{- $_ := set $into $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Returns the key that identifies the elements of a list; empty if the list is a single value. */}}
{{- define "calico-cni.nameKey" -}}
{{- if eq .key "volumeMounts" -}}mountPath
{{- else if and .items (kindIs "map" (first .items)) -}}{{- if hasKey (first .items) "name" -}}name{{- end -}}
{{- end -}}
{{- end -}}
