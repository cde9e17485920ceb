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

{{/* Whether there is a controller, and whether there are agents; empty if not. */}}
{{- define "nodekeeper.hasController" -}}
{{- ternary "" "true" (eq .Values.deploymentMode "daemonset") -}}
{{- end -}}

{{- define "nodekeeper.hasAgents" -}}
{{- ternary "" "true" (eq .Values.deploymentMode "controller") -}}
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

{{/* Tells the agents' pods from all others. Must never change: a DaemonSet's cannot. The controller finds them by name and component. */}}
{{- define "nodekeeper.agent.selector" -}}
app.kubernetes.io/name: nodekeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: agent
{{- end -}}

{{- define "nodekeeper.controller.name" -}}
{{ include "nodekeeper.fullname" . }}-controller
{{- end -}}

{{- define "nodekeeper.worker.name" -}}
{{ include "nodekeeper.fullname" . }}-worker
{{- end -}}

{{- define "nodekeeper.agent.name" -}}
{{ include "nodekeeper.fullname" . }}-agent
{{- end -}}

{{/* The ServiceAccount of the roles. Without a name it would be `default`, which all pods share. */}}
{{- define "nodekeeper.controller.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "nodekeeper.controller.name" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed if serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "nodekeeper.worker.serviceAccount" -}}
{{- if .Values.worker.serviceAccount.create -}}
{{- $ofFile := dig "worker" "serviceAccountName" "" .Values.config -}}
{{- .Values.worker.serviceAccount.name | default $ofFile | default (include "nodekeeper.worker.name" .) -}}
{{- else -}}
{{- required "worker.serviceAccount.name is needed if worker.serviceAccount.create is false" .Values.worker.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "nodekeeper.agent.serviceAccount" -}}
{{- if .Values.agent.serviceAccount.create -}}
{{- .Values.agent.serviceAccount.name | default (include "nodekeeper.agent.name" .) -}}
{{- else -}}
{{- required "agent.serviceAccount.name is needed if agent.serviceAccount.create is false" .Values.agent.serviceAccount.name -}}
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

{{/* Where workers run. Roles and accounts have to be there too. */}}
{{- define "nodekeeper.worker.namespace" -}}
{{- dig "worker" "namespace" "" .Values.config | default .Release.Namespace -}}
{{- end -}}

{{- define "nodekeeper.lease.name" -}}
{{- dig "leaderElection" "id" "" .Values.config | default .Values.controller.leaseName -}}
{{- end -}}

{{- define "nodekeeper.lease.namespace" -}}
{{- dig "leaderElection" "namespace" "" .Values.config | default (include "nodekeeper.worker.namespace" .) -}}
{{- end -}}

{{/* A port, or 0 where nothing is served. The file of kube-node-ready says it before the values do. */}}
{{- define "nodekeeper.metrics.port" -}}
{{- $enabled := dig "enableMetrics" .Values.metrics.enabled .Values.config -}}
{{- if dig "metrics" "enabled" $enabled .Values.config -}}
{{- int (dig "metrics" "port" (dig "metricsPort" .Values.metrics.port .Values.config) .Values.config) -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{- define "nodekeeper.health.port" -}}
{{- int (dig "health" "port" .Values.health.port .Values.config) -}}
{{- end -}}

{{/* How logs are written and what is logged, from {root, values}. The file says it before the values do. */}}
{{- define "nodekeeper.log.format" -}}
{{- dig "logging" "format" (dig "logFormat" "" .root.Values.config) .root.Values.config | default .values.logFormat -}}
{{- end -}}

{{- define "nodekeeper.log.level" -}}
{{- dig "logging" "level" (dig "logLevel" "" .root.Values.config) .root.Values.config | default .values.logLevel -}}
{{- end -}}

{{/* Whether the verdict is written as a condition of the Node; empty if not. */}}
{{- define "nodekeeper.nodeConditions" -}}
{{- ternary "true" "" (or .Values.rbac.nodeConditions (eq (dig "nodeCondition" "None" .Values.gate.spec) "NetworkVerified")) -}}
{{- end -}}

{{/* What the checks `services` and `peers` read, as the rules of a role. A self subject review needs none. */}}
{{- define "nodekeeper.checks.rules" -}}
- apiGroups: [""]
  resources: [services]
  verbs: [get]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list]
{{- end -}}

{{/* The taints that hold nodes, as JSON: those of the gate that there will be. */}}
{{- define "nodekeeper.taints" -}}
{{- if .Values.config -}}
{{- $taint := dict "key" "node-ready/unverified" "value" "true" "effect" "NoSchedule" -}}
{{- /* Keys of kube-node-ready's DaemonSet mode. */ -}}
{{- range $from, $to := dict "taintKey" "key" "taintValue" "value" "taintEffect" "effect" -}}
{{- with dig $from "" $.Values.config -}}
{{- $_ := set $taint $to . -}}
{{- end -}}
{{- end -}}
{{- dig "nodeManagement" "taints" (list $taint) .Values.config | toJson -}}
{{- else -}}
{{- .Values.gate.taints | toJson -}}
{{- end -}}
{{- end -}}

{{/* The label of verified nodes, as JSON. */}}
{{- define "nodekeeper.verifiedLabel" -}}
{{- $label := dict "key" "node-ready/verified" "value" "true" -}}
{{- $given := dig "verifiedLabel" dict .Values.gate.spec -}}
{{- if .Values.config -}}
{{- $given = dig "nodeManagement" "verifiedLabel" dict .Values.config -}}
{{- /* Keys of kube-node-ready's DaemonSet mode. */ -}}
{{- range $from, $to := dict "verifiedLabel" "key" "verifiedLabelValue" "value" -}}
{{- if hasKey $.Values.config $from -}}
{{- $_ := set $label $to (get $.Values.config $from) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- merge dict $given $label | toJson -}}
{{- end -}}

{{/* The gate that the controller applies, or one of the same name that somebody makes. */}}
{{- define "nodekeeper.gate.name" -}}
{{- ternary "config" .Values.gate.name (not (empty .Values.config)) -}}
{{- end -}}

{{/* Whether the file of kube-node-ready has nodes that fail deleted. */}}
{{- define "nodekeeper.file.deletes" -}}
{{- dig "nodeManagement" "deleteFailedNodes" (dig "deleteFailedNode" false .Values.config) .Values.config -}}
{{- end -}}

{{/*
The objects that the controller applies, as a List; empty if there are none. They are no part of the release: Helm, Argo CD and
Flux would delete them when they fail or prune, and nodes would stay tainted. So they bear none of the chart's labels either.
*/}}
{{- define "nodekeeper.objects" -}}
{{- $items := list -}}
{{- /* A configuration file has a gate of its own, for the same nodes. */ -}}
{{- if and .Values.gate.create (not .Values.config) -}}
{{- if hasKey .Values.gate.spec "taints" -}}
{{- fail "gate.spec.taints: set gate.taints, so that the controller tolerates them too" -}}
{{- end -}}
{{- $spec := merge (dict "taints" .Values.gate.taints) .Values.gate.spec -}}
{{- $items = append $items (dict "apiVersion" "nodekeeper.dev/v1alpha1" "kind" "NodeGate" "metadata" (dict "name" .Values.gate.name) "spec" $spec) -}}
{{- end -}}
{{- /* A configuration file that has failed nodes deleted brings a policy of its own. */ -}}
{{- if and .Values.remediation.policy.create (ne (include "nodekeeper.file.deletes" .) "true") -}}
{{- $spec := dict -}}
{{- range $field, $value := omit .Values.remediation "policy" -}}
{{- if $value -}}
{{- $_ := set $spec $field $value -}}
{{- end -}}
{{- end -}}
{{- $items = append $items (dict "apiVersion" "nodekeeper.dev/v1alpha1" "kind" "RemediationPolicy" "metadata" (dict "name" "default") "spec" $spec) -}}
{{- end -}}
{{- if $items -}}
{{- toYaml (dict "apiVersion" "v1" "kind" "List" "items" $items) -}}
{{- end -}}
{{- end -}}

{{/* The rules to create objects of a kind, and to patch the one of a name, from {resource, name}. A name cannot be asked for on create: the object has none yet. */}}
{{- define "nodekeeper.apply.rules" }}
  - apiGroups: [nodekeeper.dev]
    resources: [{{ .resource }}]
    verbs: [create]
  - apiGroups: [nodekeeper.dev]
    resources: [{{ .resource }}]
    resourceNames: [{{ .name | quote }}]
    verbs: [patch]
{{- end -}}

{{/* A Role and who has it, from {name, namespace, labels, rules, subjects}. */}}
{{- define "nodekeeper.role" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name | quote }}
  namespace: {{ .namespace | quote }}
  labels:
    {{- .labels | nindent 4 }}
rules:
  {{- toYaml .rules | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name | quote }}
  namespace: {{ .namespace | quote }}
  labels:
    {{- .labels | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name | quote }}
subjects:
  {{- toYaml .subjects | nindent 2 }}
{{- end }}
