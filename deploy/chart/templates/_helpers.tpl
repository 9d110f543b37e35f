{{- /* The driver is one per cluster (its classes and policies have fixed names), so no name carries the release's. */ -}}
{{- define "tangram.driver" -}}
gpu.resource.admin
{{- end -}}

{{- define "tangram.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* The labels by which a workload finds its pods: never change them. */ -}}
{{- define "tangram.selector" -}}
app.kubernetes.io/name: tangram
app.kubernetes.io/component: {{ . }}
{{- end -}}

{{- define "tangram.labels" -}}
{{ include "tangram.selector" .component }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- end -}}

{{- /* The username under which the node plugin speaks to the API server. */ -}}
{{- define "tangram.nodeUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:tangram-node
{{- end -}}

{{- define "tangram.probes" -}}
# Until it answers for the first time, a start on a busy node may take its time.
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 1
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 2
  timeoutSeconds: 5
{{- end -}}
