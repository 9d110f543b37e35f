/* What the parts of the stub share: the table of answers, return codes, and structs of the NVML API reference. */
#ifndef STUB_H
#define STUB_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HANG = -1,
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN = 999
};
enum { SYSTEM = -1, MAXIMUM_GPUS = 64 };

extern int gpu_count;

/* The value of a GPU's (or SYSTEM's) key, NULL where there is none; `nth`: of several lines with that key. */
const char *find(int gpu, const char *key);
const char *nth(int gpu, const char *key, int number);

/* Whether the call of a function goes well. */
int enter(int gpu, const char *function);

/* The same, with the value of a key as answer. */
int text(int gpu, const char *function, const char *key, char *target, unsigned int length);
int number(int gpu, const char *function, const char *key, unsigned int *target);

int index_of(const void *handle);
void *handle_of(int gpu);

/* For tests in the same process: adds a line to the table, removes all with a key. */
void stub_add(int gpu, const char *key, const char *value);
void stub_remove(int gpu, const char *key);

/* mig.c */
void forget_instances(void);
const char *mig_uuid(const void *handle, int *gpu);

#endif
