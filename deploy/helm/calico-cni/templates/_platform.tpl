{{/*
Returns the directories of the node that are mounted into the pods of the DaemonSet, by the name of the volume: those of
values, else those of the platform, else those of deploy/base.
*/}}
{{- define "calico-cni.directories" -}}
{{- $directories := dict -}}
{{- $files := list "base/calico-cni.yaml" -}}
{{- with .Values.platform -}}{{- $files = append $files (printf "components/platforms/%s/patch.yaml" .) -}}{{- end -}}
{{- range $file := $files -}}
  {{- range (include "calico-cni.read" (dict "root" $ "file" $file) | fromYaml).items -}}
    {{- range .spec.template.spec.volumes -}}{{- $_ := set $directories .name .hostPath.path -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- range $name, $path := dict "cni-bin-dir" .Values.cni.binDir "cni-net-dir" .Values.cni.confDir -}}
  {{- if $path -}}{{- $_ := set $directories $name $path -}}{{- end -}}
{{- end -}}
{{- toYaml $directories -}}
{{- end -}}

{{/*
Returns the address of the API server, as a map with `host` and `port`: that of values, or that of the platform, which is an
address of each node. `host` is empty if the address is the one that Kubernetes gives to each container. A null removes
the default of a value, so the defaults are here too.
*/}}
{{- define "calico-cni.apiServer" -}}
{{- $endpoint := .Values.kubernetesServiceEndpoint -}}
{{- $host := $endpoint.host | default "" -}}
{{- $port := $endpoint.port | default 6443 | toString -}}
{{- if $endpoint.ofPlatform -}}
  {{- $needed := "set kubernetesServiceEndpoint.host and kubernetesServiceEndpoint.port instead" -}}
  {{- if or $host (ne $port "6443") -}}
    {{- fail (printf "kubernetesServiceEndpoint.ofPlatform=true with host=%q and port=%s: both name an address; leave out one of them" $host $port) -}}
  {{- end -}}
  {{- if not .Values.platform -}}
    {{- fail (printf "kubernetesServiceEndpoint.ofPlatform=true without a platform; set platform, or %s" $needed) -}}
  {{- end -}}
  {{- $file := printf "components/platforms/%s/api-server/endpoint.yaml" .Values.platform -}}
  {{- if not (.Files.Get (printf "files/%s" $file)) -}}
    {{- fail (printf "kubernetesServiceEndpoint.ofPlatform=true: the address of the API server on platform=%s depends on the cluster; %s (docs/platforms/README.md)" .Values.platform $needed) -}}
  {{- end -}}
  {{- $data := ((include "calico-cni.read" (dict "root" . "file" $file) | fromYaml).items | first).data -}}
  {{- $host = $data.KUBERNETES_SERVICE_HOST -}}
  {{- $port = $data.KUBERNETES_SERVICE_PORT -}}
{{- end -}}
{{- toYaml (dict "host" $host "port" $port) -}}
{{- end -}}
