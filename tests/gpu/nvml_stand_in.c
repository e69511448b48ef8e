/*
 * A stand-in for NVIDIA's libnvidia-ml.so.1, for tests on machines without a GPU. It is compiled against NVIDIA's own
 * nvml.h, so that the compiler compares every signature and structure.
 *
 * What it plays is written in the file that $RIDGELINE_NVML_STAND_IN names, one `key value` a line, read anew at each
 * call. A key that is missing is 0. Times of GPUs are counters that a test moves, like those of the hardware:
 *
 *   init CODE                  what nvmlInit returns
 *   count CODE                 what nvmlDeviceGetCount returns
 *   gpus N                     number of GPUs
 *   gpu0.uuid TEXT             GPU-0 if missing
 *   gpu0.handle CODE           what nvmlDeviceGetHandleByIndex returns
 *   gpu0.no_gpm 1              an older GPU
 *   gpu0.query CODE            what nvmlGpmQueryDeviceSupport returns
 *   gpu0.sample CODE           what nvmlGpmSampleGet and nvmlGpmMigSampleGet return
 *   gpu0.mig N                 divided by MIG into N devices ...
 *   gpu0.mig2.instance ID      ... each in a GPU instance; 0 is a place that is free
 *   gpu0.elapsed T             counter of time, of the GPU or, with gpu0.gi3.elapsed, of GPU instance 3
 *   gpu0.dram T .tensor T .sm T   counters of the time in which each was active
 *   gpu0.dram_error CODE       what is returned for this one metric
 *   gpu0.nvlink 1              has NVLink ...
 *   gpu0.received KIB, gpu0.transmitted KIB   ... and moved that much
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nvml.h"

#define MOST_GPUS 16
#define MOST_PARTS 8

struct nvmlDevice_st {
    int gpu;
    int part; /* index of a MIG device, -1 for the GPU itself */
};

struct nvmlGpmSample_st {
    int gpu;
    int instance; /* -1 for a whole GPU */
    double elapsed, dram, tensor, sm;
};

static int initialized;
static int live_samples;
static struct nvmlDevice_st gpus[MOST_GPUS];
static struct nvmlDevice_st parts[MOST_GPUS][MOST_PARTS];

/* What the file says of a key, or nothing. */
static int look_up(char *value, size_t size, const char *format, ...) {
    char wanted[128], key[128], line[256];
    const char *path = getenv("RIDGELINE_NVML_STAND_IN");
    va_list arguments;
    int found = 0;
    va_start(arguments, format);
    vsnprintf(wanted, sizeof wanted, format, arguments);
    va_end(arguments);
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        char text[128];
        if (sscanf(line, "%127s %127s", key, text) == 2 && strcmp(key, wanted) == 0) {
            snprintf(value, size, "%s", text);
            found = 1;
        }
    }
    fclose(file);
    return found;
}

#define NUMBER(...) (look_up(text, sizeof text, __VA_ARGS__) ? atof(text) : 0.0)
#define CODE(...) ((nvmlReturn_t)NUMBER(__VA_ARGS__))
#define NEEDS_A_SESSION             \
    char text[128];                 \
    if (!initialized)               \
        return NVML_ERROR_UNINITIALIZED; \
    (void)text

int stand_in_live_samples(void) { return live_samples; }

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    char text[128];
    nvmlReturn_t code = CODE("init");
    (void)flags;
    if (code == NVML_SUCCESS)
        initialized++;
    return code;
}

