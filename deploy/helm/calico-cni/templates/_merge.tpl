{{/*
Merges a patch into an object, in place, as kustomize does with the patches of deploy/: maps key by key, lists of named things
by their name, those of the patch first; anything else is replaced. null takes a key away, `$patch: delete` an element of a list.
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

{{/* What the elements of a list are told apart by; empty: nothing, the list is one value. */}}
{{- define "calico-cni.nameKey" -}}
{{- if eq .key "volumeMounts" -}}mountPath
{{- else if and .items (kindIs "map" (first .items)) -}}{{- if hasKey (first .items) "name" -}}name{{- end -}}
{{- end -}}
{{- end -}}
