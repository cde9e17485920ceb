{{/* The settings of agents that no controller goes with, as JSON: name of the variable -> value. What is left out has its default. */}}
{{- define "nodekeeper.agent.checks" -}}
{{- /* Whichever template is rendered first. */ -}}
{{- include "nodekeeper.agent.validateAlone" . -}}
{{- $env := dict -}}
{{- $config := .Values.config -}}
{{- $spec := ternary dict .Values.gate.spec (not (empty $config)) -}}
{{- $taint := index (include "nodekeeper.taints" . | fromJsonArray) 0 -}}
{{- $label := include "nodekeeper.verifiedLabel" . | fromJson -}}
{{- $_ := set $env "TAINT_KEY" $taint.key -}}
{{- $_ := set $env "TAINT_VALUE" ($taint.value | default "") -}}
{{- $_ := set $env "TAINT_EFFECT" ($taint.effect | default "NoSchedule") -}}
{{- $_ := set $env "VERIFIED_LABEL" $label.key -}}
{{- $_ := set $env "VERIFIED_LABEL_VALUE" $label.value -}}
{{- /* The file of kube-node-ready: keys of its DaemonSet mode, or the controller's sections. */ -}}
{{- $seconds := dig "worker" "checkTimeoutSeconds" (dig "deadlines" "checkSeconds" "" $spec) $config -}}
{{- $seconds = dig "checkTimeoutSeconds" $seconds .Values.workerConfig -}}
{{- $all := dig "deadlines" "gateSeconds" "" $spec -}}
{{- $names := dig "worker" "dnsTestDomains" (dig "checks" "dns" "names" list $spec) $config -}}
{{- $names = dig "dnsTestDomains" $names .Values.workerConfig -}}
{{- $retry := dig "reconciliation" (dig "retry" dict $spec) $config -}}
{{- range $name, $value := dict
  "CHECK_TIMEOUT" (dig "checkTimeout" (ternary "" (printf "%vs" $seconds) (empty $seconds)) $config)
  "INITIAL_TIMEOUT" (dig "initialTimeout" (ternary "" (printf "%vs" $all) (empty $all)) $config)
  "RETRY_BACKOFF" (dig "retryBackoff" (get $retry "retryBackoff" | default (get $retry "backoff")) $config | default "" | lower)
  "DNS_TEST_DOMAINS" (join "," (dig "dnsTestDomains" $names $config))
  "CLUSTER_DNS_IP" (dig "clusterDNSIP" "" $config)
}}
{{- if $value -}}
{{- $_ := set $env $name $value -}}
{{- end -}}
{{- end -}}
{{- $retries := dig "maxRetries" (get $retry "maxRetries") $config -}}
{{- /* 0 is a number of retries too. */ -}}
{{- if ne (toString $retries) "" -}}
{{- $_ := set $env "MAX_RETRIES" (toString (int $retries)) -}}
{{- end -}}
{{- if eq (include "nodekeeper.file.deletes" .) "true" -}}
{{- $_ := set $env "DELETE_FAILED_NODE" "true" -}}
{{- end -}}
{{- toJson $env -}}
{{- end -}}

{{/* All settings of agents, as JSON. */}}
{{- define "nodekeeper.agent.env" -}}
{{- $metrics := include "nodekeeper.metrics.port" . -}}
{{- $env := dict
  "AGENT_MODE" .Values.agent.mode
  "CHECK_INTERVAL" .Values.agent.checkInterval
  "FAILURE_THRESHOLD" (toString (int .Values.agent.failureThreshold))
  "DRY_RUN" (toString .Values.agent.dryRun)
  "ENABLE_METRICS" (ternary "false" "true" (eq $metrics "0"))
  "HEALTH_PORT" (include "nodekeeper.health.port" .)
  "LOG_FORMAT" (include "nodekeeper.log.format" (dict "root" . "values" .Values.agent))
  "LOG_LEVEL" (include "nodekeeper.log.level" (dict "root" . "values" .Values.agent))
-}}
{{- if ne $metrics "0" -}}
{{- $_ := set $env "METRICS_PORT" $metrics -}}
{{- end -}}
{{- if include "nodekeeper.hasController" . -}}
{{- /* Taints, label, checks and retries come from the gate. */ -}}
{{- $_ := set $env "GATE" (include "nodekeeper.gate.name" .) -}}
{{- else -}}
{{- $env = merge $env (include "nodekeeper.agent.checks" . | fromJson) -}}
{{- end -}}
{{- toJson $env -}}
{{- end -}}

