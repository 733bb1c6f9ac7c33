{{/*
Returns true if the release is prepared for a migration of Calico's objects to projectcalico.org/v3; else nothing.

At the end of a migration the definitions of v1 are deleted. A release with the same values would define them again, and
programs whose configuration names no group would use v1, which has no objects.
*/}}
{{- define "calico-cni.migration" -}}
{{- if .Values.kubeControllers.migrateToV3 -}}
  {{- if ne .Values.datastore "kubernetes" -}}
    {{- fail (printf "kubeControllers.migrateToV3=true with datastore=%s: only objects in the Kubernetes API are migrated" .Values.datastore) -}}
  {{- end -}}
  {{- if not .Values.kubeControllers.enabled -}}
    {{- fail "kubeControllers.migrateToV3=true with kubeControllers.enabled=false: kube-controllers migrates the objects" -}}
  {{- end -}}
  {{- $present := dict -}}
  {{- range $group := list "crd.projectcalico.org" "projectcalico.org" -}}
    {{- $definition := printf "clusterinformations.%s" $group -}}
    {{- if lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $definition -}}
      {{- $_ := set $present $group true -}}
    {{- end -}}
  {{- end -}}
  {{- if and (eq .Values.apiGroup "crd.projectcalico.org/v1") (hasKey $present "projectcalico.org") (not (hasKey $present "crd.projectcalico.org")) -}}
    {{- fail "kubeControllers.migrateToV3=true: the cluster has only projectcalico.org/v3; set apiGroup=projectcalico.org/v3 and kubeControllers.migrateToV3=false" -}}
  {{- end -}}
true
{{- end -}}
{{- end -}}
