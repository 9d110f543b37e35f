/*
 * How well GPUs are: `ecc <count>`, `remap <correctable> <uncorrectable> <pending> <failed>`, `retired 0|1`,
 * `recovery <action>`, `clocks <bits>`, `down <links>`; `xid <code> <gi> <ci>` (-1: none) is reported once,
 * `events 0` tells none.
 */
#include "stub.h"

enum { RECOVERY_ACTION = 230, XID = 8, VALUE_UNSIGNED_INT = 1, EVENT_SETS = 8 };

typedef struct {
    uint32_t fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    int32_t valueType, nvmlReturn;
    union {
        double dVal;
        unsigned int uiVal;
        unsigned long long ullVal;
    } value;
} FieldValue;

typedef struct {
    void *device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} EventData;

_Static_assert(sizeof(FieldValue) == 40 && sizeof(EventData) == 32, "the layout of the real library");

typedef struct {
    int used;
    char registered[MAXIMUM_GPUS];
} EventSet;

static EventSet sets[EVENT_SETS];

int nvmlDeviceGetTotalEccErrors(void *handle, unsigned int type, unsigned int counter, unsigned long long *count)
{
    unsigned int value = 0;
    int code = number(index_of(handle), __func__, "ecc", &value);

    if (code == SUCCESS && (type != 1 || counter != 0))
        return INVALID_ARGUMENT;
    *count = value;
    return code;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned int *correctable, unsigned int *uncorrectable,
                              unsigned int *pending, unsigned int *failed)
{
    char value[64];
    int code = text(index_of(handle), __func__, "remap", value, sizeof value);

    if (code == SUCCESS && sscanf(value, "%u %u %u %u", correctable, uncorrectable, pending, failed) != 4)
        return UNKNOWN;
    return code;
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned int *pending)
{
    return number(index_of(handle), __func__, "retired", pending);
}

int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values)
{
    int code = enter(index_of(handle), __func__);

    for (int i = 0; code == SUCCESS && i < count; i++) {
        const char *action = find(index_of(handle), "recovery");
        values[i].nvmlReturn = action && values[i].fieldId == RECOVERY_ACTION ? SUCCESS : NOT_SUPPORTED;
        values[i].valueType = VALUE_UNSIGNED_INT;
        values[i].value.uiVal = action ? (unsigned int)atoi(action) : 0;
    }
    return code;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *reasons)
{
    unsigned int value = 0;
    int code = number(index_of(handle), __func__, "clocks", &value);

    *reasons = value;
    return code;
}

/* --- events */

int nvmlEventSetCreate(EventSet **set)
{
    int code = enter(SYSTEM, __func__);

    if (code != SUCCESS)
        return code;
    for (int i = 0; i < EVENT_SETS; i++)
        if (!sets[i].used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = 1;
            *set = &sets[i];
            return SUCCESS;
        }
    return UNKNOWN;
}

int nvmlEventSetFree(EventSet *set)
{
    set->used = 0;
    return SUCCESS;
}

int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types)
{
    const char *events = find(index_of(handle), "events");

    *types = events && atoi(events) == 0 ? 0 : XID;
    return enter(index_of(handle), __func__);
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, EventSet *set)
{
    int code = enter(index_of(handle), __func__);

    if (code == SUCCESS && types == XID)
        set->registered[index_of(handle)] = 1;
    return code;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned int timeout_ms)
{
    int code = enter(SYSTEM, __func__);

    (void)timeout_ms; /* time passes for nobody here */
    if (code != SUCCESS)
        return code;
    for (int gpu = 0; gpu < gpu_count; gpu++) {
        const char *xid = find(gpu, "xid");
        long long value, gi, ci;
        if (!xid || !set->registered[gpu])
            continue;
        if (sscanf(xid, "%lld %lld %lld", &value, &gi, &ci) != 3)
            return UNKNOWN;
        stub_remove(gpu, "xid");
        *data = (EventData){handle_of(gpu), XID, (unsigned long long)value, (unsigned int)gi, (unsigned int)ci};
        return SUCCESS;
    }
    return TIMEOUT;
}
