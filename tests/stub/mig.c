/*
 * MIG: modes, GPU instances and compute instances, as a state machine. What a GPU offers stands in the table:
 * `mig 0|1`, `profile.<enum> …`, `placements.<id> …`; who uses it: `process <pid> <bytes> <gi> <ci>` (-1: none);
 * `legacy 1`: MIG UUIDs as drivers before 470 wrote them.
 */
#include "stub.h"

enum { MAXIMUM_INSTANCES = 16, PROFILES = 18, ENGINES = 5, HOPPER = 9, NO_INSTANCE = 0xFFFFFFFF };

typedef struct {
    unsigned int version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} ProfileInfoV2;

typedef struct {
    unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
} ProfileInfo;

typedef struct {
    unsigned int start, size;
} Placement;

typedef struct {
    void *device;
    unsigned int id, profileId;
    Placement placement;
} InstanceInfo;

typedef struct {
    unsigned int id, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copy, decoder, encoder, jpeg, ofa;
} ComputeProfileInfo;

typedef struct {
    void *device, *gpuInstance;
    unsigned int id, profileId;
    Placement placement;
} ComputeInfo;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} ProcessInfo;

_Static_assert(sizeof(ProfileInfoV2) == 152 && sizeof(InstanceInfo) == 24 && sizeof(ComputeInfo) == 32 &&
                   sizeof(ProcessInfo) == 24,
               "the layout of the real library");

typedef struct {
    int used, gpu;
    unsigned int id;
    ProfileInfo profile;
    Placement placement;
    int computes;
    char uuid[64];
    char handle;
} Instance;

typedef struct {
    int known;
    unsigned int current, pending, compute_mode, created;
    Instance instances[MAXIMUM_INSTANCES];
} Card;

static Card cards[MAXIMUM_GPUS];

void forget_instances(void)
{
    memset(cards, 0, sizeof cards);
}

static Card *card_of(int gpu)
{
    Card *card = &cards[gpu];
    const char *mode = find(gpu, "mig");

    if (!card->known && mode)
        card->current = card->pending = (unsigned int)atoi(mode);
    card->known = 1;
    return card;
}

/* The instance whose compute instance a MIG device handle stands for; NULL for the handle of a GPU. */
static Instance *mig_of(const void *handle)
{
    for (int gpu = 0; gpu < gpu_count; gpu++)
        for (int i = 0; i < MAXIMUM_INSTANCES; i++)
            if (handle == &cards[gpu].instances[i].handle)
                return &cards[gpu].instances[i];
    return NULL;
}

const char *mig_uuid(const void *handle, int *gpu)
{
    const Instance *instance = mig_of(handle);

    if (instance)
        *gpu = instance->gpu;
    return instance ? instance->uuid : NULL;
}

/* --- what the board offers */

/* `profile.<enum> <id> <slices> <instances> <multiprocessors> <copy> <decoder> <encoder> <jpeg> <ofa> <MiB> <name>` */
static int read_profile(int gpu, unsigned int number, ProfileInfo *info, char *name)
{
    char key[32];
    const char *value;

    snprintf(key, sizeof key, "profile.%u", number);
    value = find(gpu, key);
    if (!value)
        return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    return sscanf(value, "%u %u %u %u %u %u %u %u %u %llu %63s", &info->id, &info->sliceCount, &info->instanceCount,
                  &info->multiprocessorCount, &info->copyEngineCount, &info->decoderCount, &info->encoderCount,
                  &info->jpegCount, &info->ofaCount, &info->memorySizeMB, name) == 11
               ? SUCCESS
               : UNKNOWN;
}

static int profile_with_id(int gpu, unsigned int id, ProfileInfo *info)
{
    char name[64];

    for (unsigned int number = 0; number < PROFILES; number++)
        if (read_profile(gpu, number, info, name) == SUCCESS && info->id == id)
            return SUCCESS;
    return INVALID_ARGUMENT;
}

