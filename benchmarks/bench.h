/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clmgk-bench: variants, sizes and devices compared.
 *
 *     options.c   the command line           problem.c   descriptors of a shape's cases, and what they cost
 *     shapes.c    sizes, as data             arrays.c    arrays for them, on the device and for the reference
 *     peak.c      what the device can do     validate.c  rows of the outputs, or a smaller problem, by the reference
 *     report.c    text for people            measure.c   first calls, and runs of a shape's cases in turn
 *     json.c      the stable object, compare.c two of them, plot.c a picture
 */
#ifndef BENCH_H
#define BENCH_H

#include "opencl.h"
#include "output.h"
#include "reference/reference.h"
#include "tool.h"

#include <jansson.h>

/* ---- what is to be measured -------------------------------------------------------------------------------- */

enum { BENCH_SUITE_QUICK = 1, BENCH_SUITE_PAPER = 2, BENCH_SUITE_FULL = 4 };

/* More cases of softmax beside the variants that a shape compares: causal, f16 and bf16, without the window. */
enum { BENCH_WITH_CAUSAL = 1, BENCH_WITH_STORAGE = 2, BENCH_WITH_FULL = 4 };

typedef enum bench_pass { BENCH_FORWARD, BENCH_BACKWARD, BENCH_PASSES } bench_pass;
const char *bench_pass_name(bench_pass pass);

/* Masks and modifiers; zero: none. */
typedef struct bench_modifiers {
    bool window;
    int64_t window_left, window_right;
    int64_t sequences;       /* packed, of uneven lengths */
    bool bias, bias_axis[4]; /* the axes of [B,H,N,S] that it has in full; the others are 1 */
    bool alibi, sinks;
    double dropout;
} bench_modifiers;

/* A figure of the paper: seconds per iteration and gigabytes of the whole network. */
typedef struct bench_figure {
    clmgk_variant variant;
    int64_t heads;
    double seconds;
    double gigabytes;
} bench_figure;

typedef struct bench_shape {
    const char *name; /* NULL: given by the options */
    const char *what;
    unsigned suites;
    unsigned with;
    int64_t batch, heads, kv_heads, components, length, length_k, head_size, value_size; /* 0: the default */
    bool causal;
    const bench_figure *figures; /* of the forward pass; ends with 0 heads; NULL: none */
    bench_modifiers modifiers;
} bench_shape;

extern const bench_shape bench_shapes[];
extern const size_t bench_shape_count;

/* The paper's figure for a variant with so many heads; NULL: none. */
const bench_figure *bench_find_figure(const bench_shape *shape, clmgk_variant variant, int64_t heads);

#define BENCH_HEADS_OF_SHAPE 0
#define BENCH_HEADS_HALF     (-1) /* of the shape's, as the paper compares */

typedef struct bench_variant {
    clmgk_variant variant;
    int64_t heads;
} bench_variant;

#define BENCH_MAX_VARIANTS 16
#define BENCH_MAX_SHAPES   32
#define BENCH_DTYPES       3

typedef struct bench_options {
    const char *device;
    bool all_devices;
    bench_variant variants[BENCH_MAX_VARIANTS];
    size_t variant_count;
    clmgk_dtype dtypes[BENCH_DTYPES];
    size_t dtype_count;
    bench_pass passes[BENCH_PASSES];
    size_t pass_count;
    uint32_t gradients;       /* set of clmgk_gradient: each case computes those that it has */
    uint32_t named_gradients; /* those of them that some case must have */
    bench_shape shapes[BENCH_MAX_SHAPES];
    size_t shape_count;
    clmgk_engine engine;
    const char *parameters, *backward_parameters; /* NULL: the defaults */
    double seconds;                               /* of repeated runs a shape */
    double threshold;                             /* a slow-down that is a regression, as a fraction */
    bool keep_caches;                             /* else: caches of this run's own */
    bool json;
    const char *plot;    /* NULL: none */
    const char *compare; /* NULL: none */
} bench_options;

extern const tool_program bench_program;

tool_exit bench_parse_options(int argc, char **argv, bench_options *options, bool *finished, tool_error *error);

/* ---- cases and their results -------------------------------------------------------------------------------- */

/* What was held against the reference: `array`, of a problem of this size, where it came nearest to its bound. */
typedef struct bench_error_found {
    double max;   /* its largest error */
    double bound; /* its bound */
    const char *array;
    int64_t sampled; /* rows of queries that were checked */
    int64_t batch, heads, length, length_k;
    bool ok;
    char message[512]; /* if not ok */
} bench_error_found;

