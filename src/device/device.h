/* SPDX-License-Identifier: Apache-2.0 */
/* The OpenCL device layer: facts, kernel sources, programs with their binary cache, launches.
 * The only place that calls clBuildProgram and clEnqueueNDRangeKernel. */
#ifndef MGK_DEVICE_H
#define MGK_DEVICE_H

#include "base/base.h"
#include "clmgk/context.h"
#include "engine/units.clh"

/* ---- facts ------------------------------------------------------------------------------------------------ */

typedef enum mgk_runtime {
    MGK_RUNTIME_OTHER = 0,
    MGK_RUNTIME_POCL,
    MGK_RUNTIME_RUSTICL,
    MGK_RUNTIME_INTEL_CPU,
    MGK_RUNTIME_NVIDIA,
    MGK_RUNTIME_OCLGRIND
} mgk_runtime;

/* The maker of a GPU. */
typedef enum mgk_gpu { MGK_GPU_OTHER = 0, MGK_GPU_NVIDIA, MGK_GPU_AMD, MGK_GPU_INTEL } mgk_gpu;

/* Method of exchanges between work-items through registers. All zero: none. */
typedef struct mgk_sub_group {
    bool known;
    int shuffle; /* a value of the kernels' flag SHUFFLE */
    int size;    /* consecutive work-items */
} mgk_sub_group;

/* A unit that multiplies small matrices. All zero: not looked for. */
typedef struct mgk_matrix_unit {
    bool known;
    int unit;             /* a value of the kernels' flag MATRIX_UNIT; 0: none */
    bool alone;           /* CLMGK_UNIT allows no older one */
    uint32_t wrong_types; /* set of 1 << clmgk_dtype, of numbers that it does not multiply rightly */
    char why[512];        /* why newer units of the architecture, or types, are not used; empty: there are none */
} mgk_matrix_unit;

enum { MGK_MATRIX_UNITS = MATRIX_UNITS };

/* Sizes of a unit of the engine `matrix`, as its kernels have them (engine/units.clh). All zero: it is another's. */
typedef struct mgk_unit_sizes {
    int lanes, rows, columns, depth, row_lanes, words;
    int held, most_tiles, widest, most_sums, most_of_several; /* that registers hold */
} mgk_unit_sizes;

/* Room of a compute unit for the work-groups that are resident on it together. registers = 0: unknown, as on CPUs,
 * whose work-groups run one after another. */
typedef struct mgk_unit {
    uint32_t registers; /* of 32 bits */
    uint32_t work_items, work_groups;
    uint64_t local_bytes, local_of_group; /* of_group: extra bytes of each work-group */
} mgk_unit;

typedef struct mgk_device_facts {
    clmgk_device_info info; /* without the engine, which src/engine chooses (engine/engine.h) */
    mgk_runtime runtime;    /* from the platform's name, so that it is known before any trial build */
    char opencl_version[128];
    char platform_version[256];
    bool usable;                 /* available, and with a compiler */
    bool parallel_builds;        /* the driver compiles programs of several threads at the same time */
    bool simd_vectors;           /* the compiler turns a work-item's wide vectors into SIMD registers */
    bool x86_avx512dq;           /* of the host's CPU, where the device is that CPU (PoCL, Intel's CPU runtime) */
    bool x86_two_units;          /* the same: it makes two multiply-adds of 16 floats in a cycle */
    bool x86_amx;                /* the same: it has tile registers that multiply bf16 numbers, and rounds to bf16 */
    bool x86_amx_f16;            /* the same: they multiply f16 numbers, too */
    bool x86_dots;               /* the same: it has none, but multiplies pairs of bf16 numbers faster than floats */
    bool local_is_global;        /* local memory is ordinary memory: CL_DEVICE_LOCAL_MEM_TYPE */
    uint64_t work_item_limit;    /* CL_DEVICE_MAX_WORK_ITEM_SIZES[0] */
    mgk_sub_group sub_group;     /* zero unless a plan sets it from mgk_context_sub_group */
    mgk_matrix_unit matrix_unit; /* the same, from mgk_context_matrix_unit */
    int least_sub_group;         /* Intel's GPUs: the smallest sub-group that a kernel may demand; 0: none */
    bool intel_matrix_mad;       /* the same: they have cl_intel_subgroup_matrix_multiply_accumulate */
    uint32_t unit_registers;     /* of a compute unit, as the driver states them; 0: it does not */
    uint64_t unit_local_bytes;   /* the same: local memory of a compute unit */
    uint64_t dynamic_local; /* bytes of local memory that a launch may ask for; 0 unless a plan sets it, for CUDA */
} mgk_device_facts;

