{{/* Gives a pod the Secret of etcd's certificates that the values name. */}}
{{- define "calico-cni.etcdSecret" -}}
{{- $name := .root.Values.etcd.secretName -}}
{{- range .pod.volumes -}}
  {{- if eq .name "etcd-certs" -}}{{- $_ := set .secret "secretName" $name -}}{{- end -}}
{{- end -}}
{{- end -}}
