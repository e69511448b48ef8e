{{/* Name of everything of this release: "ridgeline" for a release of that name. */}}
{{- define "ridgeline.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ridgeline.operator" -}}{{ include "ridgeline.fullname" . }}-operator{{- end }}
{{- define "ridgeline.gpuExporter" -}}{{ include "ridgeline.fullname" . }}-gpu-exporter{{- end }}
{{- define "ridgeline.prometheus" -}}{{ include "ridgeline.fullname" . }}-prometheus{{- end }}

{{- define "ridgeline.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "ridgeline.operator" .) }}
{{- end }}

{{/* Labels that select pods; they never change. Call with (list $ "operator"). */}}
{{- define "ridgeline.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "ridgeline.labels" -}}
{{- $root := index . 0 -}}
{{ include "ridgeline.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Those labels beside the user's, which never replace them. Call with (list $ "operator" .Values.podLabels). */}}
{{- define "ridgeline.labelsWith" -}}
{{- toYaml (merge (include "ridgeline.labels" . | fromYaml) (index . 2)) }}
{{- end }}

{{- define "ridgeline.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* "bundled" or "external". */}}
{{- define "ridgeline.prometheusMode" -}}
{{- if ne .Values.prometheus.mode "auto" }}{{ .Values.prometheus.mode }}{{ else if .Values.prometheus.url }}external{{ else }}bundled{{ end }}
{{- end }}

{{- define "ridgeline.prometheusUrl" -}}
{{- if eq (include "ridgeline.prometheusMode" .) "bundled" -}}
http://{{ include "ridgeline.prometheus" . }}.{{ .Release.Namespace }}.svc:9090
{{- else -}}
{{ required "prometheus.mode is external: set prometheus.url to the base URL of that Prometheus, such as http://prometheus.monitoring.svc:9090" .Values.prometheus.url }}
{{- end }}
{{- end }}

{{/* "true" where PodMonitor and PrometheusRule are to be made. */}}
{{- define "ridgeline.monitors" -}}
{{- $served := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}
{{- if or (eq .Values.monitors.enabled "always") (and (eq .Values.monitors.enabled "auto") $served) }}true{{ end }}
{{- end }}

{{/* A rules file as Prometheus reads it. Call with (list $ path). */}}
{{- define "ridgeline.rules" -}}
{{- $root := index . 0 -}}
{{- $root.Files.Get (index . 1) | replace "${window}" $root.Values.rules.window | replace "${interval}" $root.Values.prometheus.scrapeInterval -}}
{{- end }}
