/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases to measure, for clmgk-bench and clmgk-tune: which there are, their arrays, their check, and how one is run.
 *
 *     choices.c   lists on the command line  arrays.c    arrays, on the device and for the reference
 *     shapes.c    sizes, as data             validate.c  rows of the outputs, or a smaller problem, by the reference
 *     problem.c   descriptors and costs      runner.c    plans with their arrays, and timed calls
 *     baselines.c cases that others are compared with
 */
#ifndef BENCH_CASES_H
#define BENCH_CASES_H

#include "opencl.h"
#include "reference/reference.h"
#include "tool.h"
#include "work.h"

/* ---- what is to be measured -------------------------------------------------------------------------------- */

enum {
    BENCH_SUITE_QUICK = 1,
    BENCH_SUITE_PAPER = 2,
    BENCH_SUITE_FULL = 4,
    BENCH_SUITE_ADMIXTURE = 8,
    BENCH_SUITE_SHORT = 16,
    BENCH_SUITE_LINEAR = 32,
    BENCH_SUITE_GPU = 64,
    BENCH_SUITE_SCORES = 128
};

/* More cases of softmax beside the variants that a shape compares: causal, every other storage type, without the
 * window, and forward in f32 with keys and values in f16. */
enum { BENCH_WITH_CAUSAL = 1, BENCH_WITH_STORAGE = 2, BENCH_WITH_FULL = 4, BENCH_WITH_CACHES = 8 };

/* BENCH_PASSES can be asked for. BENCH_MASK, of a text's case, makes the classes of a mask's blocks and nothing else.
 */
typedef enum bench_pass { BENCH_FORWARD, BENCH_BACKWARD, BENCH_PASSES, BENCH_MASK } bench_pass;
const char *bench_pass_name(bench_pass pass);

#define BENCH_DOCUMENTS 8 /* in the S keys, of equal length */

/* A score or mask as a line of text (docs/scores.md), in the place of a shape's causal mask, window, ALiBi and
 * soft-cap. */
typedef struct bench_text {
    const char *name; /* NULL: the list ends here */
    const char *score_mod, *mask_mod;
    const char *slopes;    /* the name of an array [H]: ALiBi's slopes */
    const char *documents; /* the name of an array [S]: the document of each key */
    int64_t sparsity;      /* of the pairs that the shape's own masks leave, the mask leaves one in so many */
    bool classes;          /* the case is of BENCH_MASK, beside those of the forward pass */
} bench_text;

/* Masks and modifiers; zero: none. */
typedef struct bench_modifiers {
    bool window;
    int64_t window_left, window_right;
    int64_t sequences;       /* packed, of uneven lengths */
    bool bias, bias_axis[4]; /* the axes of [B,H,N,S] that it has in full; the others are 1 */
    bool alibi, sinks;
    double dropout;
    bool state; /* an incoming state and a new one */
    double softcap;
    const bench_text *texts; /* cases of softmax beside the variants; NULL: none */
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
    int64_t short_batch; /* for a shorter run of the same comparison; 0: the batch */
    int64_t width;       /* of the model; 0: that of all heads */
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
    int64_t components; /* 0: the shape's */
    int64_t hidden;     /* units of a hidden layer of mixed heads */
} bench_variant;

#define BENCH_MAX_VARIANTS   16
#define BENCH_MAX_SHAPES     64
#define BENCH_MAX_OWN_SUITES 4

/* What a program was asked to go through. */
typedef struct bench_request {
    bench_variant variants[BENCH_MAX_VARIANTS];
    size_t variant_count;
    clmgk_dtype dtypes[CLMGK_DTYPES]; /* of Q */
    size_t dtype_count;
    clmgk_storage dtype_k, dtype_v, dtype_o;
    clmgk_precision precision;
    bench_pass passes[BENCH_PASSES];
    size_t pass_count;
    uint32_t gradients;       /* set of clmgk_gradient: each case computes those that it has */
    uint32_t named_gradients; /* those of them that some case must have */
    bench_shape shapes[BENCH_MAX_SHAPES];
    size_t shape_count;
    bool texts;            /* the shapes' texts, too */
    clmgk_feature feature; /* this and the next two: of the variants of the linear family */
    int32_t feature_order;
    int64_t features;
} bench_request;

/* Values of the options of these names, appended to the request. */
tool_exit bench_parse_gradients(const char *text, bench_request *request, tool_error *error);
tool_exit bench_parse_pass(const char *text, bench_request *request, tool_error *error);