/* `placements.<id> <start>:<size> …` */
static int read_placements(int gpu, unsigned int id, Placement *places, unsigned int room, unsigned int *found)
{
    char key[32];
    char value[128];

    *found = 0;
    snprintf(key, sizeof key, "placements.%u", id);
    if (!find(gpu, key))
        return NOT_SUPPORTED;
    snprintf(value, sizeof value, "%s", find(gpu, key));
    for (char *place = strtok(value, " "); place; place = strtok(NULL, " ")) {
        Placement read;
        if (sscanf(place, "%u:%u", &read.start, &read.size) != 2)
            return UNKNOWN;
        if (places && *found == room)
            return INSUFFICIENT_SIZE;
        if (places)
            places[*found] = read;
        ++*found;
    }
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(void *handle, unsigned int profile, ProfileInfoV2 *info)
{
    int code = enter(index_of(handle), __func__);
    ProfileInfo read;
    char name[64];

    if (code == SUCCESS)
        code = read_profile(index_of(handle), profile, &read, name);
    if (code != SUCCESS)
        return code;
    if (info->version != (sizeof *info | 2U << 24))
        return ARGUMENT_VERSION_MISMATCH;
    memcpy(&info->id, &read, offsetof(ProfileInfo, memorySizeMB));
    info->memorySizeMB = read.memorySizeMB;
    snprintf(info->name, sizeof info->name, "MIG %s", name);
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceProfileInfo(void *handle, unsigned int profile, ProfileInfo *info)
{
    int code = enter(index_of(handle), __func__);
    char name[64];

    return code == SUCCESS ? read_profile(index_of(handle), profile, info, name) : code;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(void *handle, unsigned int id, Placement *places, unsigned int *count)
{
    int code = enter(index_of(handle), __func__);
    unsigned int room = *count;

    return code == SUCCESS ? read_placements(index_of(handle), id, places, room, count) : code;
}

/* --- mode */

static int in_use(int gpu, const Instance *instance)
{
    const char *process;

    for (int i = 0; (process = nth(gpu, "process", i)); i++) {
        long long pid, bytes, gi, ci;
        if (sscanf(process, "%lld %lld %lld %lld", &pid, &bytes, &gi, &ci) != 4)
            abort();
        if (!instance || gi == (long long)instance->id)
            return 1;
    }
    return 0;
}

static int occupied(const Card *card)
{
    for (int i = 0; i < MAXIMUM_INSTANCES; i++)
        if (card->instances[i].used)
            return 1;
    return 0;
}

int nvmlDeviceGetMigMode(void *handle, unsigned int *current, unsigned int *pending)
{
    int code = number(index_of(handle), __func__, "mig", current);

    if (code == SUCCESS) {
        *current = card_of(index_of(handle))->current;
        *pending = card_of(index_of(handle))->pending;
    }
    return code;
}

int nvmlDeviceSetMigMode(void *handle, unsigned int mode, int *activation)
{
    int gpu = index_of(handle);
    int code = number(gpu, __func__, "mig", &(unsigned int){0});
    const char *capability = find(gpu, "capability"), *virtual = find(gpu, "virtual");
    Card *card = card_of(gpu);

    if (code != SUCCESS)
        return code;
    *activation = SUCCESS;
    card->pending = mode;
    if (mode == card->current)
        return SUCCESS;
    if (in_use(gpu, NULL) || occupied(card))
        *activation = IN_USE;
    else if (!capability || atoi(capability) < HOPPER || (virtual && atoi(virtual)))
        *activation = 16; /* RESET_REQUIRED */
    else
        card->current = mode;
    return SUCCESS;
}

/* --- GPU instances */

static unsigned int slices(int gpu, unsigned int *compute, ProfileInfo *largest)
{
    unsigned int memory = 0, widest = 0;

    *compute = 0;
    for (unsigned int n = 0; n < PROFILES; n++) {
        Placement places[64];
        ProfileInfo info;
        char name[64];
        unsigned int count;
        if (read_profile(gpu, n, &info, name) != SUCCESS || read_placements(gpu, info.id, places, 64, &count) != SUCCESS)
            continue;
        for (unsigned int i = 0; i < count; i++)
            if (places[i].start + places[i].size > memory)
                memory = places[i].start + places[i].size;
        if (info.sliceCount * info.instanceCount > *compute)
            *compute = info.sliceCount * info.instanceCount;
        if (places[0].size > widest) {
            widest = places[0].size;
            *largest = info;
        }
    }
    return memory;
}

static int fits(int gpu, const ProfileInfo *profile, const Placement *place)
{
    const Card *card = card_of(gpu);
    unsigned int compute, used = profile->sliceCount, same = 0;
    unsigned int engines[ENGINES];
    ProfileInfo largest;

    slices(gpu, &compute, &largest);
    memcpy(engines, &profile->copyEngineCount, sizeof engines);
    for (int i = 0; i < MAXIMUM_INSTANCES; i++) {
        const Instance *there = &card->instances[i];
        if (!there->used)
            continue;
        if (there->placement.start < place->start + place->size &&
            place->start < there->placement.start + there->placement.size)
            return 0;
        used += there->profile.sliceCount;
        same += there->profile.id == profile->id;
        for (int e = 0; e < ENGINES; e++)
            engines[e] += (&there->profile.copyEngineCount)[e];
    }
    for (int e = 0; e < ENGINES; e++)
        if ((&largest.copyEngineCount)[e] && engines[e] > (&largest.copyEngineCount)[e])
            return 0;
    return used <= compute && same < profile->instanceCount;
}

static Instance *instance_with_id(int gpu, unsigned int id)
{
    Card *card = card_of(gpu);

    for (int i = 0; i < MAXIMUM_INSTANCES; i++)
        if (card->instances[i].used && card->instances[i].id == id)
            return &card->instances[i];
    return NULL;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(void *handle, unsigned int profile, const Placement *place, void **created)
{
    int gpu = index_of(handle);
    int code = enter(gpu, __func__);
    Card *card = card_of(gpu);
    Placement places[64];
    ProfileInfo info, largest;
    unsigned int count, compute, legal = 0;

    if (code != SUCCESS)
        return code;
    if (!card->current)
        return NOT_SUPPORTED;
    if (profile_with_id(gpu, profile, &info) != SUCCESS || read_placements(gpu, profile, places, 64, &count) != SUCCESS)
        return INVALID_ARGUMENT;
    for (unsigned int i = 0; i < count; i++)
        legal |= places[i].start == place->start && places[i].size == place->size;
    if (!legal)
        return INVALID_ARGUMENT;
    if (!fits(gpu, &info, place))
        return INSUFFICIENT_RESOURCES;
    for (int i = 0; i < MAXIMUM_INSTANCES; i++) {
        Instance *instance = &card->instances[i];
        if (instance->used)
            continue;
        instance->id = slices(gpu, &compute, &largest) / place->size - 1 + place->start / place->size;
        while (instance_with_id(gpu, instance->id))
            instance->id++;
        instance->used = 1;
        instance->gpu = gpu;
        instance->profile = info;
        instance->placement = *place;
        instance->computes = 0;
        *created = instance;
        return SUCCESS;
    }
    return INSUFFICIENT_RESOURCES;
}

int nvmlDeviceGetGpuInstances(void *handle, unsigned int profile, void **found, unsigned int *count)
{
    int gpu = index_of(handle);
    int code = enter(gpu, __func__);
    Card *card = card_of(gpu);

    if (code != SUCCESS)
        return code;
    if (!card->current)
        return NOT_SUPPORTED;
    *count = 0;
    for (int i = 0; i < MAXIMUM_INSTANCES; i++)
        if (card->instances[i].used && card->instances[i].profile.id == profile)
            found[(*count)++] = &card->instances[i];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceById(void *handle, unsigned int id, void **found)
{
    int gpu = index_of(handle);
    int code = enter(gpu, __func__);

    if (code != SUCCESS)
        return code;
    if (!card_of(gpu)->current)
        return NOT_SUPPORTED;
    *found = instance_with_id(gpu, id);
    return *found ? SUCCESS : NOT_FOUND;
}

int nvmlGpuInstanceGetInfo(const Instance *instance, InstanceInfo *info)
{
    int code = enter(instance->gpu, __func__);

    if (code == SUCCESS)
        *info = (InstanceInfo){handle_of(instance->gpu), instance->id, instance->profile.id, instance->placement};
    return code;
}

int nvmlGpuInstanceDestroy(Instance *instance)
{
    int code = enter(instance->gpu, __func__);

    if (code != SUCCESS)
        return code;
    if (instance->computes || in_use(instance->gpu, instance))
        return IN_USE;
    instance->used = 0;
    return SUCCESS;
}

/* --- compute instances: one for each GPU instance, as wide as that */

static const unsigned int widths[] = {1, 2, 3, 4, 7, 8, 6, 1, 7};

int nvmlGpuInstanceGetComputeInstanceProfileInfo(const Instance *instance, unsigned int profile, unsigned int engine,
                                                 ComputeProfileInfo *info)
{
    int code = enter(instance->gpu, __func__);

    if (code != SUCCESS)
        return code;
    if (engine != 0 || profile >= sizeof widths / sizeof *widths)
        return INVALID_ARGUMENT;
    if (widths[profile] > instance->profile.sliceCount)
        return NOT_SUPPORTED;
    memset(info, 0, sizeof *info);
    info->id = profile;
    info->sliceCount = widths[profile];
    info->instanceCount = instance->profile.sliceCount / widths[profile];
    return SUCCESS;
}

int nvmlGpuInstanceCreateComputeInstance(Instance *instance, unsigned int profile, void **created)
{
    int code = enter(instance->gpu, __func__);
    Card *card = card_of(instance->gpu);

    if (code != SUCCESS)
        return code;
    if (profile >= sizeof widths / sizeof *widths || widths[profile] != instance->profile.sliceCount)
        return INVALID_ARGUMENT;
    if (instance->computes)
        return INSUFFICIENT_RESOURCES;
    instance->computes = 1;
    if (find(instance->gpu, "legacy"))
        snprintf(instance->uuid, sizeof instance->uuid, "MIG-%s/%u/0", find(instance->gpu, "uuid"), instance->id);
    else
        snprintf(instance->uuid, sizeof instance->uuid, "MIG-%08x-0000-4000-8000-%012x",
                 (unsigned int)instance->gpu, ++card->created);
    *created = instance;
    return SUCCESS;
}

int nvmlGpuInstanceGetComputeInstanceById(Instance *instance, unsigned int id, void **found)
{
    int code = enter(instance->gpu, __func__);

    if (code != SUCCESS)
        return code;
    *found = instance;
    return instance->computes && id == 0 ? SUCCESS : NOT_FOUND;
}

int nvmlComputeInstanceGetInfo_v2(Instance *instance, ComputeInfo *info)
{
    int code = enter(instance->gpu, __func__);

    if (code != SUCCESS)
        return code;
    memset(info, 0, sizeof *info);
    info->device = handle_of(instance->gpu);
    info->gpuInstance = instance;
    return SUCCESS;
}

int nvmlComputeInstanceDestroy(Instance *instance)
{
    int code = enter(instance->gpu, __func__);

    if (code != SUCCESS)
        return code;
    if (in_use(instance->gpu, instance))
        return IN_USE;
    instance->computes = 0;
    return SUCCESS;
}

/* --- MIG devices: indices have holes */

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned int *count)
{
    int code = number(index_of(handle), __func__, "mig", count);

    *count = MAXIMUM_INSTANCES;
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned int index, void **device)
{
    int code = enter(index_of(handle), __func__);
    Instance *instance;

    if (code != SUCCESS)
        return code;
    if (index >= MAXIMUM_INSTANCES)
        return INVALID_ARGUMENT;
    instance = &card_of(index_of(handle))->instances[index];
    *device = &instance->handle;
    return instance->used && instance->computes ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned int *id)
{
    Instance *instance = mig_of(handle);

    if (!instance)
        return INVALID_ARGUMENT;
    *id = instance->id;
    return enter(instance->gpu, __func__);
}

int nvmlDeviceGetComputeInstanceId(void *handle, unsigned int *id)
{
    Instance *instance = mig_of(handle);

    if (!instance)
        return INVALID_ARGUMENT;
    *id = 0;
    return enter(instance->gpu, __func__);
}

/* --- who uses a GPU, and who may */

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, ProcessInfo *infos)
{
    Instance *instance = mig_of(handle);
    int gpu = instance ? instance->gpu : index_of(handle);
    int code = enter(gpu, __func__);
    unsigned int room = *count, found = 0;
    const char *process;

    if (code != SUCCESS)
        return code;
    for (int i = 0; (process = nth(gpu, "process", i)); i++) {
        long long pid, bytes, gi, ci;
        if (sscanf(process, "%lld %lld %lld %lld", &pid, &bytes, &gi, &ci) != 4)
            return UNKNOWN;
        if (instance ? gi != (long long)instance->id : card_of(gpu)->current && gi >= 0)
            continue;
        if (infos && found < room)
            infos[found] = (ProcessInfo){(unsigned int)pid, bytes < 0 ? ~0ULL : (unsigned long long)bytes,
                                         instance ? (unsigned int)gi : NO_INSTANCE,
                                         instance ? (unsigned int)ci : NO_INSTANCE};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeMode(void *handle, unsigned int *mode)
{
    int code = enter(index_of(handle), __func__);

    *mode = card_of(index_of(handle))->compute_mode;
    return code;
}

int nvmlDeviceSetComputeMode(void *handle, unsigned int mode)
{
    int code = enter(index_of(handle), __func__);
    Card *card = card_of(index_of(handle));

    if (code != SUCCESS)
        return code;
    if (card->current || mode == 1)
        return NOT_SUPPORTED;
    card->compute_mode = mode;
    return SUCCESS;
}
