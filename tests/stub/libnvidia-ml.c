/*
 * A libnvidia-ml.so.1 without a GPU: answers what Tangram asks from a text file beside it, libnvidia-ml.table.
 *
 * Each line is a key, a space and a value. Lines before the first `gpu` are the system's, the others those of the
 * GPU that the last `gpu` began; a key that is missing is NOT_SUPPORTED. `error.<function> <code>`, or `error.* <code>`
 * for all calls with a GPU's handle, makes calls fail; with the code -1 they never return. A driver that lacks a function is this file compiled with
 * -D<function>=<another name>.
 *
 * Signatures, structs and codes are those of the NVML API reference. Not thread-safe; the table is read by the first
 * nvmlInitWithFlags.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    HANG = -1,
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
};
enum { SYSTEM = -1, MAXIMUM_GPUS = 64, MAXIMUM_ENTRIES = 8192, LINKS_OF_THIS_DRIVER = 18 };
enum { DEVICE_TYPE_GPU = 0, DEVICE_TYPE_SWITCH = 2, FABRIC_COMPLETED = 3 };

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;

typedef struct {
    unsigned long long total, free, used;
} Memory;

typedef struct {
    unsigned int version;
    unsigned char clusterUuid[16];
    int status;
    unsigned int cliqueId;
    unsigned char state;
    unsigned int healthMask;
} FabricInfoV2;

typedef struct {
    unsigned int version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} ProfileInfoV2;

typedef struct {
    unsigned int start, size;
} Placement;

_Static_assert(sizeof(PciInfo) == 68 && sizeof(FabricInfoV2) == 36 && sizeof(ProfileInfoV2) == 152,
               "the layout of the real library");

typedef struct {
    int gpu;
    char key[56];
    char value[128];
} Entry;

static Entry entries[MAXIMUM_ENTRIES];
static int entry_count, gpu_count, users;
static char handles[MAXIMUM_GPUS];

static const char *nth(int gpu, const char *key, int number)
{
    for (int i = 0; i < entry_count; i++)
        if (entries[i].gpu == gpu && strcmp(entries[i].key, key) == 0 && number-- == 0)
            return entries[i].value;
    return NULL;
}

static const char *find(int gpu, const char *key)
{
    return nth(gpu, key, 0);
}

static int read_table(void)
{
    Dl_info self;
    char path[4096];
    char line[256];
    char *end;
    FILE *file;

    if (!dladdr((void *)read_table, &self) || strlen(self.dli_fname) >= sizeof path)
        return UNKNOWN;
    strcpy(path, self.dli_fname);
    end = strrchr(path, '/');
    end = end ? end + 1 : path;
    if ((size_t)(end - path) + sizeof "libnvidia-ml.table" > sizeof path)
        return UNKNOWN;
    strcpy(end, "libnvidia-ml.table");
    file = fopen(path, "r");
    if (!file)
        return UNKNOWN;
    entry_count = gpu_count = 0;
    while (fgets(line, sizeof line, file)) {
        char *value;
        line[strcspn(line, "\n")] = '\0';
        value = strchr(line, ' ');
        if (strcmp(line, "gpu") == 0) {
            if (++gpu_count > MAXIMUM_GPUS)
                abort();
            continue;
        }
        if (!value || entry_count == MAXIMUM_ENTRIES || value - line >= (long)sizeof entries->key ||
            strlen(value + 1) >= sizeof entries->value)
            abort();
        *value = '\0';
        entries[entry_count].gpu = gpu_count - 1;
        strcpy(entries[entry_count].key, line);
        strcpy(entries[entry_count++].value, value + 1);
    }
    fclose(file);
    return SUCCESS;
}

static int stated_error(int gpu, const char *function)
{
    char key[64];
    const char *code;

    snprintf(key, sizeof key, "error.%s", function);
    code = find(gpu, key);
    while (code && atoi(code) == HANG)
        pause();
    return code ? atoi(code) : SUCCESS;
}

static int enter(int gpu, const char *function)
{
    int code;

    if (users == 0)
        return UNINITIALIZED;
    code = stated_error(SYSTEM, function);
    if (code == SUCCESS && gpu != SYSTEM)
        code = stated_error(gpu, function);
    if (code == SUCCESS && gpu != SYSTEM)
        code = stated_error(gpu, "*");
    return code;
}

static int index_of(const void *handle)
{
    return (int)((const char *)handle - handles);
}

static int text(int gpu, const char *function, const char *key, char *target, unsigned int length)
{
    int code = enter(gpu, function);
    const char *value = find(gpu, key);

    if (code != SUCCESS)
        return code;
    if (!value)
        return NOT_SUPPORTED;
    if (strlen(value) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(target, value);
    return SUCCESS;
}

static int number(int gpu, const char *function, const char *key, unsigned int *target)
{
    char digits[32];
    int code = text(gpu, function, key, digits, sizeof digits);

    if (code == SUCCESS)
        *target = (unsigned int)strtoul(digits, NULL, 10);
    return code;
}

/* --- the library and the system */