typedef struct bench_case {
    const bench_shape *shape;
    bench_pass pass;
    clmgk_attention_desc desc; /* resolved; `gradients` is 0 in the forward pass */
    bool refused;              /* the device cannot: `reason` */
    char reason[CLMGK_ERROR_MESSAGE_SIZE];

    clmgk_engine engine; /* this and the next three: of the pass */
    char *parameters;
    char *compiler_options;
    char *kernel;
    double flops;
    uint64_t array_bytes; /* of all that a call is given: what it must move at least */
    uint64_t workspace_bytes;
    double compile_ms;    /* of all passes of the plan */
    double first_cold_ms; /* < 0: the program had been compiled for another case */
    double first_warm_ms; /* < 0: no cache on disk */
    bench_error_found error;
    tool_spread time_ms;
    int repetitions; /* of time_ms; 0: not measured */
    int calls;       /* a repetition */
    bool event_clock;
    uint64_t process_peak_bytes;
} bench_case;

/* The cases of one shape, measured in turn. */
typedef struct bench_group {
    const bench_shape *shape;
    bench_case *cases;
    size_t count;
} bench_group;

/* All groups that the options ask for, pass by pass, type by type, the variants in order, then the shape's own cases.
 * Fails where a descriptor is not valid, and where no case has one of the gradients. */
tool_exit bench_make_groups(const bench_options *options, bench_group **groups, tool_error *error);
void bench_free_groups(const bench_options *options, bench_group *groups);

/* The softmax case that `one` is compared to: same pass, storage and masks, the shape's number of heads. NULL: not
 * measured. */
const bench_case *bench_baseline(const bench_group *group, const bench_case *one);

/* The case with the window of the shape that is otherwise like `full`, a case without it. NULL: none measured. */
const bench_case *bench_windowed(const bench_group *group, const bench_case *full);

typedef struct bench_peaks {
    double fma_gflops;
    double copy_gbps; /* bytes read and bytes written */
    double read_gbps;
} bench_peaks;

/* A device with all that was measured on it. */
typedef struct bench_device {
    tool_device tool;
    const char *cache_dir; /* of this run: empty at its start; NULL: the usual one */
    bench_peaks peaks;
    bench_group *groups;
} bench_device;

double bench_gflops(const bench_case *one);
uint64_t bench_memory_bytes(const bench_case *one);
double bench_fraction_of_peak(const bench_device *device, const bench_case *one);
/* Bytes of K and V over the time, as a part of the measured rate of reading. */
double bench_kv_fraction_of_read(const bench_device *device, const bench_case *one);

/* "q,k,v" of a set of clmgk_gradient. */
typedef struct bench_names {
    char text[64];
} bench_names;
bench_names bench_gradient_names(uint32_t set);
/* The names, in the order of the set's bits. */
extern const char *const bench_gradient_name[CLMGK_REF_GRADIENTS];

/* ---- arrays ------------------------------------------------------------------------------------------------- */

#define BENCH_PATTERN 1048583 /* a prime: heads and batches of any size hold different numbers */

/* Arrays of a group: inputs are one pattern of normals over and over, so that all cases of a storage type share
 * them and none is kept on the host. Arrays of a smaller problem are the beginning of those of a larger one. */
typedef struct bench_arrays {
    cl_mem q[BENCH_DTYPES], k[BENCH_DTYPES], v[BENCH_DTYPES], grad_o[BENCH_DTYPES]; /* by clmgk_dtype */
    double *pattern[BENCH_DTYPES];                                                  /* [BENCH_PATTERN], as stored */
    cl_mem o, lse;
    cl_mem gradients[CLMGK_REF_GRADIENTS];
} bench_arrays;

/* On failure `arrays` holds what bench_arrays_release takes. */
tool_exit bench_arrays_create(const tool_device *device, const bench_group *group, bench_arrays *arrays,
                              tool_error *error);
void bench_arrays_release(bench_arrays *arrays);

/* What a case has of its own, and all its arrays by name. */
typedef struct bench_own {
    cl_mem prior, shift, bias, slopes, sinks, offsets, workspace;
    cl_mem o, lse; /* of a descriptor with gradients: they are inputs there */
    clmgk_attention_args args;
    clmgk_gradient_args gradients;
} bench_own;

