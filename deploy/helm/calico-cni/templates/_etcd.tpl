{{/* Sets the name of the Secret with etcd's certificates in a pod. */}}
{{- define "calico-cni.etcdSecret" -}}
{{- $name := .root.Values.etcd.secretName -}}
{{- range .pod.volumes -}}
  {{- if eq .name "etcd-certs" -}}{{- $_ := set .secret "secretName" $name -}}{{- end -}}
{{- end -}}
{{- end -}}
