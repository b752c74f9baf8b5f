/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices and contexts.
 *
 * A clmgk_context ties the library to one OpenCL context and one of its devices. It holds the device's facts, the
 * compiled programs of its plans, and the location of the program cache on disk. Plans share programs; a program is
 * freed when its last plan is released. The context retains the caller's OpenCL context and device as long as it
 * lives.
 */
#ifndef CLMGK_CONTEXT_H
#define CLMGK_CONTEXT_H

#include "status.h"
#include "variants.h"

/* The application may define CL_TARGET_OPENCL_VERSION itself, as 120 or more. The default declares all OpenCL calls, as
 * CL/cl.h does by default, but without CL/cl.h's compile-time note. */
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

    /* Root of the program cache; its files are in cache_dir/programs. NULL: the environment variable CLMGK_CACHE_DIR,
     * or, if unset, $XDG_CACHE_HOME/clmgk (~/.cache/clmgk). An empty string, here or in CLMGK_CACHE_DIR: no files.
     * Devices whose driver keeps programs (clmgk_program_keeper) never use the files. */
    const char *cache_dir;
    uint64_t cache_max_bytes; /* beyond this size the cache removes its oldest entries; 0: 256 MiB */

    /* Folder of kernel sources (cl/) that replace the embedded ones, for kernel development. NULL: the environment
     * variable CLMGK_KERNEL_DIR, or, if unset or empty, the embedded sources. */
    const char *kernel_dir;

    /* Folder of the tuning cache, tuning.txt (tuning.h). NULL: cache_dir/tuning; if cache_dir is NULL too, the
     * environment variables that tuning.h names. An empty string: no file; the values shipped in the library still
     * apply. */
    const char *tuning_dir;
    int32_t untuned; /* 1: ignore tuned values of the file and of the library; use the device class's defaults */

    /* Folder of precompiled programs that an application ships. clmgk_context_save_programs and `clmgk-bench
     * --programs` fill it. The library searches it before the cache, on every device, and never writes to it. NULL: the
     * environment variable CLMGK_PROGRAM_DIR; an empty string, here or there: no folder. A file is used only for the
     * same library version, kernels, options, device and driver, only if it is undamaged, and only if the file and the
     * folder belong to the user or root and nobody else may write them. Other programs are compiled as usual.
     * clmgk_plan_info.origin tells where a plan's programs came from; clmgk_program_dir_get_info tells why a folder is
     * not read. */
    const char *program_dir;

    /* 1: do not use AMX, the matrix unit of x86 CPUs (or on AMD's CPUs AVX512-BF16 in its place), which plans on PoCL
     * use for bf16 arrays, on CPUs with AMX-FP16 for f16 arrays, both only of the softmax families, and for all where
     * the descriptor's precision is bf16. The first plan with AMX asks Linux, once and for the whole process, for
     * permission to use its registers (arch_prctl, ARCH_REQ_XCOMP_PERM). A signal handler's frame then takes 8 KiB
     * more: Linux refuses if an alternate signal stack is too small for it, and refuses such stacks afterwards. 0: the
     * environment variable CLMGK_AMX; its value 0 has the same effect as 1 here. */
    int32_t no_amx;
} clmgk_context_options;

#define CLMGK_CONTEXT_OPTIONS_INIT CLMGK_INIT(clmgk_context_options)

typedef struct clmgk_context clmgk_context;

/*
 * Makes a context. `context` must contain `device`; both are retained. `options` may be NULL (all defaults); its
 * strings are copied. Compiles nothing.
 * Errors: INVALID_VALUE (NULL, struct_size, device not in the context), NO_DEVICE (device without compiler or not
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
    clmgk_engine engine; /* default engine of plans; a plan's problem, options or tuned values may select another */
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
    /* 1: the device should have matrix units that plans use (engine MATRIX: arrays of f16, bf16, NVIDIA's also f32; AMX
     * and AVX512-BF16: engine LANE, bf16 arrays or precision; AMX-FP16: also f16 arrays). A plan's first use tests
     * them; clmgk_plan_info.engine_reason tells why they are not used. */
    int32_t matrix_units;
    char engine_reason[128]; /* why `engine` is the default: "work-items share tiles in local memory" */
    char matrix_unit[32];    /* the newest unit's name, as in clmgk_matrix_unit_info; empty: none */
} clmgk_device_info;