/* Options that give a size without a name: rows of a program's table, in this order. */
#define BENCH_SIZE_OPTIONS(X)                                                                                          \
    X(BATCH, "batch", "B", "batch of a shape given by these options; default 1")                                       \
    X(HEADS, "heads", "H", "query heads, default 8; ratios compare with softmax with that many heads")                 \
    X(KV_HEADS, "kv-heads", "G", "key/value heads, default: each variant's heads")                                     \
    X(COMPONENTS, "components", "M",                                                                                   \
      "components per key of mgk and smgk, global heads of the admixture family; default 2")                           \
    X(LENGTH, "length", "N", "queries; required without a named shape")                                                \
    X(LENGTH_K, "length-k", "S", "keys, default N")                                                                    \
    X(HEAD_SIZE, "head-size", "D", "query/key head size; required without a named shape")                              \
    X(VALUE_SIZE, "value-size", "E", "value head size, default D")                                                     \
    X(CAUSAL, "causal", NULL, "hide later keys")                                                                       \
    X(WINDOW, "window", "L,R", "keys i-L .. i+R along the diagonal; -1: no limit")                                     \
    X(PACKED, "packed", "T", "the N rows are T sequences of uneven lengths, back to back")                             \
    X(BIAS, "bias", "AXES",                                                                                            \
      "an additive bias: b, h, n, s for a full axis, 1 for an axis of size 1: 1hns is [1,H,N,S]")                      \
    X(ALIBI, "alibi", NULL, "adds a distance penalty with one slope per head")                                         \
    X(SINKS, "sinks", NULL, "adds a logit without a key, one per head")                                                \
    X(DROPOUT, "dropout", "P", "probability of dropping a weight")                                                     \
    X(STATE, "state", NULL, "linear family: an input state, and the new state as an output")
#define BENCH_SIZE_NUMBER(name, ...) BENCH_SIZE_##name,
enum { BENCH_SIZE_OPTIONS(BENCH_SIZE_NUMBER) BENCH_SIZE_OPTION_COUNT };
#undef BENCH_SIZE_NUMBER

/* Storage types, as rows and as the structure's fields below. */
#define BENCH_DTYPE_OPTIONS(X)                                                                                         \
    X(DTYPE, "dtype", "T,...", "storage types of Q:" TOOL_DTYPE_NAMES "; default f32")                                 \
    X(DTYPE_K, "dtype-k", "T",                                                                                         \
      "storage type of K and its gradient; default: as --dtype.\n"                                                     \
      "Forward also e4m3, e5m2, and int8 with a scale for each row")                                                   \
    X(DTYPE_V, "dtype-v", "T", "storage type of V and its gradient, likewise")                                         \
    X(DTYPE_O, "dtype-o", "T", "storage type of O and its gradient; default: as --dtype")                              \
    X(PRECISION, "precision", "NAME",                                                                                  \
      "exact (default), or the least precision of products of f32 or f16 arrays that may be used: tf32, bf16")

/* Options that give the feature map of the linear family, as rows and as the structure's fields below. */
#define BENCH_FEATURE_OPTIONS(X)                                                                                       \
    X(FEATURE, "feature", "NAME", "linear family: elu1 (default), relu, exp, dpfp, favor")                             \
    X(FEATURE_ORDER, "feature-order", "V", "order of feature map dpfp: 1 (default) to 3")                              \
    X(FEATURES, "features", "R", "rows of the random projection of feature map favor; default D")

/* The numbers and the table of a program's options: its lists OPTIONS_BEFORE_SIZES and OPTIONS_BEHIND_SIZES, and
 * between them those of sizes and feature maps. */
#define BENCH_OPTIONS_TABLE                                                                                            \
    enum {                                                                                                             \
        OPTION_FIRST = TOOL_STANDARD_OPTION_COUNT - 1,                                                                 \
        OPTIONS_BEFORE_SIZES(TOOL_OPTION_NUMBER) OPTION_SIZES,                                                         \
        OPTION_LAST_SIZE = OPTION_SIZES + BENCH_SIZE_OPTION_COUNT - 1,                                                 \
        BENCH_FEATURE_OPTIONS(TOOL_OPTION_NUMBER) OPTIONS_BEHIND_SIZES(TOOL_OPTION_NUMBER) OPTION_COUNT                \
    };                                                                                                                 \
    static const tool_option options_table[OPTION_COUNT] = {                                                           \
        TOOL_STANDARD_OPTIONS, OPTIONS_BEFORE_SIZES(TOOL_OPTION_ROW) BENCH_SIZE_OPTIONS(TOOL_OPTION_ROW)               \
                                   BENCH_FEATURE_OPTIONS(TOOL_OPTION_ROW) OPTIONS_BEHIND_SIZES(TOOL_OPTION_ROW)}

