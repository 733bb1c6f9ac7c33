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
