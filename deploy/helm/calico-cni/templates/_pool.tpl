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
  {{- if and (ne ($pool.vxlan | default "Never") "Never") (ne ($pool.ipip | default "Never") "Never") -}}
    {{- fail (printf "ipam.pools: %s has ipip=%s and vxlan=%s; a pool has one encapsulation: set one of them to Never" $pool.cidr $pool.ipip $pool.vxlan) -}}
  {{- end -}}
  {{- $prefix := splitList "/" $pool.cidr | last | int -}}
  {{- $block := $pool.blockSize | default (ternary 122 26 (eq $family "6")) | int -}}
  {{- if ne (gt $block 32) (eq $family "6") -}}
    {{- fail (printf "ipam.pools: blockSize=%d of %s is not one of IPv%s, which are 20 to 32 for IPv4 and 116 to 128 for IPv6" $block $pool.cidr $family) -}}
  {{- end -}}
  {{- if lt $block $prefix -}}
    {{- fail (printf "ipam.pools: a block of /%d is larger than the pool %s; set blockSize to %d or more, or use a larger pool" $block $pool.cidr $prefix) -}}
  {{- end -}}
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