/* The name of the first of these options that was given; NULL: none was. `values` has their values. */
const char *bench_given_size(const char *const *values);

/* The values of the options of these names; NULL: not given. `sizes` are those of BENCH_SIZE_OPTIONS. Without variants:
 * softmax, and MGK and sMGK with half the heads; of the suite admixture: softmax and that family; of the suite linear:
 * linear attention, and MLK and sMLK with half the heads; of the suite scores: softmax. */
typedef struct bench_choice {
    const char *suite, *shapes, *variants, *dtypes;
    const char *dtype_k, *dtype_v, *dtype_o, *precision;
    const char *feature, *feature_order, *features;
    const char *const *sizes;
    const char *default_suite;
    const char *const *own_suites; /* names of suites that the program parses itself, at most BENCH_MAX_OWN_SUITES */
    size_t own_suite_count;
} bench_choice;
/* Those that BENCH_OPTIONS_TABLE numbers. */
#define BENCH_CHOICE(given)                                                                                            \
    .suite = (given)[OPTION_SUITE], .shapes = (given)[OPTION_SHAPES], .sizes = (given) + OPTION_SIZES,                 \
    .variants = (given)[OPTION_VARIANTS], .feature = (given)[OPTION_FEATURE],                                          \
    .feature_order = (given)[OPTION_FEATURE_ORDER], .features = (given)[OPTION_FEATURES],                              \
    .dtypes = (given)[OPTION_DTYPE], .dtype_k = (given)[OPTION_DTYPE_K], .dtype_v = (given)[OPTION_DTYPE_V],           \
    .dtype_o = (given)[OPTION_DTYPE_O], .precision = (given)[OPTION_PRECISION]
/* *suite: one of BENCH_SUITE_...; 0: none. */
tool_exit bench_parse_choice(const bench_choice *choice, bench_request *request, unsigned *suite, tool_error *error);
/* Those of Q, K, V, the shift and the mixing. */
#define BENCH_DEFAULT_GRADIENTS                                                                                        \
    (CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_SHIFT | CLMGK_GRADIENT_MIX)

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
    const bench_text *text;    /* NULL: none */
    clmgk_attention_desc desc; /* resolved; `gradients` is 0 in the forward pass */
    bool refused;              /* the device cannot: `reason` */
    char reason[CLMGK_ERROR_MESSAGE_SIZE];

    clmgk_engine engine; /* this and the next three, and the tuning: of the pass */
    char *parameters;
    char *compiler_options;
    char *kernel;
    char *cache_note; /* why a program of the plan is not kept for the next process; empty: all are */
    clmgk_tuning_source tuning;
    clmgk_precision precision; /* of the plan's products */
    double flops;
    int64_t width; /* of a layer around the case, and its operations and parameters as the papers count them */
    clmgk_counts counts;
    uint64_t array_bytes; /* of all that a call is given: what it must move at least */
    uint64_t workspace_bytes;
    uint64_t private_bytes;      /* of a work-item, as the driver reports it */
    double compile_ms;           /* of all passes of the plan */
    clmgk_program_origin origin; /* of the plan's programs, in the first of its runs */
    double first_cold_ms;        /* < 0: the program had been compiled for another case */
    double first_warm_ms;        /* < 0: no cache on disk */
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
    int64_t batch; /* the shape's, or its short one */
    bench_case *cases;
    size_t count;
} bench_group;

/* All groups that are asked for, pass by pass, type by type, the variants in order, then the shape's own cases.
 * Fails where a descriptor is not valid, and where no case has one of the gradients. */
tool_exit bench_make_groups(const bench_request *request, bool short_batches, bench_group **groups, tool_error *error);
void bench_free_groups(const bench_request *request, bench_group *groups);

/* The case of variant number `variant` in pass number `pass` of those asked for; of the first storage type. */
const bench_case *bench_case_of(const bench_request *request, const bench_group *group, size_t pass, size_t variant);

/* Counts a case's operations. `plan` NULL: not known yet. */
tool_exit bench_count_flops(bench_case *one, const clmgk_plan_info *plan, tool_error *error);

/* Its name, or "given". */
const char *bench_shape_name(const bench_shape *shape);

/* "mgk 4", "hard-fish 2x8", "gfish 2x6x8", "linear 8 favor-256" */
typedef struct bench_label {
    char text[88];
} bench_label;
bench_label bench_case_label(const bench_case *one);

/* What tells it from other cases: shape, variant, types, pass, sizes, masks and modifiers. */
json_t *bench_case_json(const bench_case *one);

