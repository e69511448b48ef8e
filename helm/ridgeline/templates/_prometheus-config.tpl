{{/*
Scrape configuration of the bundled Prometheus. Target labels are job, instance, namespace, fleet and pod. The role of
an engine is no target label: a flip would start new series and break every rate(); rules join on
ridgeline_fleet_engine_role instead. Jobs name the same ports as `ridgeline.api.names`.
*/}}
{{- define "ridgeline.prometheusConfig" -}}
global:
  scrape_interval: {{ .Values.prometheus.scrapeInterval }}
  evaluation_interval: {{ .Values.prometheus.scrapeInterval }}
rule_files:
  {{- range $path, $_ := .Files.Glob "rules/*.yaml" }}
  - /etc/prometheus/{{ base $path }}
  {{- end }}
scrape_configs:
  {{- range $job := list (list "ridgeline-engine" "9400") (list "ridgeline-vllm" "8000") (list "ridgeline-router" "29000") (list "ridgeline-registrar" "30002") }}
  - job_name: {{ index $job 0 }}
    kubernetes_sd_configs:
      - role: pod
        {{- with $.Values.watch.namespaces }}
        namespaces: {names: {{ toJson . }}}
        {{- end }}
        selectors:
          - {role: pod, label: "ridgeline.dev/component in (engine,router)"}
    relabel_configs:
      - source_labels: [__meta_kubernetes_pod_container_port_number]
        regex: {{ index $job 1 | quote }}
        action: keep
      - source_labels: [__meta_kubernetes_pod_phase]
        regex: Succeeded|Failed
        action: drop
      - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
      - {source_labels: [__meta_kubernetes_pod_label_ridgeline_dev_fleet], target_label: fleet}
      - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
  {{- end }}
  - job_name: ridgeline-operator
    # Its series name the fleet's namespace and engine pods, not its own.
    honor_labels: true
    kubernetes_sd_configs:
      - role: pod
        namespaces: {names: [{{ .Release.Namespace }}]}
        selectors:
          - {role: pod, label: "app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=operator"}
    relabel_configs:
      - source_labels: [__meta_kubernetes_pod_container_port_number]
        regex: "9090"
        action: keep
      - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
      - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
  {{- if .Values.gpuExporter.enabled }}
  - job_name: ridgeline-gpu
    # Its series name the pods that hold the GPUs, not its own.
    honor_labels: true
    kubernetes_sd_configs:
      - role: pod
        namespaces: {names: [{{ .Release.Namespace }}]}
        selectors:
          - {role: pod, label: "app.kubernetes.io/name={{ .Chart.Name }},app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component=gpu-exporter"}
    relabel_configs:
      - source_labels: [__meta_kubernetes_pod_container_port_number]
        regex: "9402"
        action: keep
      - {source_labels: [__meta_kubernetes_namespace], target_label: namespace}
      - {source_labels: [__meta_kubernetes_pod_name], target_label: pod}
  {{- end }}
{{- end }}
