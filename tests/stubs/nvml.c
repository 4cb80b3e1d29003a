/*
 * A stub libnvidia-ml.so.1 that says what a file says, which may change meanwhile.
 *
 * OTEL_GPU_STUB_NVML names the file: lines of "DEVICE NAME VALUE". "code.FUNCTION" is what a function
 * of a device returns instead of 0; "sleep_ms" is how long nvmlDeviceGetUtilizationRates takes; a figure
 * that is not in the file is not supported. Prototypes and layouts are those of nvml.h.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

/* Of nvmlEventType. */
#define XID_CRITICAL_ERROR 8

enum {
	SUCCESS = 0,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	NOT_FOUND = 6,
	INSUFFICIENT_SIZE = 7,
	TIMEOUT = 10
};

typedef struct device *device_t;

struct utilization {
	unsigned int gpu, memory;
};

struct memory_v2 {
	unsigned int version;
	unsigned long long total, reserved, free, used;
};

struct pci_info {
	char legacy[16];
	unsigned int domain, bus, device, pci_device, sub_system;
	char bus_id[32];
};

union value {
	double d;
	unsigned int ui;
	unsigned long ul;
	unsigned long long ull;
};

struct field_value {
	unsigned int field, scope;
	long long timestamp, latency_us;
	unsigned int type;
	int code;
	union value value;
};

struct process_info {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
};

struct process_sample {
	unsigned int pid;
	unsigned long long timestamp_us;
	unsigned int sm, memory, encoder, decoder;
};

/* A handle is the device's number and one, a MIG device has its own number in the hundreds. */
static int number_of(device_t device)
{
	return (int)(long)device - 1;
}

static int find(int device, const char *name, char *value, size_t size)
{
	const char *path = getenv("OTEL_GPU_STUB_NVML");
	FILE *file = path ? fopen(path, "r") : NULL;
	char line[512], key[128], text[256];
	int number, found = 0;

	while (file && !found && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%d %127s %255[^\n]", &number, key, text) == 3)
			found = number == device && !strcmp(key, name);
	}
	if (file)
		fclose(file);
	if (found)
		snprintf(value, size, "%s", text);
	return found;
}

static unsigned long long setting(int device, const char *name, unsigned long long otherwise)
{
	char value[256];

	return find(device, name, value, sizeof(value)) ? strtoull(value, NULL, 10) : otherwise;
}

static int code_of(device_t device, const char *function)
{
	char name[128];

	snprintf(name, sizeof(name), "code.%s", function);
	return (int)setting(number_of(device), name, setting(number_of(device), "code", SUCCESS));
}

static int number(device_t device, const char *function, const char *name, unsigned int *out)
{
	char value[256];
	int code = code_of(device, function);

	if (code)
		return code;
	if (!find(number_of(device), name, value, sizeof(value)))
		return NOT_SUPPORTED;
	*out = (unsigned int)strtoul(value, NULL, 10);
	return SUCCESS;
}

static int text(device_t device, const char *function, const char *name, char *out,
		unsigned int size)
{
	int code = code_of(device, function);

	if (code)
		return code;
	return find(number_of(device), name, out, size) ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return (int)setting(-1, "code.nvmlInit", SUCCESS);
}

EXPORT int nvmlShutdown(void)
{
	return SUCCESS;
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned int size)
{
	snprintf(out, size, "%s", "580.65.06");
	return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
	*count = (unsigned int)setting(-1, "count", 1);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t *device)
{
	*device = (device_t)(long)(index + 1);
	return code_of(*device, __func__);
}

EXPORT int nvmlDeviceGetUUID(device_t device, char *out, unsigned int size)
{
	return text(device, __func__, "uuid", out, size);
}

EXPORT int nvmlDeviceGetName(device_t device, char *out, unsigned int size)
{
	return text(device, __func__, "model", out, size);
}

EXPORT int nvmlDeviceGetSerial(device_t device, char *out, unsigned int size)
{
	return text(device, __func__, "serial", out, size);
}

EXPORT int nvmlDeviceGetPciInfo_v3(device_t device, struct pci_info *info)
{
	memset(info, 0, sizeof(*info));
	return text(device, __func__, "bus_id", info->bus_id, sizeof(info->bus_id));
}

