{{/* What no schema can say: values that do not go together. Each message says what to do. */}}
{{- define "dynatops.check" -}}
{{- $problems := list -}}
{{- with .Values.security -}}
{{- $tls := include "dynatops.tls" $ -}}
{{- if not .insecure -}}
{{- $missing := list -}}
{{- if not $tls }}{{ $missing = append $missing "security.tls (secretName, or certManager.enabled)" }}{{ end -}}
{{- if not .tokens.secretName }}{{ $missing = append $missing "security.tokens.secretName" }}{{ end -}}
{{- if not (or .peerSecret.secretName .tls.requireClientCertificates) }}{{ $missing = append $missing "security.peerSecret.secretName (or security.tls.requireClientCertificates)" }}{{ end -}}
{{- if $missing }}{{ $problems = append $problems (printf "anyone could come in: set %s; or security.insecure=true if the network is trusted" (join ", and " $missing)) }}{{ end -}}
{{- end -}}
{{- if and .tls.requireClientCertificates (not $tls) }}{{ $problems = append $problems "security.tls.requireClientCertificates needs security.tls.secretName or security.tls.certManager.enabled" }}{{ end -}}
{{- if and .tls.certManager.enabled (not .tls.certManager.issuerRef.name) }}{{ $problems = append $problems "security.tls.certManager needs issuerRef.name: the issuer that signs the certificate" }}{{ end -}}
{{- end -}}
{{- with .Values.broker -}}
{{- if le (int .terminationGracePeriodSeconds) (int .leaveTimeoutSeconds) }}{{ $problems = append $problems (printf "broker.terminationGracePeriodSeconds (%d) must be above broker.leaveTimeoutSeconds (%d): Kubernetes would kill what is still leaving" (int .terminationGracePeriodSeconds) (int .leaveTimeoutSeconds)) }}{{ end -}}
{{- if .autoscaling.enabled -}}
{{- if gt (int .autoscaling.minReplicas) (int .autoscaling.maxReplicas) }}{{ $problems = append $problems "broker.autoscaling.minReplicas is above maxReplicas" }}{{ end -}}
{{- if not (or .autoscaling.targetCPUUtilizationPercentage .autoscaling.metrics) }}{{ $problems = append $problems "broker.autoscaling needs targetCPUUtilizationPercentage or metrics" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with .Values.broker.outside -}}
{{- if .enabled -}}
{{- if not .advertise }}{{ $problems = append $problems "broker.outside needs advertise: what clients outside reach a broker at, such as broker-{ordinal}.events.example.org:7400" }}
{{- else if not (or (contains "{ordinal}" .advertise) (contains "{nodePort}" .advertise) (eq (include "dynatops.brokersMax" $) "1")) }}{{ $problems = append $problems (printf "broker.outside.advertise (%s) is the same for all brokers: have {ordinal} or {nodePort} in it" .advertise) }}{{ end -}}
{{- if and (eq .type "NodePort") (not .nodePort) }}{{ $problems = append $problems "broker.outside.type NodePort needs nodePort: that of the service for all; brokers have the next ones" }}{{ end -}}
{{- if and (ne .type "NodePort") (or .nodePort (contains "{nodePort}" .advertise)) }}{{ $problems = append $problems "broker.outside.nodePort, and {nodePort} in advertise, are for type NodePort" }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if .Values.manager.policy -}}
{{- if not .Values.manager.enabled }}{{ $problems = append $problems "manager.policy needs manager.enabled" }}{{ end -}}
{{- end -}}
{{- $redis := include "dynatops.redisUrl" . -}}
{{- if and .Values.redis.url .Values.redis.internal.enabled }}{{ $problems = append $problems "redis.url and redis.internal.enabled: one of them" }}{{ end -}}
{{- if and .Values.manager.enabled (not $redis) }}{{ $problems = append $problems "managers keep their state in Redis: set redis.url, or leave redis.internal.enabled alone, or manager.enabled=false" }}{{ end -}}
{{- if and .Values.broker.advice (not $redis) }}{{ $problems = append $problems "broker.advice needs redis.url or redis.internal.enabled=true" }}{{ end -}}
{{- if .Values.analytics.enabled -}}
{{- if not .Values.lake.url }}{{ $problems = append $problems "analytics read the lake: set lake.url" }}{{ end -}}
{{- if not (hasPrefix "local" .Values.analytics.spark.master) -}}
{{- range $key, $url := dict "lake.url" .Values.lake.url "analytics.output" .Values.analytics.output -}}
{{- if and (or (hasPrefix "file:" $url) (hasPrefix "/" $url)) (not $.Values.lake.existingClaim) }}{{ $problems = append $problems (printf "%s is a folder (%s), and executors of %s are not where it is: name an object store, or a claim that all mount (lake.existingClaim)" $key $url $.Values.analytics.spark.master) }}{{ end -}}
{{- end -}}
{{- end -}}
{{- if not .Values.analytics.output }}{{ $problems = append $problems "set analytics.output: where results and state go, a folder of these jobs alone" }}{{ end -}}
{{- end -}}
{{- if .Values.manager.ingress.enabled -}}
{{- if not .Values.manager.ingress.hosts }}{{ $problems = append $problems "manager.ingress needs hosts" }}{{ end -}}
{{- if not .Values.manager.enabled }}{{ $problems = append $problems "manager.ingress needs manager.enabled" }}{{ end -}}
{{- end -}}
{{- if $problems }}{{ fail (printf "\n\n  - %s\n" (join "\n  - " $problems)) }}{{ end -}}
{{- end }}
