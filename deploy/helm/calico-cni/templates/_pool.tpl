{{/* What makes a pool where there is none, as YAML; empty: nothing does. */}}
{{- define "calico-cni.poolEnv" -}}
{{- $pool := .Values.defaultPool -}}
{{- $env := list -}}
{{- if $pool.ipv4Cidr -}}
  {{- $env = append $env (dict "name" "CALICO_IPV4POOL_CIDR" "value" $pool.ipv4Cidr) -}}
  {{- $env = append $env (dict "name" "CALICO_IPV4POOL_IPIP" "value" "Never") -}}
  {{- $env = append $env (dict "name" "CALICO_IPV4POOL_VXLAN" "value" "Never") -}}
{{- end -}}
{{- if $pool.ipv6Cidr -}}
  {{- $env = append $env (dict "name" "CALICO_IPV6POOL_CIDR" "value" $pool.ipv6Cidr) -}}
{{- end -}}
{{- if and $env (eq .Values.datastore "kubernetes") -}}
  {{- $all := dict "env" $env -}}
  {{- if $pool.extraEnv -}}
    {{- include "calico-cni.merge" (dict "into" $all "patch" (dict "env" $pool.extraEnv)) -}}
  {{- end -}}
  {{- toYaml $all.env -}}
{{- end -}}
{{- end -}}