/* The host's CPU as in clmgk_device_info.architecture: "x86-64 AuthenticAMD 25/17 avx512"; empty if unknown. */
void mgk_cpu_name(char *target, size_t size);
void mgk_cpu_describe(const char *vendor, uint32_t signature, const char *vectors, char *target, size_t size);
bool mgk_cpu_has_avx512dq(void);

/* True if the CPU has tile registers for bf16 numbers (AMX) and instructions that round to bf16 (AVX512-BF16), and the
 * operating system keeps the registers for programs that it permits to use them. */
bool mgk_cpu_has_amx(void);

/* True if tile registers, where the CPU has them, multiply f16 numbers, too. */
bool mgk_cpu_has_amx_f16(void);

/* True if the CPU's instructions for pairs of bf16 numbers (AVX512-BF16) multiply more numbers in a cycle than those
 * for floats: on AMD's. On a Xeon they multiply half as many (docs/engine.md). */
bool mgk_cpu_has_dots(void);

/* True if a CPU with AVX-512 makes two multiply-adds of 16 floats in a cycle. */
bool mgk_cpu_makes_two(const char *vendor, uint32_t signature);
bool mgk_cpu_has_two_units(void);

/* Includes platform_index and device_index. */
clmgk_status mgk_device_get_facts(cl_device_id device, mgk_device_facts *facts, clmgk_error *error);

/* OTHER if the device is not a GPU. */
mgk_gpu mgk_gpu_of(const mgk_device_facts *facts);

/* Compute capability: 90 of the architecture "sm_90"; 0: unknown, or not NVIDIA's. */
int mgk_nvidia_capability(const mgk_device_facts *facts);

/* The room of a compute unit. */
mgk_unit mgk_unit_of(const mgk_device_facts *facts);

/* True if the driver's own cache of compiled programs replaces ours. */
bool mgk_driver_keeps_programs(const mgk_device_facts *facts);

/* ERROR_IO, with advice, if the driver offers no device or can't compile because it can't write its files. */
clmgk_status mgk_driver_check_folder(mgk_runtime runtime, clmgk_error *error);

/* ERROR_IO, with advice, if the file system of the driver's files is full: its compiler may then end the process. */
clmgk_status mgk_driver_check_room(mgk_runtime runtime, clmgk_error *error);

/* The keeper of the device's programs; our own cache is in `cache_path` (NULL: none). */
clmgk_program_keeper mgk_program_keeper(const mgk_device_facts *facts, const char *cache_path);

/* A runtime's usual short name ("pocl"); empty for MGK_RUNTIME_OTHER. */
const char *mgk_runtime_name(mgk_runtime runtime);

/* Name, version and runtime of a platform, which needs no device. */
clmgk_status mgk_platform_get_facts(cl_platform_id platform, mgk_device_facts *facts, clmgk_error *error);

/* All platforms, and a platform's devices, in *out (mgk_free with NULL). None at all is no error: *out is NULL. */
clmgk_status mgk_platform_list(cl_platform_id **out, cl_uint *count, clmgk_error *error);
clmgk_status mgk_platform_devices(cl_platform_id platform, cl_device_id **out, cl_uint *count, clmgk_error *error);

/* Finds whether the device has an extension of this name. */
clmgk_status mgk_device_has_extension(cl_device_id device, const char *name, bool *found, clmgk_error *error);

/* ---- options ---------------------------------------------------------------------------------------------- */

/* Options that a compiler may not know: a program is then built without them (mgk_program.refused). */

/* Intel's compilers: twice the registers for half the hardware threads, on processors with that choice. */
#define MGK_MOST_REGISTERS "-cl-intel-256-GRF-per-thread"

/* Ours: the compiler's binary is edited (edited.h), for instructions that it refuses. Assemblers may miscompile such a
 * program, so it needs a verdict. */
#define MGK_EDITED_PTX "-DEDITED_PTX=1"

/* Ours, a flag of kernels: bytes of the matrix engine's tiles, whose local memory a launch in CUDA gives. OpenCL can't
 * launch the program. */
#define MGK_DYNAMIC_LOCAL "-DDYNAMIC_LOCAL="

/* NVIDIA's: most registers of a work-item, in kernels that do not state the size of their work-group. */
#define MGK_REGISTERS_LIMIT "-cl-nv-maxrregcount="

/* Ours: the program uses a matrix unit that nobody has seen at work. Like an edited one, it needs a verdict. */
#define MGK_UNTRIED_UNIT "-DUNTRIED_UNIT=1"

/* ---- context ---------------------------------------------------------------------------------------------- */

typedef struct mgk_program mgk_program;

/* A verdict on an engine's kernels of a family, on a device that nobody has tried (attention/first_use.c). */
typedef struct mgk_verdict {
    enum { MGK_VERDICT_UNREAD, MGK_VERDICT_NONE, MGK_VERDICT_RIGHT, MGK_VERDICT_WRONG } known;
    char wrong[256]; /* the reason */
} mgk_verdict;
enum { MGK_VERDICTS = 9 };

