{{/* A CEL expression: the keys at which two maps differ, apart from some, from {new, old, except}. */}}
{{- define "nodekeeper.cel.changed" -}}
{{ .new }}.filter(k, !(k in {{ toJson .except }}) && !(k in {{ .old }} && {{ .new }}[k] == {{ .old }}[k])) + {{ .old }}.filter(k, !(k in {{ toJson .except }}) && !(k in {{ .new }}))
{{- end -}}

{{/* What the policies of agents begin with: whose requests, and what the token says about the node. */}}
{{- define "nodekeeper.agent.policy" -}}
failurePolicy: Fail
matchConditions:
  - name: is-agent
    expression: request.userInfo.username == {{ printf "system:serviceaccount:%s:%s" .Release.Namespace (include "nodekeeper.agent.serviceAccount" .) | toJson }}
variables:
  # The API server sets both for tokens that are bound to a pod, and nobody can choose them. A token of `kubectl create token` has none.
  - name: nodeName
    expression: request.userInfo.?extra[?"authentication.kubernetes.io/node-name"][?0].orValue("")
  - name: nodeUID
    expression: request.userInfo.?extra[?"authentication.kubernetes.io/node-uid"][?0].orValue("")
{{- end -}}

{{/* That the token is of a pod that runs on a node. */}}
{{- define "nodekeeper.agent.policy.isBound" -}}
- expression: variables.nodeName != "" && variables.nodeUID != ""
  message: the token names no node. Only the token in the pod of an agent does, which the kubelet requests for it
  reason: Forbidden
{{- end -}}
