{{- define "dynatops.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Of a part, given (list . "broker"). Selectors never change, so nothing else is in them. */}}
{{- define "dynatops.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "dynatops.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name ($root.Chart.Version | replace "+" "_") }}
{{ include "dynatops.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: dynatops
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Labels of pods: those that select, and what the user gave for the part. */}}
{{- define "dynatops.podLabels" -}}
{{- $root := index . 0 -}}
{{- $own := include "dynatops.selectorLabels" . | fromYaml -}}
{{- toYaml (mustMerge $own (index . 2) $root.Values.commonLabels) }}
{{- end }}

{{- define "dynatops.image" -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository ($image.tag | default (index . 2)) -}}
{{- end -}}
{{- end }}

{{- define "dynatops.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "dynatops.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end }}

{{- define "dynatops.listen" -}}
{{- printf "%s:%s" (index . 0).Values.listenHost (index . 1) -}}
{{- end }}

{{/* How many brokers there are at least. */}}
{{- define "dynatops.brokersMin" -}}
{{- with .Values.broker -}}
{{- if .autoscaling.enabled }}{{ int .autoscaling.minReplicas }}{{ else }}{{ int .replicas }}{{ end -}}
{{- end -}}
{{- end }}

{{- define "dynatops.brokerDomain" -}}
{{- printf "%s-brokers.%s.svc.%s" (include "dynatops.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end }}

{{- define "dynatops.tls" -}}
{{- with .Values.security.tls }}{{ if or .secretName .certManager.enabled }}true{{ end }}{{ end -}}
{{- end }}

{{- define "dynatops.tlsSecret" -}}
{{- .Values.security.tls.secretName | default (printf "%s-tls" (include "dynatops.fullname" .)) -}}
{{- end }}

{{- define "dynatops.serverName" -}}
{{- .Values.security.tls.serverName | default (printf "%s.%s.svc" (include "dynatops.fullname" .) .Release.Namespace) -}}
{{- end }}

{{/* The server in the chart is wanted. */}}
{{- define "dynatops.internalRedis" -}}
{{- $wanted := and (not .Values.redis.url) (or .Values.manager.enabled .Values.analytics.enabled) -}}
{{- if kindIs "bool" .Values.redis.internal.enabled }}{{ $wanted = .Values.redis.internal.enabled }}{{ end -}}
{{- if $wanted }}true{{ end -}}
{{- end }}

{{- define "dynatops.redisUrl" -}}
{{- if .Values.redis.url -}}
{{- .Values.redis.url -}}
{{- else if include "dynatops.internalRedis" . -}}
{{- printf "redis://%s-redis.%s.svc.%s:6379/0" (include "dynatops.fullname" .) .Release.Namespace .Values.clusterDomain -}}
{{- end -}}
{{- end }}

{{- define "dynatops.advice" -}}
{{- $wanted := .Values.analytics.enabled -}}
{{- if kindIs "bool" .Values.broker.advice }}{{ $wanted = .Values.broker.advice }}{{ end -}}
{{- if and $wanted (include "dynatops.redisUrl" .) }}true{{ end -}}
{{- end }}

{{/* What brokers and managers have in common, as arguments. */}}
{{- define "dynatops.securityArgs" -}}
{{- with .Values.security -}}
{{- if .insecure }}
- --insecure
{{- end }}
{{- if include "dynatops.tls" $ }}
- --set
- security.tls_cert=/run/dynatops/tls/tls.crt
- --set
- security.tls_key=/run/dynatops/tls/tls.key
- --set
- security.tls_ca=/run/dynatops/tls/ca.crt
- --set
- security.tls_server_name={{ include "dynatops.serverName" $ }}
{{- end }}
{{- if or .tokens.secretName (include "dynatops.tls" $) }}
- --set
- security.watch_s={{ .watchSeconds }}
{{- end }}
{{- if .tls.requireClientCertificates }}
- --set
- security.require_client_certificates=true
{{- end }}
{{- if .peerSecret.secretName }}
- --set
- security.peer_secret=/run/dynatops/peer/{{ .peerSecret.key }}
{{- end }}
{{- end }}
{{- end }}

{{- define "dynatops.settingArgs" -}}
{{- range $name, $value := . }}
- --set
- {{ printf "%s=%s" $name (include "dynatops.settingValue" $value) | quote }}
{{- end }}
{{- end }}

{{/* Numbers in values files are floating; 1000000 is not to be 1e+06. */}}
{{- define "dynatops.settingValue" -}}
{{- if kindIs "float64" . -}}
{{- if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end }}

{{- define "dynatops.securityMounts" -}}
{{- with .Values.security -}}
{{- if include "dynatops.tls" $ }}
- {name: tls, mountPath: /run/dynatops/tls, readOnly: true}
{{- end }}
{{- if .tokens.secretName }}
- {name: tokens, mountPath: /run/dynatops/tokens, readOnly: true}
{{- end }}
{{- if .peerSecret.secretName }}
- {name: peer, mountPath: /run/dynatops/peer, readOnly: true}
{{- end }}
{{- end }}
{{- end }}

{{- define "dynatops.securityVolumes" -}}
{{- with .Values.security -}}
{{- if include "dynatops.tls" $ }}
- name: tls
  secret: {secretName: {{ include "dynatops.tlsSecret" $ }}, defaultMode: 0440}
{{- end }}
{{- if .tokens.secretName }}
- name: tokens
  secret: {secretName: {{ .tokens.secretName }}, defaultMode: 0440}
{{- end }}
{{- if .peerSecret.secretName }}
- name: peer
  secret: {secretName: {{ .peerSecret.secretName }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}

{{/* 10001 is the image's user. Nothing may be gained, nothing written but where a volume is. */}}
{{- define "dynatops.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "dynatops.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "dynatops.spread" -}}
{{- $values := index . 2 -}}
{{- if kindIs "slice" $values.topologySpreadConstraints -}}
{{- toYaml $values.topologySpreadConstraints -}}
{{- else -}}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- topologyKey: {{ $key }}
  maxSkew: 1
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "dynatops.selectorLabels" $ | nindent 6 }}
{{- end }}
{{- end -}}
{{- end }}

{{/* Where pods go, and what they are asked for, given the values of the part. */}}
{{- define "dynatops.scheduling" -}}
{{- with get . "priorityClassName" }}
priorityClassName: {{ . }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with get $ $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "dynatops.logArgs" -}}
- --log-format={{ .Values.logging.format }}
- --log-level={{ .Values.logging.level }}
{{- if eq .Values.logging.format "json" }}
- --json
{{- end }}
{{- end }}

{{/* How many brokers there are at most: as many have services for clients outside. */}}
{{- define "dynatops.brokersMax" -}}
{{- with .Values.broker -}}
{{- if .autoscaling.enabled }}{{ int .autoscaling.maxReplicas }}{{ else }}{{ int .replicas }}{{ end -}}
{{- end -}}
{{- end }}

{{/* Where clients outside reach a broker, given (list . "its ordinal" "its node port"). */}}
{{- define "dynatops.outsideAddress" -}}
{{- (index . 0).Values.broker.outside.advertise | replace "{ordinal}" (index . 1) | replace "{nodePort}" (index . 2) -}}
{{- end }}

{{/* Hosts that clients outside connect to: of all brokers, and of the service for all. */}}
{{- define "dynatops.outsideHosts" -}}
{{- $hosts := list -}}
{{- with .Values.broker.outside -}}
{{- if .enabled -}}
{{- if .host }}{{ $hosts = append $hosts .host }}{{ end -}}
{{- range $i := until (include "dynatops.brokersMax" $ | int) -}}
{{- $address := include "dynatops.outsideAddress" (list $ (toString $i) "0") -}}
{{- $hosts = append $hosts (regexReplaceAll ":[0-9]+$" $address "" | trimPrefix "[" | trimSuffix "]") -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson (uniq $hosts) -}}
{{- end }}

{{/* Executors are pods of their own. */}}
{{- define "dynatops.sparkOnKubernetes" -}}
{{- if and .Values.analytics.enabled (hasPrefix "k8s://" .Values.analytics.spark.master) }}true{{ end -}}
{{- end }}

{{/* Of the jobs' pods. */}}
{{- define "dynatops.analyticsAccount" -}}
{{- $own := include "dynatops.serviceAccountName" . -}}
{{- if include "dynatops.sparkOnKubernetes" . }}{{ $own = printf "%s-spark" (include "dynatops.fullname" .) }}{{ end -}}
{{- .Values.analytics.serviceAccountName | default $own -}}
{{- end }}

{{- define "dynatops.analyticsImage" -}}
{{- include "dynatops.image" (list . .Values.analytics.image (printf "%s-analytics" .Chart.AppVersion)) -}}
{{- end }}

{{/* What the driver of a job tells Spark, given (list . "job"). Executors are made as the template says
that is in the config map; they find the driver by a name of its own, at fixed ports. */}}
{{- define "dynatops.sparkArgs" -}}
{{- $root := index . 0 -}}
{{- $job := index . 1 -}}
{{- with $root.Values.analytics -}}
{{- if include "dynatops.sparkOnKubernetes" $root }}
{{- with .spark.kubernetes }}
- --conf=spark.kubernetes.namespace={{ $root.Release.Namespace }}
- --conf=spark.kubernetes.driver.pod.name=$(POD_NAME)
- --conf=spark.kubernetes.container.image={{ include "dynatops.analyticsImage" $root }}
- --conf=spark.kubernetes.container.image.pullPolicy={{ $root.Values.analytics.image.pullPolicy }}
- --conf=spark.kubernetes.executor.podTemplateFile=/run/dynatops/spark/executor.yaml
- --conf=spark.kubernetes.executor.podTemplateContainerName=executor
- --conf=spark.driver.host={{ $job }}.{{ include "dynatops.fullname" $root }}-spark.{{ $root.Release.Namespace }}.svc.{{ $root.Values.clusterDomain }}
- --conf=spark.driver.bindAddress={{ $root.Values.listenHost | trimPrefix "[" | trimSuffix "]" }}
- --conf=spark.driver.port=7078
- --conf=spark.blockManager.port=7079
- --conf=spark.ui.enabled=false
- --conf=spark.executor.instances={{ .executors }}
- --conf=spark.executor.cores={{ .cores }}
{{- with .cpu }}
- --conf=spark.kubernetes.executor.request.cores={{ . }}
{{- end }}
- --conf=spark.executor.memory={{ .memory }}
- --conf=spark.executor.memoryOverhead={{ .memoryOverhead }}
# Each would need a right to more than pods.
- --conf=spark.kubernetes.executor.disableConfigMap=true
- --conf=spark.kubernetes.driver.ownPersistentVolumeClaim=false
- --conf=spark.kubernetes.driver.reusePersistentVolumeClaim=false
- --conf=spark.kubernetes.driver.service.deleteOnTermination=false
{{- end }}
{{- end }}
{{- range $name, $value := .spark.conf }}
- {{ printf "--conf=%s=%s" $name $value | quote }}
{{- end }}
{{- end }}
{{- end }}