#define CLMGK_DEVICE_INFO_INIT CLMGK_INIT(clmgk_device_info)

/*
 * Lists the usable devices of every platform, in the order of clGetPlatformIDs; skips platforms without devices.
 * Writes at most `capacity` entries to `infos` (NULL if capacity is 0), and the total number of devices to `count`. A
 * system without platforms is not an error: count is 0. The caller sets infos[0].struct_size, which applies to every
 * element.
 */
CLMGK_API clmgk_status clmgk_list_devices(clmgk_device_info *infos, size_t capacity, size_t *count, clmgk_error *error);

/* The facts of one device (platform_index and device_index included). */
CLMGK_API clmgk_status clmgk_get_device_info(cl_device_id device, clmgk_device_info *info, clmgk_error *error);

/*
 * Picks a device. `selector` is "PLATFORM:DEVICE" (two indices), "cpu" or "gpu" (the first device of that class), or a
 * part of a device's or platform's name; case is ignored. NULL or empty: the selector in the environment variable
 * CLMGK_DEVICE unless it is empty, else the first GPU, else the first CPU, else the first device.
 * Errors: NO_DEVICE (no match, or no device; the message gives the reason for each platform), INVALID_VALUE (several
 * matches; the message lists them).
 */
CLMGK_API clmgk_status clmgk_select_device(const char *selector, clmgk_device_info *info, clmgk_error *error);

/* An array on the device. It begins `offset` elements (of the array's type) after the start of `memory`. */
typedef struct clmgk_buffer {
    cl_mem memory; /* NULL: no array */
    uint64_t offset;
} clmgk_buffer;

/* Origin of a plan's programs; if they differ, the highest value. The driver may still have to compile a binary
 * (NVIDIA's binaries are PTX). */
#define CLMGK_PROGRAM_ORIGIN_LIST(X)                                                                                   \
    X(MEMORY, 0, "memory")   /* built earlier in the same context */                                                   \
    X(SHIPPED, 1, "shipped") /* precompiled: a binary from program_dir */                                              \
    X(DISK, 2, "disk")       /* a binary from the program cache */                                                     \
    X(BUILT, 3, "built")     /* built from source; the driver's own cache may have saved the compilation */

typedef enum clmgk_program_origin {
#define CLMGK_PROGRAM_ENUM(name, value, ...) CLMGK_PROGRAM_##name = (value),
    CLMGK_PROGRAM_ORIGIN_LIST(CLMGK_PROGRAM_ENUM)
#undef CLMGK_PROGRAM_ENUM
} clmgk_program_origin;

CLMGK_API const char *clmgk_program_origin_name(clmgk_program_origin origin);
CLMGK_API clmgk_status clmgk_program_origin_from_name(const char *name, clmgk_program_origin *origin,
                                                      clmgk_error *error);

/*
 * Writes the programs of all live plans of the context to `folder`, for clmgk_context_options.program_dir. Creates the
 * folder if it is missing, and keeps files of other programs. Writes each file completely or not at all. *count
 * receives the number of files written, also on failure; `count` may be NULL. CLBlast's kernels are not included. Call
 * it after making the plans. It blocks, and other threads that make plans wait; PoCL compiles each kernel once more (in
 * a form for all work-group sizes). Errors: INVALID_VALUE (NULL, empty folder name), IO (the folder cannot be written,
 * does not belong to the user or root, or may be written by others), UNSUPPORTED (the driver gives no binaries),
 * OUT_OF_*, OPENCL.
 */
CLMGK_API clmgk_status clmgk_context_save_programs(clmgk_context *context, const char *folder, size_t *count,
                                                   clmgk_error *error);

