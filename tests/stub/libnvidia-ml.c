/*
 * A libnvidia-ml.so.1 without a GPU: answers what Tangram asks from a text file beside it, libnvidia-ml.table.
 *
 * Each line is a key, a space and a value. Lines before the first `gpu` are the system's, the others those of the
 * GPU that the last `gpu` began; a key that is missing is NOT_SUPPORTED. `error.<function> <code>`, or `error.* <code>`
 * for all calls with a GPU's handle, makes calls fail, `<code>@<n>` the n-th from 0 alone; with the code -1 they never
 * return. A driver that lacks a function is this file compiled with -D<function>=<another name>.
 *
 * Signatures, structs and codes are those of the NVML API reference. Not thread-safe; the table is read by the first
 * nvmlInitWithFlags.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

#include "stub.h"

enum { MAXIMUM_ENTRIES = 8192, LINKS_OF_THIS_DRIVER = 18 };
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
    unsigned long long total, reserved, free, used;
} MemoryV2;

typedef struct {
    unsigned int version;
    unsigned char clusterUuid[16];
    int status;
    unsigned int cliqueId;
    unsigned char state;
    unsigned int healthMask;
} FabricInfoV2;

_Static_assert(sizeof(PciInfo) == 68 && sizeof(FabricInfoV2) == 36 && sizeof(MemoryV2) == 40,
               "the layout of the real library");

typedef struct {
    int gpu, seen;
    char key[56];
    char value[128];
} Entry;

static Entry entries[MAXIMUM_ENTRIES];
static int entry_count, users;
static char handles[MAXIMUM_GPUS];
int gpu_count;

const char *nth(int gpu, const char *key, int number)
{
    for (int i = 0; i < entry_count; i++)
        if (entries[i].gpu == gpu && strcmp(entries[i].key, key) == 0 && number-- == 0)
            return entries[i].value;
    return NULL;
}

const char *find(int gpu, const char *key)
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
        if (!value)
            abort();
        *value = '\0';
        stub_add(gpu_count - 1, line, value + 1);
    }
    fclose(file);
    forget_instances();
    return SUCCESS;
}

/* For tests in the same process: what happens to the hardware. */
void stub_add(int gpu, const char *key, const char *value)
{
    Entry *entry = &entries[entry_count++];

    if (entry_count > MAXIMUM_ENTRIES || strlen(key) >= sizeof entry->key || strlen(value) >= sizeof entry->value)
        abort();
    entry->gpu = gpu;
    entry->seen = 0;
    strcpy(entry->key, key);
    strcpy(entry->value, value);
}

void stub_remove(int gpu, const char *key)
{
    int kept = 0;

    for (int i = 0; i < entry_count; i++)
        if (entries[i].gpu != gpu || strcmp(entries[i].key, key) != 0)
            entries[kept++] = entries[i];
    entry_count = kept;
}

/* `error.<function> <code>` for every call, `error.<function> <code>@<n>` for the n-th from 0 alone. */
static int stated_error(int gpu, const char *function)
{
    char key[64];

    snprintf(key, sizeof key, "error.%s", function);
    for (int i = 0; i < entry_count; i++) {
        const char *when;
        int code;
        if (entries[i].gpu != gpu || strcmp(entries[i].key, key) != 0)
            continue;
        when = strchr(entries[i].value, '@');
        code = atoi(entries[i].value);
        if (when && entries[i].seen++ != atoi(when + 1))
            continue;
        while (code == HANG)
            pause();
        return code;
    }
    return SUCCESS;
}

int enter(int gpu, const char *function)
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

int index_of(const void *handle)
{
    return (int)((const char *)handle - handles);
}

int text(int gpu, const char *function, const char *key, char *target, unsigned int length)
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

int number(int gpu, const char *function, const char *key, unsigned int *target)
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

void *handle_of(int gpu)
{
    return handles + gpu;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
    int gpu;
    const char *mig = mig_uuid(handle, &gpu);

    if (mig) {
        int code = enter(gpu, __func__);
        if (code == SUCCESS)
            snprintf(uuid, length, "%s", mig);
        return code;
    }
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

int nvmlDeviceGetMemoryInfo_v2(void *handle, MemoryV2 *memory)
{
    char bytes[32];
    const char *used = find(index_of(handle), "used");
    int code = text(index_of(handle), __func__, "memory", bytes, sizeof bytes);

    if (code != SUCCESS)
        return code;
    if (memory->version != (sizeof *memory | 2U << 24))
        return ARGUMENT_VERSION_MISMATCH;
    memory->total = strtoull(bytes, NULL, 10);
    memory->reserved = memory->total / 256;
    memory->used = used ? strtoull(used, NULL, 10) : 0;
    memory->free = memory->total - memory->reserved - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, PciInfo *pci)
{
    memset(pci, 0, sizeof *pci);
    return text(index_of(handle), __func__, "bus", pci->busId, sizeof pci->busId);
}

int nvmlDeviceGetVirtualizationMode(void *handle, unsigned int *mode)
{
    return number(index_of(handle), __func__, "virtual", mode);
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

    if (code == SUCCESS) {
        const char *down = find(index_of(handle), "down");
        *active = end != NULL && (!down || (int)link >= atoi(down));
    }
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