{{/* The affinity of agents. With `once` it makes the DaemonSet controller remove the pod of a node that has the verified label. */}}
{{- define "nodekeeper.agent.affinity" -}}
{{- $affinity := deepCopy .Values.agent.affinity -}}
{{- if eq .Values.agent.mode "once" -}}
{{- $label := include "nodekeeper.verifiedLabel" . | fromJson -}}
{{- $missing := dict "key" $label.key "operator" "DoesNotExist" -}}
{{- $given := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list dict) $affinity -}}
{{- $terms := list -}}
{{- /* A node has to match one of the terms. */ -}}
{{- range $given -}}
{{- $expressions := append (.matchExpressions | default list) $missing -}}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) .) -}}
{{- end -}}
{{- $required := dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" (merge $required (dig "nodeAffinity" dict $affinity)) -}}
{{- end -}}
{{- with $affinity -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* Refuses values of agents that have no controller and that an agent cannot obey. */}}
{{- define "nodekeeper.agent.validateAlone" -}}
{{- $taints := include "nodekeeper.taints" . | fromJsonArray -}}
{{- $place := ternary "config.nodeManagement.taints" "gate.taints" (not (empty .Values.config)) -}}
{{- if ne (len $taints) 1 -}}
{{- fail (printf "%s: an agent without a controller has one taint, and these are %d: keep one of them, or set deploymentMode: both" $place (len $taints)) -}}
{{- end -}}
{{- if eq .Values.remediation.enforcement "Enforce" -}}
{{- fail "remediation.enforcement: an agent replaces no node: set deploymentMode: both or controller, or leave it out" -}}
{{- end -}}
{{- if .Values.config -}}
{{- /* A controller would say so, and there is none. */ -}}
{{- $keys := dict "taintKey" "nodeManagement" "taintValue" "nodeManagement" "taintEffect" "nodeManagement" "verifiedLabel" "nodeManagement" "verifiedLabelValue" "nodeManagement" "deleteFailedNode" "nodeManagement" "dnsTestDomains" "worker" "checkTimeout" "worker" "initialTimeout" "worker" "clusterDNSIP" "worker" "maxRetries" "reconciliation" "retryBackoff" "reconciliation" "enableMetrics" "metrics" "metricsPort" "metrics" "logLevel" "logging" "logFormat" "logging" -}}
{{- range $key := keys .Values.config | sortAlpha -}}
{{- $section := get $keys $key -}}
{{- if and $section (hasKey $.Values.config $section) -}}
{{- fail (printf "config.%s: it is a key of kube-node-ready's DaemonSet mode, which cannot be combined with `%s`: write it there" $key $section) -}}
{{- end -}}
{{- if not (or $section (has $key (list "worker" "reconciliation" "nodeManagement" "leaderElection" "metrics" "health" "logging" "kubernetes"))) -}}
{{- fail (printf "config.%s: there is no such key: `nodekeeper config check` says which there are" $key) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $known := dict "verifiedLabel" (list "key" "value") "deadlines" (list "checkSeconds" "gateSeconds") "retry" (list "maxRetries" "backoff") "checks" (list "dns") "checks.dns" (list "names") -}}
{{- $instead := dict "enforcement" "set agent.dryRun" "mode" "set agent.mode" "continuous" "set agent.checkInterval and agent.failureThreshold" -}}
{{- $spec := .Values.gate.spec -}}
{{- $given := keys $spec -}}
{{- range $section := list "verifiedLabel" "deadlines" "retry" "checks" -}}
{{- range keys (dig $section dict $spec) -}}
{{- $given = append $given (printf "%s.%s" $section .) -}}
{{- end -}}
{{- end -}}
{{- range keys (dig "checks" "dns" dict $spec) -}}
{{- $given = append $given (printf "checks.dns.%s" .) -}}
{{- end -}}
{{- range $path := $given | sortAlpha -}}
{{- $parent := regexReplaceAll "[.]?[^.]+$" $path "" -}}
{{- $siblings := ternary (keys $known) (get $known $parent) (eq $parent "") -}}
{{- if not (has (regexFind "[^.]+$" $path) $siblings) -}}
{{- fail (printf "gate.spec.%s: an agent without a controller has no such setting: %s" $path (get $instead $path | default "set deploymentMode: both, or leave it out")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "nodekeeper.agent.validate" -}}
{{- if not (include "nodekeeper.hasController" .) -}}
{{- include "nodekeeper.agent.validateAlone" . -}}
{{- else -}}
{{- $others := concat .Values.worker.allowed.serviceAccounts (list (include "nodekeeper.controller.serviceAccount" .) (include "nodekeeper.worker.serviceAccount" .)) -}}
{{- $own := include "nodekeeper.agent.serviceAccount" . -}}
{{- if has $own $others -}}
{{- fail (printf "agent.serviceAccount.name: the controller or its workers have the account %s too, and agents are confined to their Node: name another" $own) -}}
{{- end -}}
{{- end -}}
{{- if eq .Values.agent.mode "continuous" -}}
{{- range include "nodekeeper.taints" . | fromJsonArray -}}
{{- if eq (.effect | default "NoSchedule") "NoExecute" -}}
{{- fail (printf "agent.mode: with continuous the taint %s must not have the effect NoExecute: a check that fails for some time would evict all pods of the node. Use NoSchedule, or agent.mode: once" .key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
