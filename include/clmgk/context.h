/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices and contexts.
 *
 * A clmgk_context ties the library to one OpenCL context and one of its devices. It holds the device's facts, the
 * compiled programs of its plans (plans share them; one that no plan uses any more is freed) and the location of the
 * program cache on disk. It only retains and releases the caller's context and device.
 */
#ifndef CLMGK_CONTEXT_H
#define CLMGK_CONTEXT_H

#include "status.h"
#include "variants.h"

/* The program's choice. Without one: all calls, as CL/cl.h has it, but without its note. The library needs 120. */
#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 300
#endif
#ifdef __APPLE__
#include <OpenCL/cl.h>
#else
#include <CL/cl.h>
#endif

#include <stddef.h>
#include <stdint.h>

/* Allocator of the library's host objects. All zero: malloc and free. `allocate` returns memory with malloc's
 * alignment, or NULL; `release` accepts NULL. Both must be thread-safe. */
typedef struct clmgk_allocator {
    void *(*allocate)(size_t bytes, void *user);
    void (*release)(void *memory, void *user);
    void *user;
} clmgk_allocator;

typedef struct clmgk_context_options {
    size_t struct_size; /* sizeof(clmgk_context_options) */
    clmgk_allocator allocator;

    /* Root of the program cache: its files are in cache_dir/programs. NULL: the environment's CLMGK_CACHE_DIR, or, if
     * unset, $XDG_CACHE_HOME/clmgk (~/.cache/clmgk). Empty text, here or in CLMGK_CACHE_DIR: no files. Devices whose
     * driver keeps programs (clmgk_program_keeper) never use the files. */
    const char *cache_dir;
    uint64_t cache_max_bytes; /* the oldest entries beyond this size are removed; 0: 256 MiB */

    /* Folder of kernel sources (cl/) to read in place of the embedded ones: for work on the kernels. NULL: the
     * environment's CLMGK_KERNEL_DIR, or, if unset or empty, the embedded sources. */
    const char *kernel_dir;

    /* Folder of the tuning cache, tuning.txt (tuning.h). NULL: cache_dir/tuning, or, if cache_dir is NULL too, the
     * environment decides. Empty text: no file; the values shipped in the library still apply. */
    const char *tuning_dir;
    int32_t untuned; /* 1: no tuned values, neither the file's nor the library's: defaults of the device's class */

    /* Folder of programs made ahead, which an application ships: clmgk_context_save_programs and `clmgk-tune
     * --programs` fill it. Looked up before the cache, on every device; never written. NULL: the environment's
     * CLMGK_PROGRAM_DIR; empty text, here or there: none. A file serves the same library version, kernels, options,
     * device and driver, and only if it is undamaged and nobody but its owner, the user or root, may write it and the
     * folder; other programs are compiled as ever. clmgk_plan_info.origin tells which; clmgk_program_dir_get_info why a
     * folder is not read. */
    const char *program_dir;
} clmgk_context_options;

#define CLMGK_CONTEXT_OPTIONS_INIT CLMGK_INIT(clmgk_context_options)

typedef struct clmgk_context clmgk_context;

/*
 * Makes a context. `context` must contain `device`; both are retained. `options` may be NULL (all defaults); its
 * strings are copied. Compiles nothing.
 * Errors: INVALID_VALUE (NULL, struct_size, device not of the context), NO_DEVICE (device without compiler or not
 * available), OUT_OF_HOST_MEMORY, OPENCL.
 */
CLMGK_API clmgk_status clmgk_context_create(cl_context context, cl_device_id device,
                                            const clmgk_context_options *options, clmgk_context **out,
                                            clmgk_error *error);

/* Drops the caller's reference; the context lives as long as plans made from it. NULL is allowed. */
CLMGK_API void clmgk_context_release(clmgk_context *context);

/* Kind of a device, from its OpenCL facts. */
#define CLMGK_DEVICE_CLASS_LIST(X)                                                                                     \
    X(CPU, 0, "cpu")                                                                                                   \
    X(GPU, 1, "gpu")                                                                                                   \
    X(OTHER, 2, "other")

