{{- define "normd.name" -}}
{{- if contains "normd" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-normd" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "normd.selector" -}}
app.kubernetes.io/name: normd
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "normd.labels" -}}
{{ include "normd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- /* What the schema cannot see: values that contradict each other. */ -}}
{{- define "normd.check" -}}
{{- if and .Values.insecure .Values.tls.secretName }}{{ fail "insecure: must be false when tls.secretName is set" }}{{ end }}
{{- if not (or .Values.insecure .Values.tls.secretName) }}{{ fail "tls.secretName: must be set when insecure is false" }}{{ end }}
{{- if and .Values.tls.clientCaSecretName (not .Values.tls.secretName) }}{{ fail "tls.clientCaSecretName: needs tls.secretName" }}{{ end }}
{{- if and .Values.tls.secretName (not .Values.tls.probe.caSecretName) }}{{ fail "tls.probe.caSecretName: must be set when tls.secretName is: the probes check the server with it" }}{{ end }}
{{- if and (eq .Values.device "cpu") (gt (int .Values.gpu.count) 0) }}{{ fail (printf "gpu.count: must be 0 when device is cpu, got %d" (int .Values.gpu.count)) }}{{ end }}
{{- if and (eq .Values.device "cuda") (eq (int .Values.gpu.count) 0) }}{{ fail "gpu.count: must be 1 or more when device is cuda, got 0" }}{{ end }}
{{- if eq (int .Values.ports.grpc) (int .Values.ports.metrics) }}{{ fail (printf "ports.metrics: must differ from ports.grpc, both are %d" (int .Values.ports.grpc)) }}{{ end }}
{{- $seen := mul .Values.probes.readiness.periodSeconds .Values.probes.readiness.failureThreshold }}
{{- if lt (int .Values.drain.delaySeconds) (int $seen) }}{{ fail (printf "drain.delaySeconds: must be at least probes.readiness.periodSeconds x failureThreshold = %d, got %d" (int $seen) (int .Values.drain.delaySeconds)) }}{{ end }}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}{{ fail (printf "autoscaling.minReplicas: must be at most maxReplicas = %d, got %d" (int .Values.autoscaling.maxReplicas) (int .Values.autoscaling.minReplicas)) }}{{ end }}
{{- $noneAway := has (toString .Values.strategy.maxUnavailable) (list "0" "0%") }}
{{- $noneBeside := has (toString .Values.strategy.maxSurge) (list "0" "0%") }}
{{- if and $noneAway $noneBeside }}{{ fail "strategy.maxUnavailable, strategy.maxSurge: must not both be 0: an update could neither end a pod nor start one" }}{{ end }}
{{- if ne .Values.service.type "ClusterIP" }}
{{- if .Values.insecure }}{{ fail (printf "insecure: must be false when service.type is %s: calls would reach normd unencrypted from outside the cluster" .Values.service.type) }}{{ end }}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.clients) }}{{ fail (printf "networkPolicy.clients: must say who may call when service.type is %s, such as [{ipBlock: {cidr: 10.0.0.0/8}}]: without peers it lets in pods alone" .Values.service.type) }}{{ end }}
{{- end }}
{{- if and (hasKey (.Values.resources.limits | default dict) .Values.gpu.resourceName) (gt (int .Values.gpu.count) 0) }}{{ fail (printf "resources.limits: must not hold %s, which gpu.count sets" .Values.gpu.resourceName) }}{{ end }}
{{- $access := .Values.access }}
{{- range list "dataTokensKey" "adminTokensKey" "dataClientsKey" "adminClientsKey" }}
{{- if and (get $access .) (not $access.secretName) }}{{ fail (printf "access.%s: needs access.secretName" .) }}{{ end }}
{{- end }}
{{- if and (or .Values.access.dataClientsKey .Values.access.adminClientsKey) (not .Values.tls.clientCaSecretName) }}{{ fail "access.dataClientsKey, access.adminClientsKey: need tls.clientCaSecretName, whose certificates carry the names" }}{{ end }}
{{- end }}

{{- /* One probe: dict "root" . "probe" the settings "service" a name of grpc.health.v1. */ -}}
{{- define "normd.probe" -}}
{{- if and .root.Values.tls.secretName (eq .service "liveness") }}
{{- /* No credentials: a restart cures no certificate, least of all the probe's own. */}}
tcpSocket:
  port: {{ .root.Values.ports.grpc }}
{{- else if .root.Values.tls.secretName }}
exec:
  command: ["normctl", "health", "--server", "127.0.0.1:{{ .root.Values.ports.grpc }}", "--service", {{ .service | quote }}, "--attempts", "1", "--timeout", "{{ .probe.timeoutSeconds }}s"]
{{- else }}
grpc:
  port: {{ .root.Values.ports.grpc }}
  service: {{ .service | quote }}
{{- end }}
periodSeconds: {{ .probe.periodSeconds }}
failureThreshold: {{ .probe.failureThreshold }}
timeoutSeconds: {{ .probe.timeoutSeconds }}
{{- end }}