struct clmgk_context {
    clmgk_allocator allocator;
    cl_context context;
    cl_device_id device;
    mgk_device_facts facts;
    char *cache_path; /* the folder of programs; NULL: no files */
    uint64_t cache_max_bytes;
    clmgk_program_keeper keeper; /* LIBRARY: programs are read from cache_path and written there */
    char *program_dir;           /* programs made ahead; NULL: none */
    char *kernel_dir;            /* NULL: embedded sources */
    bool no_amx;                 /* the caller, or the environment, refuses it */
    int allowed_unit;            /* by CLMGK_UNIT: the only one; MGK_NO_UNIT: none; 0: all */
    struct mgk_tuning *tuning;   /* tuned values (tuning/database.h); NULL: ignored */
    cl_mem stand_in;             /* bound in place of a launch's missing arrays */

    /* Guards `references`, `programs`, `sub_group`, `matrix_unit`, `cuda`, `verdicts` and saving. Signalled when a
     * program of the list was built, or failed and left the list. */
    mgk_monitor monitor;
    int references;
    mgk_program *programs; /* made or released last first; some are kept though no plan has them */
    int most_idle;         /* most programs of the list without plans; constant */
    mgk_sub_group sub_group;
    mgk_matrix_unit matrix_unit[MGK_MATRIX_UNITS]; /* facts of each; of unit 0 nothing */
    struct mgk_cuda *cuda;                         /* the device in CUDA (device/cuda.h); NULL: not opened */
    mgk_verdict verdicts[MGK_VERDICTS];            /* of each family, of each engine */
};

/* Bytes of a stand-in. */
#define MGK_STAND_IN_BYTES (64 << 10)

void mgk_context_retain(clmgk_context *context);

/* ---- kernel sources --------------------------------------------------------------------------------------- */

/* One file of cl/, embedded at build time (generated table; ends with a NULL name). */
typedef struct mgk_embedded_file {
    const char *name;
    const char *text;
    size_t length;
} mgk_embedded_file;
extern const mgk_embedded_file mgk_embedded_files[];

/* Appends the text of kernel file `name` to `out`. The first `#include "x"` of each file is replaced by the file's
 * text, with #line directives, even where a condition excludes it: conditions are not evaluated. So is `#include
 * ENGINE_FILE(x)`, where x is a file of the engine that the compiler options name by -DENGINE=<name>
 * (cl/engine/files.clh). Reads from kernel_dir or, if that is NULL, from the embedded table.
 * `mods`: the OpenCL C of a user's score and mask, in place of the file MGK_MODS_FILE or MGK_MASK_FILE; NULL: that
 * file. */
#define MGK_MODS_FILE "attention/mods_text.clh"
#define MGK_MASK_FILE "attention/mask_text.clh"
clmgk_status mgk_source_expand(const char *kernel_dir, const char *name, const char *options, const char *mods,
                               mgk_text *out, clmgk_error *error);

/* ---- programs --------------------------------------------------------------------------------------------- */

/* A built program, shared by the plans of a context, which keeps the latest ones after the last plan's end: the next
 * plan, perhaps of another length, then compiles nothing. */
struct mgk_program {
    mgk_program *next;
    clmgk_context *context;
    int references;     /* 0: only the context keeps it */
    const char *file;   /* of a static table */
    cl_program program; /* NULL: a thread is building it */
    char *key;          /* everything that the binary depends on */
    char *options;
    clmgk_program_origin origin; /* of the first get */
    char *refused; /* the option that the compiler refused, so that the program was built without it; NULL: none */
    bool saved;    /* the binary is on disk, or never will be */
    clmgk_error unsaved; /* why the binary could not be saved; constant after mgk_program_save */

    char *edited; /* the driver's input in place of its own binary; NULL: none */
    size_t edited_length;
    /* guarded by the mutex */
    bool unverified;   /* needs a verdict of mgk_program_judge before it is used or saved */
    clmgk_error wrong; /* the verdict: why it must not be used */

    void *cuda_module; /* the program in CUDA (device/cuda.h), which guards it; NULL: not loaded */
};

/*
 * The program of kernel file `file` with compiler options `options` (-D…): from the context's list, from program_dir,
 * from the cache on disk if the library is the keeper, or built. `origin` and `compile_ms` describe this call. A
 * doubtful cache file means a rebuild; a cache that cannot be written is no error. Release with mgk_program_release.
 * `mods`: as of mgk_source_expand; options that say so have no program without them.
 */
clmgk_status mgk_program_get(clmgk_context *context, const char *file, const char *options, const char *mods,
                             mgk_program **out, clmgk_program_origin *origin, double *compile_ms, clmgk_error *error);