/* Whether its plan took parameters that were measured on a device. */
bool bench_is_tuned(const bench_case *one);

/* Whether the device holds the arrays of a group, and the host what the check needs; the cases' reasons say why not. */
bool bench_fits(const clmgk_device_info *info, bench_group *group);

/* The softmax case that `one` is compared to: same pass, storage and masks, the shape's number of heads; of a text the
 * case with the shape's own masks and modifiers. NULL: not measured. */
const bench_case *bench_baseline(const bench_group *group, const bench_case *one);

/* The case of linear attention that `one`, of the linear family, is compared to likewise. NULL: not measured, or `one`
 * is of another family. */
const bench_case *bench_linear_baseline(const bench_group *group, const bench_case *one);

/* The case that differs from `full` only by the shape's window. NULL: it was not measured. */
const bench_case *bench_windowed(const bench_group *group, const bench_case *full);

/* "q,k,v" of a set of clmgk_gradient. */
typedef struct bench_names {
    char text[128];
} bench_names;
bench_names bench_gradient_names(uint32_t set);
/* "dmix-weight", the array of bit number `which`, and "mix-weight", the gradient; valid for the whole run. */
const char *bench_gradient_array(int which);
const char *bench_gradient_name(int which);

/* ---- arrays ------------------------------------------------------------------------------------------------- */

#define BENCH_PATTERN 1048583 /* a prime: heads and batches of any size hold different numbers */

/* Arrays of a group: inputs are one pattern of normals over and over, so that all cases of a storage type share
 * them and none is kept on the host. Arrays of a smaller problem are the beginning of those of a larger one. */
typedef struct bench_arrays {
    cl_mem input[CLMGK_ALL_DTYPES][CLMGK_ARRAYS]; /* Q, K, V, dO */
    double *pattern[CLMGK_ALL_DTYPES];            /* [BENCH_PATTERN], as stored; integers times their scale */
    cl_mem output[CLMGK_ARRAYS];                  /* O and L of forward passes, gradients */
} bench_arrays;

/* On failure `arrays` holds what bench_arrays_release takes. */
tool_exit bench_arrays_create(const tool_device *device, const bench_group *group, bench_arrays *arrays,
                              tool_error *error);
void bench_arrays_release(bench_arrays *arrays);

/* What a case has of its own, and all its arrays by name. */
typedef struct bench_own {
    cl_mem memory[CLMGK_ARRAYS]; /* parameters and workspace; O and L where they are inputs */
    clmgk_attention_args args;
} bench_own;

/* On failure `own` holds what bench_own_release takes. */
tool_exit bench_own_create(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                           size_t workspace_bytes, bench_own *own, tool_error *error);
void bench_own_release(bench_own *own);

/* Whether the pass writes the array. */
bool bench_is_output(bench_pass pass, clmgk_array array);

/* Elements of the arrays of a resolved descriptor; 0: it has no such array. */
typedef struct bench_elements {
    size_t of[CLMGK_ARRAYS];
} bench_elements;
bench_elements bench_count_elements(const clmgk_attention_desc *desc);

/* Bytes of the arrays of a call of the pass, without the workspace; bytes of the states among them. */
uint64_t bench_array_bytes(const clmgk_attention_desc *desc, bench_pass pass);
uint64_t bench_state_bytes(const clmgk_attention_desc *desc);

/* One (b,h) of a case, or b with all its heads where these are mixed, as a problem of its own; the bytes of its inputs
 * as double, which a check of sampled rows takes of the host's memory. */
clmgk_attention_desc bench_slice(const clmgk_attention_desc *desc);
uint64_t bench_slice_bytes(const clmgk_attention_desc *desc);

/* Gives a text's array, if there is one, the size that the descriptor's heads or keys ask for. */
void bench_size_capture(clmgk_attention_desc *desc);

/* offsets[t] of a packed descriptor: the sequences' lengths grow from half the mean to one and a half. */
int32_t bench_offset(const clmgk_attention_desc *desc, int64_t t);

/* The same arrays as numbers, as a problem of the reference. */
typedef struct bench_values {
    void *of[CLMGK_ARRAYS]; /* double; offsets: int32_t */
    clmgk_ref_problem problem;
} bench_values;

/* On failure `values` holds what bench_values_release takes. */
tool_exit bench_values_create(const clmgk_attention_desc *desc, bench_values *values, tool_error *error);
void bench_values_release(bench_values *values);
/* The values of a part, whose arrays begin at the elements `start` of those of the `whole`. */
tool_exit bench_values_fill(const bench_arrays *arrays, const clmgk_attention_desc *whole, const bench_elements *start,
                            bench_values *values, tool_error *error);