const char *nvmlErrorString(int code)
{
    return code == SUCCESS ? "Success" : "Error of the stub library";
}

int nvmlInitWithFlags(unsigned int flags)
{
    int code = SUCCESS;

    (void)flags;
    if (users == 0)
        code = read_table();
    if (code == SUCCESS)
        code = stated_error(SYSTEM, __func__);
    if (code == SUCCESS)
        users++;
    return code;
}

int nvmlShutdown(void)
{
    int code = enter(SYSTEM, __func__);

    if (code == SUCCESS)
        users--;
    return code;
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    return text(SYSTEM, __func__, "driver", version, length);
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return number(SYSTEM, __func__, "cuda", (unsigned int *)version);
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    int code = enter(SYSTEM, __func__);

    if (code == SUCCESS)
        *count = (unsigned int)gpu_count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    int code;

    if (users > 0 && index >= (unsigned int)gpu_count)
        return INVALID_ARGUMENT;
    code = enter((int)index, __func__);
    if (code == SUCCESS)
        *handle = handles + index;
    return code;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    int code = enter(SYSTEM, __func__);

    for (int gpu = 0; code == SUCCESS && gpu < gpu_count; gpu++) {
        const char *own = find(gpu, "uuid");
        if (own && strcmp(own, uuid) == 0) {
            *handle = handles + gpu;
            return enter(gpu, __func__);
        }
    }
    return code == SUCCESS ? NOT_FOUND : code;
}

/* --- one GPU */

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
    return text(index_of(handle), __func__, "uuid", uuid, length);
}

int nvmlDeviceGetName(void *handle, char *name, unsigned int length)
{
    return text(index_of(handle), __func__, "name", name, length);
}

int nvmlDeviceGetBrand(void *handle, unsigned int *brand)
{
    return number(index_of(handle), __func__, "brand", brand);
}

int nvmlDeviceGetArchitecture(void *handle, unsigned int *architecture)
{
    return number(index_of(handle), __func__, "architecture", architecture);
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned int *minor)
{
    return number(index_of(handle), __func__, "minor", minor);
}

int nvmlDeviceGetNumGpuCores(void *handle, unsigned int *cores)
{
    return number(index_of(handle), __func__, "cores", cores);
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    char version[16];
    int code = text(index_of(handle), __func__, "capability", version, sizeof version);

    if (code == SUCCESS && sscanf(version, "%d.%d", major, minor) != 2)
        code = UNKNOWN;
    return code;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory)
{
    char bytes[32];
    int code = text(index_of(handle), __func__, "memory", bytes, sizeof bytes);

    if (code == SUCCESS) {
        memory->total = memory->free = strtoull(bytes, NULL, 10);
        memory->used = 0;
    }
    return code;
}

int nvmlDeviceGetPciInfo_v3(void *handle, PciInfo *pci)
{
    memset(pci, 0, sizeof *pci);
    return text(index_of(handle), __func__, "bus", pci->busId, sizeof pci->busId);
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *current, unsigned int *pending)
{
    int code = number(index_of(handle), __func__, "mig", current);

    if (code == SUCCESS)
        *pending = *current;
    return code;
}