nvmlReturn_t nvmlShutdown(void) {
    NEEDS_A_SESSION;
    initialized--;
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result) {
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "an error of the stand-in";
    }
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    NEEDS_A_SESSION;
    snprintf(version, length, "580.00.stand-in");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) {
    NEEDS_A_SESSION;
    nvmlReturn_t code = CODE("count");
    *count = (unsigned int)NUMBER("gpus");
    return code;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    NEEDS_A_SESSION;
    if (index >= MOST_GPUS || index >= NUMBER("gpus"))
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = CODE("gpu%u.handle", index);
    gpus[index].gpu = (int)index;
    gpus[index].part = -1;
    *device = &gpus[index];
    return code;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    NEEDS_A_SESSION;
    (void)device;
    snprintf(name, length, "NVIDIA stand-in");
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    NEEDS_A_SESSION;
    if (device->part >= 0)
        snprintf(uuid, length, "MIG-%d-%d", device->gpu, device->part);
    else if (look_up(text, sizeof text, "gpu%d.uuid", device->gpu))
        snprintf(uuid, length, "%s", text);
    else
        snprintf(uuid, length, "GPU-%d", device->gpu);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor) {
    NEEDS_A_SESSION;
    *minor = (unsigned int)device->gpu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    NEEDS_A_SESSION;
    *current = *pending = NUMBER("gpu%d.mig", device->gpu) > 0 ? NVML_DEVICE_MIG_ENABLE : NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    NEEDS_A_SESSION;
    (void)device;
    *count = MOST_PARTS - 1; /* as on an H100 */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *part) {
    NEEDS_A_SESSION;
    if (index >= MOST_PARTS || NUMBER("gpu%d.mig%u.instance", device->gpu, index) == 0)
        return NVML_ERROR_NOT_FOUND;
    parts[device->gpu][index].gpu = device->gpu;
    parts[device->gpu][index].part = (int)index;
    *part = &parts[device->gpu][index];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    NEEDS_A_SESSION;
    if (device->part < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *id = (unsigned int)NUMBER("gpu%d.mig%d.instance", device->gpu, device->part);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values) {
    NEEDS_A_SESSION;
    for (int i = 0; i < count; i++) {
        int known = values[i].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX ||
                    values[i].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX;
        if (!known || values[i].scopeId != 0xFFFFFFFFu || NUMBER("gpu%d.nvlink", device->gpu) == 0) {
            values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
            continue;
        }
        const char *direction =
            values[i].fieldId == NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX ? "received" : "transmitted";
        values[i].nvmlReturn = NVML_SUCCESS;
        values[i].valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
        values[i].value.ullVal = (unsigned long long)NUMBER("gpu%d.%s", device->gpu, direction);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    NEEDS_A_SESSION;
    if (support->version != NVML_GPM_SUPPORT_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    support->isSupportedDevice = NUMBER("gpu%d.no_gpm", device->gpu) == 0;
    return CODE("gpu%d.query", device->gpu);
}

nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample) {
    NEEDS_A_SESSION;
    *sample = calloc(1, sizeof **sample);
    live_samples += *sample != NULL;
    return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample) {
    NEEDS_A_SESSION;
    free(sample);
    live_samples--;
    return NVML_SUCCESS;
}

static nvmlReturn_t take(int gpu, int instance, nvmlGpmSample_t sample) {
    char text[128], unit[64];
    nvmlReturn_t code = CODE("gpu%d.sample", gpu);
    if (code != NVML_SUCCESS)
        return code;
    if (instance < 0)
        snprintf(unit, sizeof unit, "gpu%d", gpu);
    else
        snprintf(unit, sizeof unit, "gpu%d.gi%d", gpu, instance);
    sample->gpu = gpu;
    sample->instance = instance;
    sample->elapsed = NUMBER("%s.elapsed", unit);
    sample->dram = NUMBER("%s.dram", unit);
    sample->tensor = NUMBER("%s.tensor", unit);
    sample->sm = NUMBER("%s.sm", unit);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample) {
    NEEDS_A_SESSION;
    if (NUMBER("gpu%d.no_gpm", device->gpu) || NUMBER("gpu%d.mig", device->gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    return take(device->gpu, -1, sample);
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample) {
    NEEDS_A_SESSION;
    if (NUMBER("gpu%d.no_gpm", device->gpu))
        return NVML_ERROR_NOT_SUPPORTED;
    if (device->part >= 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return take(device->gpu, (int)instance, sample);
}

nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *request) {
    NEEDS_A_SESSION;
    struct nvmlGpmSample_st *before = request->sample1, *after = request->sample2;
    if (request->version != NVML_GPM_METRICS_GET_VERSION)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (before->gpu != after->gpu || before->instance != after->instance || after->elapsed < before->elapsed)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned int i = 0; i < request->numMetrics; i++) {
        nvmlGpmMetric_t *metric = &request->metrics[i];
        double active = 0;
        metric->nvmlReturn = NVML_SUCCESS;
        switch (metric->metricId) {
        case NVML_GPM_METRIC_DRAM_BW_UTIL:
            active = after->dram - before->dram;
            metric->nvmlReturn = CODE("gpu%d.dram_error", after->gpu);
            break;
        case NVML_GPM_METRIC_ANY_TENSOR_UTIL: active = after->tensor - before->tensor; break;
        case NVML_GPM_METRIC_SM_UTIL: active = after->sm - before->sm; break;
        default: metric->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        }
        metric->value = 100.0 * active / (after->elapsed - before->elapsed); /* not a number if no time went by */
    }
    return NVML_SUCCESS;
}
