{{- define "otel-fr.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "otel-fr.collector" -}}{{ include "otel-fr.fullname" . }}-collector{{- end -}}
{{- define "otel-fr.headless" -}}{{ include "otel-fr.collector" . }}-headless{{- end -}}
{{- define "otel-fr.balancer" -}}{{ include "otel-fr.fullname" . }}-loadbalancer{{- end -}}

{{- define "otel-fr.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "otel-fr.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: otel-fr
{{ include "otel-fr.selector" . }}
{{- end -}}

{{- define "otel-fr.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "otel-fr.collector" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "otel-fr.balanced" -}}{{ if gt (int .Values.replicas) 1 }}yes{{ end }}{{- end -}}

{{- /* What jobs set OTEL_EXPORTER_OTLP_ENDPOINT to. */ -}}
{{- define "otel-fr.endpoint" -}}
{{- $service := include "otel-fr.collector" . -}}
{{- if include "otel-fr.balanced" . }}{{ $service = include "otel-fr.balancer" . }}{{ end -}}
{{ ternary "https" "http" (ne .Values.tls.existingSecret "") }}://{{ $service }}.{{ .Release.Namespace }}.svc:4317
{{- end -}}

{{- define "otel-fr.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10317
runAsGroup: 10317
fsGroup: 10317
fsGroupChangePolicy: OnRootMismatch
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "otel-fr.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{- define "otel-fr.placement" -}}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