typedef enum clmgk_device_class {
#define CLMGK_DEVICE_ENUM(name, value, ...) CLMGK_DEVICE_##name = (value),
    CLMGK_DEVICE_CLASS_LIST(CLMGK_DEVICE_ENUM)
#undef CLMGK_DEVICE_ENUM
} clmgk_device_class;

CLMGK_API const char *clmgk_device_class_name(clmgk_device_class device_class);
CLMGK_API clmgk_status clmgk_device_class_from_name(const char *name, clmgk_device_class *device_class,
                                                    clmgk_error *error);

typedef struct clmgk_device_info {
    size_t struct_size; /* sizeof(clmgk_device_info); CLMGK_DEVICE_INFO_INIT sets it */
    cl_platform_id platform_id;
    cl_device_id device_id;
    uint32_t platform_index; /* PLATFORM of the selector PLATFORM:DEVICE: position in clGetPlatformIDs */
    uint32_t device_index;   /* DEVICE of the selector: position among the platform's devices */
    char platform[128];
    char name[256];
    char vendor[128];
    char driver[128]; /* CL_DRIVER_VERSION */
    clmgk_device_class device_class;
    clmgk_engine engine; /* that of plans, unless their problem, options or measured values make them take another */
    uint32_t compute_units;
    uint32_t clock_mhz;
    uint32_t native_float_lanes; /* CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT */
    uint64_t global_memory_bytes;
    uint64_t local_memory_bytes;
    uint64_t max_allocation_bytes;
    uint64_t max_work_group;
    /* Devices of one architecture share tuned values (tuning.h). CPUs: vector width, vendor, family/model and
     * instruction set ("16 floats, x86-64 AuthenticAMD 25/17 avx512"); NVIDIA: compute capability ("sm_90"); else the
     * device's name. */
    char architecture[64];
    int32_t matrix_units;    /* 1: the engine's products run on units for small matrices */
    char engine_reason[128]; /* why this engine: "work-items share tiles in local memory" */
} clmgk_device_info;

#define CLMGK_DEVICE_INFO_INIT CLMGK_INIT(clmgk_device_info)

/*
 * Lists the usable devices of every platform, in the order of clGetPlatformIDs; platforms without devices are
 * skipped. Writes at most `capacity` entries to `infos` (NULL if capacity is 0) and the full number to `count`: 0, not
 * an error, without any platform. infos[0].struct_size must be set, and is the size of every element.
 */
CLMGK_API clmgk_status clmgk_list_devices(clmgk_device_info *infos, size_t capacity, size_t *count, clmgk_error *error);

/* The facts of one device (platform_index and device_index included). */
CLMGK_API clmgk_status clmgk_get_device_info(cl_device_id device, clmgk_device_info *info, clmgk_error *error);

/*
 * Picks a device. `selector` is "PLATFORM:DEVICE", "cpu" or "gpu" (the first device of that class), or a part of a
 * device's or platform's name; upper and lower case are the same. NULL or empty: the selector in the environment's
 * CLMGK_DEVICE, else the first GPU, else the first CPU, else the first device.
 * Errors: NO_DEVICE (no match, or no device: the message says of each platform why), INVALID_VALUE (several matches:
 * the message lists them).
 */
CLMGK_API clmgk_status clmgk_select_device(const char *selector, clmgk_device_info *info, clmgk_error *error);

/* An array on the device: it begins `offset` elements of its own type after the start of `memory`. */
typedef struct clmgk_buffer {
    cl_mem memory; /* NULL: no array */
    uint64_t offset;
} clmgk_buffer;

/* Origin of a plan's programs; of several programs, the highest value. The driver may still compile a binary of its own
 * (NVIDIA: it is PTX). */
#define CLMGK_PROGRAM_ORIGIN_LIST(X)                                                                                   \
    X(MEMORY, 0, "memory")   /* built earlier in the same context */                                                   \
    X(SHIPPED, 1, "shipped") /* made ahead: a binary of program_dir */                                                 \
    X(DISK, 2, "disk")       /* a binary of the cache */                                                               \
    X(BUILT, 3, "built")     /* given to the driver as source, but its own cache may spare the compilation */