/* On failure `own` holds what bench_own_release takes. */
tool_exit bench_own_create(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                           size_t workspace_bytes, bench_own *own, tool_error *error);
void bench_own_release(bench_own *own);
/* The array of a gradient. */
clmgk_buffer *bench_gradient_buffer(clmgk_gradient_args *gradients, clmgk_ref_gradient which);

/* Elements of the arrays of a resolved descriptor; 0: it has no such array. */
typedef struct bench_elements {
    size_t q, k, v, o, lse, prior, shift, bias, slopes, sinks, offsets;
    size_t gradients[CLMGK_REF_GRADIENTS]; /* of the descriptor's set */
} bench_elements;
bench_elements bench_count_elements(const clmgk_attention_desc *desc);

/* Bytes of an element of a gradient. */
size_t bench_gradient_size(const clmgk_attention_desc *desc, clmgk_ref_gradient which);

/* Bytes of the arrays that a call of the pass is given, without the workspace. */
uint64_t bench_array_bytes(const clmgk_attention_desc *desc, bench_pass pass);

/* offsets[t] of a packed descriptor: the sequences' lengths grow from half the mean to one and a half. */
int32_t bench_offset(const clmgk_attention_desc *desc, int64_t t);

/* The same arrays as numbers, as a problem of the reference. */
typedef struct bench_values {
    clmgk_ref_problem problem;
    double *q, *k, *v, *prior, *shift, *bias, *slopes, *sinks, *grad_o;
    int32_t *offsets;
} bench_values;

/* On failure `values` holds what bench_values_release takes. */
tool_exit bench_values_create(const clmgk_attention_desc *desc, bench_values *values, tool_error *error);
void bench_values_release(bench_values *values);
/* The values of a part, whose arrays begin at the elements `start` of those of the `whole`. */
void bench_values_fill(const bench_arrays *arrays, const clmgk_attention_desc *whole, const bench_elements *start,
                       bench_values *values);

/* ---- steps -------------------------------------------------------------------------------------------------- */

/* Measures the peaks and raises device->peaks to them. */
tool_exit bench_measure_peaks(bench_device *device, tool_error *error);

/* Compares sampled rows of the outputs in `args` with the reference, for about `seconds`. */
tool_exit bench_validate_rows(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                              const clmgk_attention_args *args, double seconds, bench_error_found *found,
                              tool_error *error);

/* The case's problem made smaller, for a check of all its results: few heads and batches, fewer queries and keys. */
tool_exit bench_reduce(const clmgk_attention_desc *desc, bench_pass pass, clmgk_attention_desc *reduced,
                       tool_error *error);

/* Compares all outputs (forward), or all gradients (backward), of a smaller problem with the reference. */
tool_exit bench_validate_whole(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                               bench_pass pass, const bench_own *own, bench_error_found *found, tool_error *error);

/* Whether every gradient of a case is there: finite in all elements. `own` was spoiled before the pass. */
tool_exit bench_validate_finite(const tool_device *device, const clmgk_attention_desc *desc, const bench_own *own,
                                bench_error_found *found, tool_error *error);

/* Fills the pass's outputs with NaN, so that what is not written cannot pass for right. */
tool_exit bench_spoil(const tool_device *device, const clmgk_attention_desc *desc, bench_pass pass,
                      const bench_own *own, tool_error *error);

/* Measures all cases of a group. A case that is refused or wrong carries its reason; that is no failure here. */
tool_exit bench_measure_group(bench_device *device, const bench_options *options, bench_group *group,
                              tool_error *error);

/* ---- results ------------------------------------------------------------------------------------------------ */

/* Tables for people. */
void bench_print_device(const bench_options *options, const bench_device *device, FILE *stream);

/* "mgk 4" */
typedef struct bench_label {
    char text[48];
} bench_label;
bench_label bench_case_label(const bench_case *one);

/* The stable JSON object (README.md); NULL: out of memory. */
json_t *bench_json(const bench_options *options, const bench_device *devices, size_t device_count);

/* Reads an earlier object. */
tool_exit bench_load_json(const char *path, json_t **out, tool_error *error);

/* Prints what changed beyond noise to `stream`; TOOL_CHECK_FAILED: something became slower beyond the threshold. */
tool_exit bench_compare(const json_t *before, const json_t *now, double threshold, FILE *stream, tool_error *error);

/* Fails at once, before any measurement, where there is no gnuplot. */
tool_exit bench_plot_check(tool_error *error);
/* Draws into output number `output`. */
tool_exit bench_plot(const bench_options *options, const bench_device *devices, size_t device_count,
                     tool_outputs *outputs, size_t output, tool_error *error);

#endif
