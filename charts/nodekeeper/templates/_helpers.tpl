{{/* How all names begin. Short enough for what is put behind it. */}}
{{- define "nodekeeper.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of everything. The name is fixed: by it and the component the controller finds its workers. */}}
{{- define "nodekeeper.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
app.kubernetes.io/name: nodekeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: nodekeeper
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/* Tells the controller's pods from all others, workers included. Must never change: a Deployment's cannot. */}}
{{- define "nodekeeper.controller.selector" -}}
app.kubernetes.io/name: nodekeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end -}}

{{- define "nodekeeper.controller.name" -}}
{{ include "nodekeeper.fullname" . }}-controller
{{- end -}}

{{- define "nodekeeper.worker.name" -}}
{{ include "nodekeeper.fullname" . }}-worker
{{- end -}}

{{/* Whose roles these are. An account that is not made here and not named would be `default`, and everybody's. */}}
{{- define "nodekeeper.controller.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "nodekeeper.controller.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed if serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "nodekeeper.worker.serviceAccount" -}}
{{- if .Values.worker.serviceAccount.create -}}
{{- .Values.worker.serviceAccount.name | default (include "nodekeeper.worker.name" .) -}}
{{- else -}}
{{- required "worker.serviceAccount.name is needed if worker.serviceAccount.create is false" .Values.worker.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* An image, from {image, root}. */}}
{{- define "nodekeeper.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}