typedef enum clmgk_program_origin {
#define CLMGK_PROGRAM_ENUM(name, value, ...) CLMGK_PROGRAM_##name = (value),
    CLMGK_PROGRAM_ORIGIN_LIST(CLMGK_PROGRAM_ENUM)
#undef CLMGK_PROGRAM_ENUM
} clmgk_program_origin;

CLMGK_API const char *clmgk_program_origin_name(clmgk_program_origin origin);
CLMGK_API clmgk_status clmgk_program_origin_from_name(const char *name, clmgk_program_origin *origin,
                                                      clmgk_error *error);

/*
 * Writes the programs of all live plans of the context to `folder`, which is made if it is missing, for
 * clmgk_context_options.program_dir; files of other programs stay. Each file is written whole or not at all. *count
 * (NULL: not needed): the files written, also on failure. Call it when the plans are made: blocks, and other threads'
 * plans wait; PoCL compiles each kernel once more (in a form for all work-groups). CLBlast's kernels are not among
 * them. Errors: INVALID_VALUE (NULL, empty folder), IO (the folder can't be written, or others than its owner, the user
 * or root, may), UNSUPPORTED (the driver gives no binaries), OUT_OF_*, OPENCL.
 */
CLMGK_API clmgk_status clmgk_context_save_programs(clmgk_context *context, const char *folder, size_t *count,
                                                   clmgk_error *error);

/* Keeper of compiled programs from one process to the next. The driver: PoCL 3 and later on CPUs, unless
 * POCL_KERNEL_CACHE=0 is set or its folder can't be written. (Asking PoCL for binaries would make it compile everything
 * a second time.) */
#define CLMGK_PROGRAM_KEEPER_LIST(X)                                                                                   \
    X(NOBODY, 0, "nobody")   /* each process compiles them */                                                          \
    X(LIBRARY, 1, "library") /* this library, in the program cache below */                                            \
    X(DRIVER, 2, "driver")   /* in its own cache */

typedef enum clmgk_program_keeper {
#define CLMGK_KEEPER_ENUM(name, value, ...) CLMGK_KEEPER_##name = (value),
    CLMGK_PROGRAM_KEEPER_LIST(CLMGK_KEEPER_ENUM)
#undef CLMGK_KEEPER_ENUM
} clmgk_program_keeper;

CLMGK_API const char *clmgk_program_keeper_name(clmgk_program_keeper keeper);
CLMGK_API clmgk_status clmgk_program_keeper_from_name(const char *name, clmgk_program_keeper *keeper,
                                                      clmgk_error *error);

/* The keeper of programs in contexts of `device`. `cache_dir` as in clmgk_context_options. */
CLMGK_API clmgk_status clmgk_cache_get_keeper(const char *cache_dir, cl_device_id device, clmgk_program_keeper *keeper,
                                              clmgk_error *error);

/* The program cache on disk. Not used by devices whose driver keeps programs. */
typedef struct clmgk_cache_info {
    size_t struct_size; /* sizeof(clmgk_cache_info); CLMGK_CACHE_INFO_INIT sets it */
    char path[1024];    /* the folder; empty: no files */
    uint64_t bytes;
    uint64_t entries;
    char note[CLMGK_ERROR_MESSAGE_SIZE]; /* why no program can be written there; empty: nothing is in the way */
} clmgk_cache_info;

#define CLMGK_CACHE_INFO_INIT CLMGK_INIT(clmgk_cache_info)

/* Location and size of the program cache. `cache_dir` as in clmgk_context_options. */
CLMGK_API clmgk_status clmgk_cache_get_info(const char *cache_dir, clmgk_cache_info *info, clmgk_error *error);

/* The same of a folder of programs made ahead; `program_dir` as in clmgk_context_options. IO: why it is not read. */
CLMGK_API clmgk_status clmgk_program_dir_get_info(const char *program_dir, clmgk_cache_info *info, clmgk_error *error);

/* Removes the cache's programs and no other files. A missing folder is an empty cache. */
CLMGK_API clmgk_status clmgk_cache_clear(const char *cache_dir, clmgk_error *error);

/* Version of the linked library, "0.1.0" (CLMGK_VERSION is the header's). */
CLMGK_API const char *clmgk_version(void);

#endif