/* Writes a program's binary to the cache, if it was built and not yet saved and the library is the keeper. Call it
 * after the program's first launch, when PoCL finishes compiling. A failure is noted in `unsaved`. A program that is
 * wrong, or has no verdict, is not written. */
void mgk_program_save(mgk_program *program);

/* True if a program's options ask for its text to be edited (MGK_EDITED_PTX). */
bool mgk_program_is_edited(const mgk_program *program);

/* True if a program needs a verdict. */
bool mgk_program_is_unverified(const mgk_program *program);

/* Fails, UNSUPPORTED, if the verdict on a program that the caller holds is "wrong": perhaps another thread's. */
clmgk_status mgk_program_check(const mgk_program *program, clmgk_error *error);

/* Gives a program its verdict. NULL: its results are right, and it is saved. Else the reason why they are wrong: it is
 * saved in the program's place, and mgk_program_get fails with it, UNSUPPORTED, while the context keeps the program. */
void mgk_program_judge(mgk_program *program, const char *wrong);

/* Destroys the programs that only the context keeps; at its end all programs. */
void mgk_programs_clear(clmgk_context *context);

/* Writes the binaries of all plans' programs to a folder that can serve as a program_dir. *count (NULL: not
 * needed): the number of binaries written. */
clmgk_status mgk_programs_ship(clmgk_context *context, const char *folder, size_t *count, clmgk_error *error);

void mgk_program_release(mgk_program *program);

/* The device's sub-groups. If the device may have any, the first call compiles and runs a probe and waits for it; any
 * failure there means that there are none. */
mgk_sub_group mgk_context_sub_group(clmgk_context *context);

/* Units for small matrices, values of MATRIX_UNIT, belong to an engine and a maker, whose newer units follow older
 * ones. The one before a unit; 0: none. */
int mgk_matrix_unit_older(int unit);

/* True if `unit` is `newest`, an older unit of its engine and maker, or 0. */
bool mgk_matrix_unit_includes(int newest, int unit);

/* The value of CLMGK_UNIT (NULL or empty: all units) as the field of a context. */
enum { MGK_NO_UNIT = -1 };
clmgk_status mgk_matrix_unit_read_allowed(const char *value, int *allowed, clmgk_error *error);

/* True if a plan may use a unit, or none (0), where facts->matrix_unit was found. */
bool mgk_matrix_unit_allows(const mgk_device_facts *facts, int unit);

/* `newest`, or the next older unit, of the device's architecture. */
int mgk_matrix_unit_of(const mgk_device_facts *facts, int newest);

/* True if the kernels of unit AMX make its products by AVX512-BF16, on a CPU without AMX. */
bool mgk_matrix_unit_has_dots(const mgk_device_facts *facts, int unit);

/* True of units that have no products of f32 numbers, nor of two types (engine/units.clh). */
bool mgk_matrix_unit_is_direct(int unit);

const mgk_unit_sizes *mgk_matrix_unit_sizes(int unit);

/* Its name in messages; empty for 0. */
const char *mgk_matrix_unit_name(const mgk_device_facts *facts, int unit);

/* The file of a unit's probe, and its compiler options. */
enum { MGK_UNIT_OPTIONS = 96 };
const char *mgk_matrix_unit_probe(const mgk_device_facts *facts, int unit, char *options, size_t size);

/* Newest unit of the device, up to `newest`. The first call for a unit compiles and runs its probe and waits for it; a
 * unit counts only if all older ones of the architecture are right. */
mgk_matrix_unit mgk_context_matrix_unit(clmgk_context *context, int newest);

/* ---- kernels ---------------------------------------------------------------------------------------------- */

/* A compiled kernel's needs, as the driver reports them; 0 if unknown. */
typedef struct mgk_kernel_needs {
    size_t work_group;      /* the most work-items of a work-group */
    uint64_t local_bytes;   /* of a work-group */
    uint64_t private_bytes; /* of a work-item: arrays and spilled registers */
} mgk_kernel_needs;

mgk_kernel_needs mgk_kernel_measure(cl_kernel kernel, cl_device_id device);

/* ---- launches --------------------------------------------------------------------------------------------- */

/* One kernel argument: a buffer (size sizeof(cl_mem)) or a value. */
typedef struct mgk_kernel_arg {
    size_t size;
    const void *value;
} mgk_kernel_arg;

typedef struct mgk_launch {
    cl_uint dimensions;
    size_t global[3];
    size_t local[3];
} mgk_launch;

/* Sets `count` arguments and enqueues the kernel; if global[0] is 0, enqueues only a marker. The caller holds the lock
 * that guards `kernel`. */
clmgk_status mgk_launch_kernel(cl_command_queue queue, cl_kernel kernel, const mgk_launch *launch, size_t count,
                               const mgk_kernel_arg *args, cl_uint num_wait, const cl_event *wait_list, cl_event *event,
                               clmgk_error *error);

#endif
