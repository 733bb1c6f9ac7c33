{{/* Returns the environment variables that create the first pools, as YAML; empty if there are none. */}}
{{- define "calico-cni.poolEnv" -}}
{{- $env := list -}}
{{- $families := dict -}}
{{- range $pool := .Values.ipam.pools -}}
  {{- $family := ternary "6" "4" (contains ":" $pool.cidr) -}}
  {{- if hasKey $families $family -}}
    {{- fail (printf "ipam.pools has two pools of IPv%s; keep one and create the other with kubectl (deploy/examples/ippool.yaml)" $family) -}}
  {{- end -}}
  {{- $_ := set $families $family true -}}
  {{- $settings := dict "VXLAN" ($pool.vxlan | default "Never") -}}
  {{- if eq $family "4" -}}{{- $_ := set $settings "IPIP" ($pool.ipip | default "Never") -}}{{- end -}}
  {{- if $pool.blockSize -}}{{- $_ := set $settings "BLOCK_SIZE" $pool.blockSize -}}{{- end -}}
  {{- if hasKey $pool "natOutgoing" -}}{{- $_ := set $settings "NAT_OUTGOING" $pool.natOutgoing -}}{{- end -}}
  {{- if $pool.nodeSelector -}}{{- $_ := set $settings "NODE_SELECTOR" $pool.nodeSelector -}}{{- end -}}
  {{- $env = append $env (dict "name" (printf "CALICO_IPV%sPOOL_CIDR" $family) "value" $pool.cidr) -}}
  {{- range $name, $value := $settings -}}
    {{- $env = append $env (dict "name" (printf "CALICO_IPV%sPOOL_%s" $family $name) "value" (toString $value)) -}}
  {{- end -}}
{{- end -}}
{{- if $env -}}{{- toYaml $env -}}{{- end -}}
{{- end -}}