/* ---- checks ---------------------------------------------------------------------------------------------------- */

/* Compares sampled rows of the outputs in `args` with the reference, for about `seconds`. */
tool_exit bench_validate_rows(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                              const clmgk_attention_args *args, double seconds, bench_error_found *found,
                              tool_error *error);

/* A problem made smaller, for a check of all its results: few heads (all of a mixed variant) and batches, fewer queries
 * and keys, of no round numbers, so that its products are about so many multiplications. */
#define BENCH_REDUCED_MULTIPLICATIONS 4e7 /* about a second of the reference */
tool_exit bench_reduce(const clmgk_attention_desc *desc, bench_pass pass, double multiplications,
                       clmgk_attention_desc *reduced, tool_error *error);

/* Resolves a descriptor whose sizes were changed, with dense arrays. */
tool_exit bench_make_dense(clmgk_attention_desc *desc, tool_error *error);

/* Compares all outputs (forward), or all gradients (backward), of a smaller problem with the reference. */
tool_exit bench_validate_whole(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                               bench_pass pass, const bench_own *own, bench_error_found *found, tool_error *error);

/* Whether every gradient of a case is there: finite in all elements. `own` was spoiled before the pass. */
tool_exit bench_validate_finite(const tool_device *device, const clmgk_attention_desc *desc, const bench_own *own,
                                bench_error_found *found, tool_error *error);

/* Fills the pass's outputs with NaN, classes of blocks with 0, so that what is not written cannot pass for right. */
tool_exit bench_spoil(const tool_device *device, const clmgk_attention_desc *desc, bench_pass pass,
                      const bench_own *own, tool_error *error);

/* ---- running a case ------------------------------------------------------------------------------------------ */

/* How a context and a plan are made; a name that is NULL has its default. */
typedef struct bench_manner {
    const char *cache_dir, *tuning_dir;
    bool untuned;
    clmgk_engine engine;
    const char *parameters, *backward_parameters;
} bench_manner;

/* A case that is ready to run: in the backward pass O and L are there. The forward pass of a descriptor with
 * use_mask_blocks takes the classes that BENCH_MASK made before it. */
typedef struct bench_runner {
    bench_pass pass;
    clmgk_context *library;
    clmgk_plan *plan;
    bench_own own;
} bench_runner;

/* The plan alone, into an empty `run`. On failure `run` holds what bench_runner_close takes. */
tool_exit bench_runner_plan(const tool_device *device, const bench_manner *manner, const clmgk_attention_desc *desc,
                            bench_runner *run, tool_error *error);

/* Gives a plan its arrays, its outputs spoiled. */
tool_exit bench_runner_fill(const tool_device *device, const bench_arrays *arrays, const clmgk_attention_desc *desc,
                            bench_pass pass, bench_runner *run, tool_error *error);

/* A plan with its arrays, its outputs spoiled; *plan_ms is what making the plan took. On failure `run` holds what
 * bench_runner_close takes. */
tool_exit bench_runner_open(const tool_device *device, const bench_manner *manner, const bench_arrays *arrays,
                            const clmgk_attention_desc *desc, bench_pass pass, bench_runner *run, double *plan_ms,
                            tool_error *error);
void bench_runner_close(bench_runner *run);

/* What the runner's plan says of its pass; texts are the plan's. */
typedef struct bench_pass_info {
    clmgk_engine engine;
    clmgk_tuning_source tuning;
    const char *parameters, *options, *kernel;
    uint64_t workspace_bytes, private_bytes;
} bench_pass_info;
tool_exit bench_runner_info(const bench_runner *run, clmgk_plan_info *plan, bench_pass_info *pass, tool_error *error);

/* Enqueues the pass once. `event`: NULL: none. */
tool_exit bench_enqueue(const tool_device *device, const bench_runner *run, cl_event *event, tool_error *error);

/* Milliseconds a call by the host's clock, and by the device's (negative: not known). */
typedef struct bench_call_time {
    double host, device;
} bench_call_time;
tool_exit bench_time_calls(const tool_device *device, const bench_runner *run, int calls, bench_call_time *time,
                           tool_error *error);

/* How many calls a repetition needs so that it can be timed, and which clock is to be used. */
tool_exit bench_choose_calls(const tool_device *device, const bench_runner *run, int *calls, bool *event_clock,
                             tool_error *error);

/* Runs the whole of a problem and compares it with the reference. */
tool_exit bench_check(const tool_device *device, const bench_manner *manner, const bench_arrays *arrays,
                      const clmgk_attention_desc *desc, bench_pass pass, bench_error_found *found, tool_error *error);

#endif