EXPORT int nvmlDeviceGetUtilizationRates(device_t device, struct utilization *out)
{
	unsigned long long sleep_ms = setting(number_of(device), "sleep_ms", 0);
	struct timespec length = {(time_t)(sleep_ms / 1000), (long)(sleep_ms % 1000) * 1000000};

	nanosleep(&length, NULL);
	out->memory = (unsigned int)setting(number_of(device), "memory_percent", 0);
	return number(device, __func__, "gpu_percent", &out->gpu);
}

EXPORT int nvmlDeviceGetEncoderUtilization(device_t device, unsigned int *out,
					   unsigned int *period_us)
{
	*period_us = 0;
	return number(device, __func__, "encoder_percent", out);
}

EXPORT int nvmlDeviceGetDecoderUtilization(device_t device, unsigned int *out,
					   unsigned int *period_us)
{
	*period_us = 0;
	return number(device, __func__, "decoder_percent", out);
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(device_t device, struct memory_v2 *out)
{
	int code = code_of(device, __func__);

	if (code)
		return code;
	out->total = setting(number_of(device), "memory_total", 0);
	out->reserved = setting(number_of(device), "memory_reserved", 0);
	out->used = setting(number_of(device), "memory_used", 0);
	out->free = out->total - out->reserved - out->used;
	return out->total ? SUCCESS : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetPowerUsage(device_t device, unsigned int *out)
{
	return number(device, __func__, "power_mw", out);
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(device_t device, unsigned long long *out)
{
	*out = setting(number_of(device), "energy_mj", 0);
	return *out ? code_of(device, __func__) : NOT_SUPPORTED;
}

EXPORT int nvmlDeviceGetTemperature(device_t device, unsigned int sensor, unsigned int *out)
{
	return sensor ? INVALID_ARGUMENT : number(device, __func__, "temperature_c", out);
}

EXPORT int nvmlDeviceGetClockInfo(device_t device, unsigned int clock, unsigned int *out)
{
	return clock != 1 ? INVALID_ARGUMENT : number(device, __func__, "clock_mhz", out);
}

EXPORT int nvmlDeviceGetMaxClockInfo(device_t device, unsigned int clock, unsigned int *out)
{
	return clock != 1 ? INVALID_ARGUMENT : number(device, __func__, "clock_limit_mhz", out);
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(device_t device, unsigned long long *out)
{
	*out = setting(number_of(device), "reasons", 0);
	return code_of(device, __func__);
}

EXPORT int nvmlDeviceGetTotalEccErrors(device_t device, unsigned int kind, unsigned int counter,
				       unsigned long long *out)
{
	unsigned int count = 0;
	int code = counter ? INVALID_ARGUMENT
			   : number(device, __func__, kind ? "uncorrected" : "corrected", &count);

	*out = count;
	return code;
}

EXPORT int nvmlDeviceGetFieldValues(device_t device, int count, struct field_value *values)
{
	char name[32], value[256];

	for (int at = 0; at < count; at++) {
		snprintf(name, sizeof(name), "field.%u", values[at].field);
		values[at].code = NOT_SUPPORTED;
		if (find(number_of(device), name, value, sizeof(value))) {
			values[at].code = SUCCESS;
			values[at].type = 3;
			values[at].value.ull = strtoull(value, NULL, 10);
		}
	}
	return code_of(device, __func__);
}

EXPORT int nvmlDeviceGetMigMode(device_t device, unsigned int *current, unsigned int *pending)
{
	*pending = 0;
	return number(device, __func__, "mig", current);
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned int *count)
{
	return number(device, __func__, "parts", count);
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned int index, device_t *part)
{
	char value[256];
	int name = 100 * (number_of(device) + 1) + (int)index;

	*part = (device_t)(long)(name + 1);
	return find(name, "uuid", value, sizeof(value)) ? SUCCESS : NOT_FOUND;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(device_t device, unsigned int *count,
						   struct process_info *infos)
{
	int code = code_of(device, __func__);
	unsigned int room = *count;

	if (code)
		return code;
	*count = setting(number_of(device), "pid", 0) ? 1 : 0;
	if (*count > room)
		return INSUFFICIENT_SIZE;
	if (*count) {
		memset(infos, 0, sizeof(*infos));
		infos->pid = (unsigned int)setting(number_of(device), "pid", 0);
		infos->used_bytes = setting(number_of(device), "pid_bytes", ~0ULL);
	}
	return SUCCESS;
}

EXPORT int nvmlDeviceGetProcessUtilization(device_t device, struct process_sample *samples,
					   unsigned int *count, unsigned long long since_us)
{
	unsigned int room = samples ? *count : 0;

	(void)since_us;
	*count = setting(number_of(device), "pid_percent", 0) ? 1 : 0;
	if (!*count)
		return NOT_FOUND;
	if (*count > room)
		return INSUFFICIENT_SIZE;
	memset(samples, 0, sizeof(*samples));
	samples->pid = (unsigned int)setting(number_of(device), "pid", 0);
	samples->timestamp_us = 1000;
	samples->sm = (unsigned int)setting(number_of(device), "pid_percent", 0);
	return SUCCESS;
}

struct event_data {
	device_t device;
	unsigned long long type, data;
	unsigned int gpu_instance, compute_instance;
};

#define MAX_DEVICES 8

/* Whose XIDs are waited for, and the last one that each of them said. */
static int is_registered[MAX_DEVICES];
static unsigned long long said_xid[MAX_DEVICES];

EXPORT int nvmlEventSetCreate(void **set)
{
	*set = is_registered;
	return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(device_t device, unsigned long long types, void *set)
{
	int at = number_of(device);

	(void)set;
	if (types != XID_CRITICAL_ERROR || at < 0 || at >= MAX_DEVICES)
		return INVALID_ARGUMENT;
	is_registered[at] = code_of(device, __func__) == SUCCESS;
	return code_of(device, __func__);
}

/* "xid" is what a device says next, once for each number. */
EXPORT int nvmlEventSetWait_v2(void *set, struct event_data *data, unsigned int timeout_ms)
{
	struct timespec step = {0, 10000000};

	(void)set;
	for (unsigned int waited_ms = 0; waited_ms <= timeout_ms; waited_ms += 10) {
		for (int at = 0; at < MAX_DEVICES; at++) {
			unsigned long long xid = setting(at, "xid", 0);

			if (!is_registered[at] || xid == said_xid[at])
				continue;
			said_xid[at] = xid;
			memset(data, 0, sizeof(*data));
			data->device = (device_t)(long)(at + 1);
			data->type = XID_CRITICAL_ERROR;
			data->data = xid;
			return SUCCESS;
		}
		nanosleep(&step, NULL);
	}
	return TIMEOUT;
}

struct gpm_support {
	unsigned int version, is_supported;
};

struct gpm_metrics {
	unsigned int version, count;
	int *samples[2];
	struct {
		unsigned int id;
		int code;
		double value;
		const char *names[3];
	} metrics[128];
};

EXPORT int nvmlGpmQueryDeviceSupport(device_t device, struct gpm_support *out)
{
	out->is_supported = (unsigned int)setting(number_of(device), "gpm", 0);
	return SUCCESS;
}

EXPORT int nvmlGpmSampleAlloc(int **sample)
{
	*sample = calloc(1, sizeof(**sample));
	return SUCCESS;
}

EXPORT int nvmlGpmSampleFree(int *sample)
{
	free(sample);
	return SUCCESS;
}

EXPORT int nvmlGpmSampleGet(device_t device, int *sample)
{
	*sample = number_of(device);
	return SUCCESS;
}

EXPORT int nvmlGpmMetricsGet(struct gpm_metrics *asked)
{
	char name[32], value[256];

	for (unsigned int at = 0; at < asked->count; at++) {
		snprintf(name, sizeof(name), "gpm.%u", asked->metrics[at].id);
		asked->metrics[at].code = NOT_SUPPORTED;
		if (find(*asked->samples[1], name, value, sizeof(value))) {
			asked->metrics[at].code = SUCCESS;
			asked->metrics[at].value = strtod(value, NULL);
		}
	}
	return SUCCESS;
}