/* The newest matrix unit that plans on a context's device use: on NVIDIA GPUs for f16, bf16 and f32 arrays, on AMD's
 * and Intel's for f16 and bf16, on CPUs (AMX, AVX512-BF16) for bf16 arrays and for other arrays if the descriptor's
 * precision is BF16, with AMX-FP16 also for f16 arrays. The environment variable CLMGK_UNIT, read with a context,
 * allows one unit alone, by its name, or `none`. */
typedef struct clmgk_matrix_unit_info {
    size_t struct_size; /* sizeof(clmgk_matrix_unit_info); CLMGK_MATRIX_UNIT_INFO_INIT sets it */
    char name[32];      /* NVIDIA: "wgmma", "mma.sync"; AMD: "mfma", "wmma", "wmma-gfx12"; Intel: "dpas", "dpas-8"; x86:
                           "amx", "amx-fp16", "avx512-bf16"; empty: none */
    char reason[512]; /* why (newer) units that the device should have are not used, or not for a type; empty: they are
                       */
} clmgk_matrix_unit_info;

#define CLMGK_MATRIX_UNIT_INFO_INIT CLMGK_INIT(clmgk_matrix_unit_info)

/* Tests the units that the device should have: the first call, or the first plan that can use them, compiles and runs a
 * small kernel for each. A plan may still use an older unit than this, or none: clmgk_plan_info.engine_reason. Errors:
 * INVALID_VALUE (NULL, struct_size). */
CLMGK_API clmgk_status clmgk_context_get_matrix_unit(clmgk_context *context, clmgk_matrix_unit_info *info,
                                                     clmgk_error *error);

/*
 * The first use of a device that nobody has tried: all but CPUs and NVIDIA's GPUs. Before a plan takes an engine for
 * the first time, for each family of variants (mixture, admixture, linear), a small problem runs on it, forward and
 * backward, and its results are compared with stored ones. If they are wrong, plans take another engine, unless their
 * options name it (clmgk_plan_info.engine_reason). The program cache keeps the verdict for the next process.
 */
typedef struct clmgk_first_use_info {
    size_t struct_size;  /* sizeof(clmgk_first_use_info); CLMGK_FIRST_USE_INFO_INIT sets it */
    char verdicts[1024]; /* "mixture: simt right; admixture: not used yet; ..."; empty: the device has been tried */
} clmgk_first_use_info;

#define CLMGK_FIRST_USE_INFO_INIT CLMGK_INIT(clmgk_first_use_info)

/* The verdicts so far, of the context and of the program cache. Runs nothing. Errors: INVALID_VALUE (NULL,
 * struct_size), OUT_OF_HOST_MEMORY. */
CLMGK_API clmgk_status clmgk_context_get_first_use(clmgk_context *context, clmgk_first_use_info *info,
                                                   clmgk_error *error);

/* Who keeps compiled programs from one process to the next. DRIVER applies to PoCL 3 and later on CPUs, unless
 * POCL_KERNEL_CACHE=0 is set or PoCL's cache folder is not writable. (The library does not ask PoCL for binaries,
 * because PoCL would compile everything a second time.) */
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
    char note[CLMGK_ERROR_MESSAGE_SIZE]; /* why programs cannot be written there; empty: they can */
} clmgk_cache_info;

#define CLMGK_CACHE_INFO_INIT CLMGK_INIT(clmgk_cache_info)

/* Location and size of the program cache. `cache_dir` as in clmgk_context_options. */
CLMGK_API clmgk_status clmgk_cache_get_info(const char *cache_dir, clmgk_cache_info *info, clmgk_error *error);

/* Location and size of a folder of precompiled programs; `program_dir` as in clmgk_context_options. Returns IO with the
 * reason if the library does not read the folder. */
CLMGK_API clmgk_status clmgk_program_dir_get_info(const char *program_dir, clmgk_cache_info *info, clmgk_error *error);

/* Removes the cache's programs and no other files. A missing folder counts as an empty cache. */
CLMGK_API clmgk_status clmgk_cache_clear(const char *cache_dir, clmgk_error *error);

/* Version of the linked library, for example "0.1.0". CLMGK_VERSION is the version of the header. */
CLMGK_API const char *clmgk_version(void);

#endif
