/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices and contexts.
 *
 * A clmgk_context ties the library to one OpenCL context and one of its devices. It holds the device's facts, the
 * programs built so far (shared by all plans made from it) and where programs are cached on disk. It never creates
 * or changes anything of the caller's: context and device are retained and released, nothing more.
 */
#ifndef CLMGK_CONTEXT_H
#define CLMGK_CONTEXT_H

#include "status.h"
#include "variants.h"

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#ifdef __APPLE__
#include <OpenCL/cl.h>
#else
#include <CL/cl.h>
#endif

#include <stddef.h>
#include <stdint.h>

/* Memory for the library's own host objects. All zero: malloc and free. `allocate` returns memory aligned as
 * malloc's, or NULL; `release` takes NULL. Both must be thread-safe. */
typedef struct clmgk_allocator {
    void *(*allocate)(size_t bytes, void *user);
    void (*release)(void *memory, void *user);
    void *user;
} clmgk_allocator;

typedef struct clmgk_context_options {
    size_t struct_size; /* sizeof(clmgk_context_options) */
    clmgk_allocator allocator;

    /* Root of the program cache's files (they lie in cache_dir/programs). NULL: the environment decides:
     * CLMGK_CACHE_DIR, or, where that is unset, $XDG_CACHE_HOME/clmgk (~/.cache/clmgk).
     * Empty text, here or in CLMGK_CACHE_DIR: no file is read or written.
     * Where the driver keeps programs (clmgk_program_keeper), none of these files is read or written either. */
    const char *cache_dir;
    uint64_t cache_max_bytes; /* oldest entries beyond this are removed; 0: 256 MiB */

    /* A folder that holds the kernel sources (cl/), read in place of the embedded ones: for work on the kernels.
     * NULL: the environment's CLMGK_KERNEL_DIR, and where that is unset or empty the embedded sources. */
    const char *kernel_dir;

    /* The folder of the tuning cache (tuning.h), which holds tuning.txt. NULL: cache_dir/tuning, and where cache_dir is
     * NULL too, the environment decides. Empty text: no file; what the library has measured itself still applies. */
    const char *tuning_dir;
    int32_t untuned; /* 1: neither file nor the library's own measurements: the defaults of the device's class */
} clmgk_context_options;

#define CLMGK_CONTEXT_OPTIONS_INIT CLMGK_INIT(clmgk_context_options)

typedef struct clmgk_context clmgk_context;

/*
 * Makes a context. `context` must contain `device`; both are retained. `options` may be NULL (all defaults).
 * Compiles nothing. The strings of `options` are copied.
 * Errors: INVALID_VALUE (NULL, struct_size, device not of the context), NO_DEVICE (device without compiler or not
 * available), OUT_OF_HOST_MEMORY, OPENCL.
 */
CLMGK_API clmgk_status clmgk_context_create(cl_context context, cl_device_id device,
                                            const clmgk_context_options *options, clmgk_context **out,
                                            clmgk_error *error);

/* Drops the caller's reference; plans made from the context keep it alive. NULL is allowed. */
CLMGK_API void clmgk_context_release(clmgk_context *context);

/* What kind of device it is, from its OpenCL facts. */
typedef enum clmgk_device_class {
    CLMGK_DEVICE_CPU = 0,
    CLMGK_DEVICE_GPU = 1,
    CLMGK_DEVICE_OTHER = 2
} clmgk_device_class;

typedef struct clmgk_device_info {
    cl_platform_id platform_id;
    cl_device_id device_id;
    uint32_t platform_index; /* PLATFORM of the selector PLATFORM:DEVICE: position in clGetPlatformIDs */
    uint32_t device_index;   /* DEVICE of the selector: position among the platform's devices */
    char platform[128];
    char name[256];
    char vendor[128];
    char driver[128]; /* CL_DRIVER_VERSION */
    clmgk_device_class device_class;
    clmgk_engine engine; /* the engine a plan uses by default */
    uint32_t compute_units;
    uint32_t clock_mhz;
    uint32_t native_float_lanes; /* CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT */
    uint64_t global_memory_bytes;
    uint64_t local_memory_bytes;
    uint64_t max_allocation_bytes;
    uint64_t max_work_group;
    /* What measured values are good for beyond the device itself (tuning.h). CPUs: vector width, vendor, family/model
     * and instruction set ("16 floats, x86-64 AuthenticAMD 25/17 avx512"); NVIDIA: compute capability ("sm_90"); else
     * the device's name. */
    char architecture[64];
} clmgk_device_info;