/* The end of a link: `switch` or a bus id; NULL with a code where there is none. */
static const char *link_end(void *handle, const char *function, unsigned int link, int *code)
{
    const char *end = NULL;

    *code = enter(index_of(handle), function);
    if (*code == SUCCESS && !find(index_of(handle), "link"))
        *code = NOT_SUPPORTED;
    else if (*code == SUCCESS && link >= LINKS_OF_THIS_DRIVER)
        *code = INVALID_ARGUMENT;
    else if (*code == SUCCESS)
        end = nth(index_of(handle), "link", (int)link);
    return end;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned int link, unsigned int *active)
{
    int code;
    const char *end = link_end(handle, __func__, link, &code);

    if (code == SUCCESS)
        *active = end != NULL;
    return code;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned int link, unsigned int *type)
{
    int code;
    const char *end = link_end(handle, __func__, link, &code);

    if (end)
        *type = strcmp(end, "switch") == 0 ? DEVICE_TYPE_SWITCH : DEVICE_TYPE_GPU;
    return code == SUCCESS && !end ? NOT_SUPPORTED : code;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned int link, PciInfo *pci)
{
    int code;
    const char *end = link_end(handle, __func__, link, &code);

    memset(pci, 0, sizeof *pci);
    if (end)
        snprintf(pci->busId, sizeof pci->busId, "%s", strcmp(end, "switch") == 0 ? "00000000:C5:00.0" : end);
    return code == SUCCESS && !end ? NOT_SUPPORTED : code;
}

int nvmlDeviceGetGpuFabricInfoV(void *handle, FabricInfoV2 *info)
{
    char value[64];
    int code = text(index_of(handle), __func__, "fabric", value, sizeof value);

    if (code != SUCCESS)
        return code;
    if (info->version != (sizeof *info | 2U << 24))
        return ARGUMENT_VERSION_MISMATCH;
    for (int i = 0; i < 16; i++) {
        unsigned int byte;
        if (sscanf(value + 2 * i, "%2x", &byte) != 1)
            return UNKNOWN;
        info->clusterUuid[i] = (unsigned char)byte;
    }
    info->cliqueId = (unsigned int)strtoul(value + 32, NULL, 10);
    info->state = FABRIC_COMPLETED;
    info->status = SUCCESS;
    return SUCCESS;
}

/* `profile.<enum> <id> <slices> <instances> <multiprocessors> <copy> <decoder> <encoder> <jpeg> <ofa> <MiB> <name>` */
int nvmlDeviceGetGpuInstanceProfileInfoV(void *handle, unsigned int profile, ProfileInfoV2 *info)
{
    char key[32];
    char value[128];
    char name[64];
    int code;

    snprintf(key, sizeof key, "profile.%u", profile);
    code = text(index_of(handle), __func__, key, value, sizeof value);
    if (code != SUCCESS)
        return code;
    if (info->version != (sizeof *info | 2U << 24))
        return ARGUMENT_VERSION_MISMATCH;
    if (sscanf(value, "%u %u %u %u %u %u %u %u %u %llu %63s", &info->id, &info->sliceCount, &info->instanceCount,
               &info->multiprocessorCount, &info->copyEngineCount, &info->decoderCount, &info->encoderCount,
               &info->jpegCount, &info->ofaCount, &info->memorySizeMB, name) != 11)
        return UNKNOWN;
    snprintf(info->name, sizeof info->name, "MIG %s", name);
    return SUCCESS;
}

/* `placements.<id> <start>:<size> …` */
int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *handle, unsigned int id, Placement *places, unsigned int *count)
{
    char key[32];
    char value[128];
    unsigned int found = 0;
    int code;

    snprintf(key, sizeof key, "placements.%u", id);
    code = text(index_of(handle), __func__, key, value, sizeof value);
    if (code != SUCCESS)
        return code;
    for (char *place = strtok(value, " "); place; place = strtok(NULL, " ")) {
        Placement read;
        if (sscanf(place, "%u:%u", &read.start, &read.size) != 2)
            return UNKNOWN;
        if (places && found == *count)
            return INSUFFICIENT_SIZE;
        if (places)
            places[found] = read;
        found++;
    }
    *count = found;
    return SUCCESS;
}