/*
 * Lists the usable devices of every platform, in the order of clGetPlatformIDs; platforms without devices are
 * skipped. Writes at most `capacity` entries to `infos` (NULL if capacity is 0) and the full number to `count`.
 * No platform at all is not an error: the count is 0.
 */
CLMGK_API clmgk_status clmgk_list_devices(clmgk_device_info *infos, size_t capacity, size_t *count, clmgk_error *error);

/* The facts of one device (platform_index and device_index included). */
CLMGK_API clmgk_status clmgk_get_device_info(cl_device_id device, clmgk_device_info *info, clmgk_error *error);

/*
 * Picks a device. `selector` is "PLATFORM:DEVICE" or a case-insensitive part of a device's or platform's name.
 * NULL or empty: the environment's CLMGK_DEVICE, else the first GPU, else the first CPU, else the first device.
 * Errors: NO_DEVICE (nothing there, nothing matches), INVALID_VALUE (more than one match: the message lists them).
 */
CLMGK_API clmgk_status clmgk_select_device(const char *selector, clmgk_device_info *info, clmgk_error *error);

/* A place in a buffer: `offset` is in elements of the array's own type, any alignment of elements. */
typedef struct clmgk_buffer {
    cl_mem memory; /* NULL: not given */
    uint64_t offset;
} clmgk_buffer;

/* Where a plan's programs came from: of several, the farthest. */
typedef enum clmgk_program_origin {
    CLMGK_PROGRAM_MEMORY = 0, /* built earlier in the same context */
    CLMGK_PROGRAM_DISK = 1,   /* from the cache's file; the driver may still compile it (NVIDIA: it is PTX) */
    CLMGK_PROGRAM_BUILT = 2   /* given to the driver as source: what it has kept itself, it does not compile again */
} clmgk_program_origin;

/* Who keeps compiled programs from one process to the next. */
typedef enum clmgk_program_keeper {
    CLMGK_KEEPER_NOBODY = 0,  /* each process compiles them */
    CLMGK_KEEPER_LIBRARY = 1, /* this library, in the program cache below */
    /* The driver, in a cache of its own, wherever that lies: PoCL 3 and later on CPUs, unless POCL_KERNEL_CACHE=0 is
     * set or its folder can't be written. To ask PoCL for binaries would make it compile everything a second time. */
    CLMGK_KEEPER_DRIVER = 2
} clmgk_program_keeper;

/* "nobody", "library", "driver"; NULL for anything else. */
CLMGK_API const char *clmgk_program_keeper_name(clmgk_program_keeper keeper);

/* Who keeps programs in contexts of `device`. `cache_dir` as in clmgk_context_options. */
CLMGK_API clmgk_status clmgk_cache_get_keeper(const char *cache_dir, cl_device_id device, clmgk_program_keeper *keeper,
                                              clmgk_error *error);

/* The program cache on disk. Devices whose driver keeps programs don't use it. */
typedef struct clmgk_cache_info {
    char path[1024]; /* the folder; empty when no files are used */
    uint64_t bytes;
    uint64_t entries;
} clmgk_cache_info;

/* Where the program cache lies and how large it is. `cache_dir` as in clmgk_context_options. */
CLMGK_API clmgk_status clmgk_cache_get_info(const char *cache_dir, clmgk_cache_info *info, clmgk_error *error);

/* Removes all programs from the cache, nothing else. A folder that does not exist is an empty cache. */
CLMGK_API clmgk_status clmgk_cache_clear(const char *cache_dir, clmgk_error *error);

/* "0.1.0" of the library that was linked (CLMGK_VERSION is that of the header). */
CLMGK_API const char *clmgk_version(void);

#endif
