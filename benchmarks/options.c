/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: which devices, variants, sizes, and what to do with the figures. */
#include "bench.h"
#include "resolve.h"

#include <inttypes.h>
#include <string.h>

#define MOST_TUNABLES 32

#define OPTIONS_BEFORE_SIZES(X)                                                                                        \
    X(ALL_DEVICES, "all-devices", NULL,                                                                                \
      "measure on every device, one after another; at last one table of all. Several --device measure\n"               \
      "on those")                                                                                                      \
    X(SUITE, "suite", "NAME",                                                                                          \
      "short (default): some of the papers' sizes, on CPUs with smaller batches\n"                                     \
      "paper: all of the papers' sizes with full batches; quick: three small sizes; full: many sizes\n"                \
      "admixture: the admixture family with 8 heads, beside softmax\n"                                                 \
      "linear: the linear family, with long sequences and decoding\n"                                                  \
      "gpu: long sequences in bf16 and f32, softmax, MGK, sMGK, mixed heads and linear\n"                              \
      "scores: softmax with modifiers built in and as text; documents as text beside full attention\n"                 \
      "layer: the multi-head layer, forward, training and decoding. Default: --batch 4 --heads 8\n"                    \
      "--length 1024 --head-size 64; other options: only --variants, --dtype (one), --device,\n"                       \
      "--seconds, --keep-caches, --json\n"                                                                             \
      "call: one call of a small problem beside an empty kernel. Default: --batch 1 --heads 1\n"                       \
      "--length 16 --head-size 64 --variants softmax; other options as for layer, without --dtype\n"                   \
      "serving: a query of each of --batch sequences of 100 to --length keys, in pages, in int8, with a\n"             \
      "shared prefix; new tokens beside a copy. Default: --batch 64 --heads 8 --kv-heads 2\n"                          \
      "--length 8000 --head-size 64; other options as for call, without --variants")                                   \
    X(SHAPES, "shapes", "NAME,...", "named sizes instead of a suite")                                                  \
    X(VARIANTS, "variants", "A,B:H,C:MxH,...",                                                                         \
      "variants, optionally with a number of heads after a colon, or global and local heads for the\n"                 \
      "admixture family (hard-fish:2x8), with hidden units between them (gfish:2x6x8); default\n"                      \
      "heads: the shape's. Default variants: softmax, and mgk and smgk with half the heads; suite\n"                   \
      "admixture: softmax and that family; suite linear: linear, and mlk and smlk with half the\n"                     \
      "heads; suite scores: softmax")

#define OPTIONS_BEHIND_SIZES(X)                                                                                        \
    X(PASS, "pass", "NAME", "forward (default), backward (apart from its forward pass), or both")                      \
    X(GRADIENTS, "gradients", "A,...",                                                                                 \
      "gradients of the backward pass: q, k, v, prior, variance, shift, bias, sinks, mix,\n"                           \
      "mix-weight, mix-offset, mix-hidden-offset, mix-after, noise, state-c, state-z or all, each for the\n"           \
      "variants that have it. Default: q, k, v, shift, mix")                                                           \
    BENCH_DTYPE_OPTIONS(X)                                                                                             \
    X(SECONDS, "seconds", "X",                                                                                         \
      "repeat the runs of a size for X seconds (at least three times); default 4, short: 1.5,\n"                       \
      "quick and gpu: 0.5")                                                                                            \
    X(KEEP_CACHES, "keep-caches", NULL,                                                                                \
      "use compiled programs from the caches: quicker, but a program from a cache has no cold\n"                       \
      "first call")                                                                                                    \
    X(UNTUNED, "untuned", NULL, "use default parameters instead of tuned ones")                                        \
    X(VERBOSE, "verbose", NULL,                                                                                        \
      "tables of each size as it is measured: shortest and longest times, checks, the paper's\n"                       \
      "figures, counts of operations, peaks; without it, a line for each case")                                        \
    X(PROGRAMS, "programs", "DIR", "write the cases' compiled programs to a folder that an application can ship")      \
    X(PLOT, "plot", "F.svg", "draw times and rates with gnuplot")                                                      \
    X(COMPARE, "compare", "F.json...",                                                                                 \
      "show changes beyond noise since an earlier --json; exit 1 on a regression, or\n"                                \
      "without a common case; another device's file is shown beside this run. Several files: one\n"                    \
      "table, and one picture with --plot, of the cases in them; nothing is measured")                                 \
    X(THRESHOLD, "threshold", "X", "a slow-down by more than X percent, and beyond noise, is a regression; default 5") \
    X(ENGINE, "engine", "NAME", TOOL_ENGINE_NAMES)                                                                     \
    X(PARAMETERS, "parameters", "P", "kernel parameters, name=value,...: for work on the kernels")                     \
    X(BACKWARD_PARAMETERS, "backward-parameters", "P", "the same for the backward pass")                               \
    X(GEMM, "gemm", "MxNxK,...",                                                                                       \
      "matrix products instead of attention, by every provider; layer: the products of a layer.\n"                     \
      "With --device, --dtype, --precision, --seconds (a size; default 1), --keep-caches and\n"                        \
      "--json only")                                                                                                   \
    X(PARALLEL, "parallel", "NAME",                                                                                    \
      "causal attention over ranks by a schedule (ring, all-gather, all-to-all), both passes, strong\n"                \
      "and weak scaling: threads of this process, or processes of mpirun -n N. Default: --batch 1\n"                   \
      "--heads 4 --length 1024 --head-size 64 --variants softmax; other options: only --dtype (one),\n"                \
      "--ranks, --send-rate, --device, --seconds, --keep-caches, --json")                                              \
    X(RANKS, "ranks", "N", "with --parallel: 1, 2, 4, ... threads up to N; default 2")                                 \
    X(SEND_RATE, "send-rate", "GBPS",                                                                                  \
      "with --parallel: a second run whose messages come at this rate, or `equal`: a ring's step in\n"                 \
      "the time that the device computes a step; how much of their time is hidden")

BENCH_OPTIONS_TABLE;

#define ENGINE_VALUE(NAME, value, ...) CLMGK_ENGINE_##NAME,

const tool_program bench_program = {
    .name = "clmgk-bench",
    .summary = "Times attention variants beside each other, each checked against double precision first.\n"
               "Without options: softmax with 8 heads, MGK and sMGK with 4 (two components) over sizes of the\n"
               "papers, beside the figures of the MGK paper's Table 7.",
    .notes = "An unknown name after --shapes lists the known names. The keys of --json are in benchmarks/README.md.",
    .options = options_table,
    .option_count = OPTION_COUNT,
};

/* Whether an engine has a kernel parameter of this name for the variant. */
static bool has_parameter(clmgk_variant variant, clmgk_engine engine, const char *name, size_t length)
{
    clmgk_tunable tunables[MOST_TUNABLES] = {CLMGK_TUNABLE_INIT};
    size_t count = 0;
    const char *const table = clmgk_tunable_table_of(variant, engine);
    if (!table || clmgk_tunable_list(table, tunables, MOST_TUNABLES, &count, NULL) != CLMGK_OK)
        return false;
    bool found = false;
    for (size_t i = 0; i < TOOL_MIN(count, MOST_TUNABLES); i++)
        found = found || (strlen(tunables[i].name) == length && strncmp(tunables[i].name, name, length) == 0);
    return found;
}

static bool is_parameter(const bench_request *request, const char *name, size_t length)
{
    static const clmgk_engine engines[] = {CLMGK_ENGINE_LIST(ENGINE_VALUE)};
    bool found = false;
    for (size_t v = 0; v < request->variant_count; v++)
        for (size_t e = 0; e < TOOL_COUNT(engines); e++)
            found = found || has_parameter(request->variants[v].variant, engines[e], name, length);
    return found;
}

/* Plans check parameters in full, but only after peaks were measured: names are checked before. */
static tool_exit check_parameters(const char *option, const char *text, const bench_request *request, tool_error *error)
{
    for (const char *at = text; at && *at;) {
        const size_t name = strcspn(at, "=,"), word = strcspn(at, ",");
        if (!is_parameter(request, at, name))
            return tool_fail(
                error, TOOL_BAD_INPUT,
                "--%s '%s': expected kernel parameters of the variants (clmgk-info --tunables), not '%.*s'", option,
                text, (int)name, at);
        at += word + (at[word] == ',');
    }
    return TOOL_DONE;
}

static tool_exit parse_backward(const char *const *values, bench_options *options, tool_error *error)
{
    static const int backward[] = {OPTION_GRADIENTS, OPTION_BACKWARD_PARAMETERS};
    bench_request *const request = &options->request;
    TOOL_TRY(bench_parse_pass(values[OPTION_PASS] ? values[OPTION_PASS] : "forward", request, error));
    for (size_t i = 0; i < TOOL_COUNT(backward); i++) {
        if (values[backward[i]] && request->passes[request->pass_count - 1] == BENCH_FORWARD)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s is given: expected --pass backward or both with it",
                             options_table[backward[i]].name);
    }
    options->backward_parameters = values[OPTION_BACKWARD_PARAMETERS];
    if (values[OPTION_GRADIENTS])
        return bench_parse_gradients(values[OPTION_GRADIENTS], request, error);
    request->gradients = BENCH_DEFAULT_GRADIENTS;
    return TOOL_DONE;
}

static tool_exit parse_manner(const char *const *values, bench_options *options, tool_error *error)
{
    TOOL_TRY(parse_backward(values, options, error));
    TOOL_TRY(tool_parse_engine("engine", values[OPTION_ENGINE], &options->engine, error));
    TOOL_TRY(tool_parse_positive("seconds", values[OPTION_SECONDS], &options->seconds, error));
    if (values[OPTION_THRESHOLD]) {
        TOOL_TRY(tool_parse_positive("threshold", values[OPTION_THRESHOLD], &options->threshold, error));
        options->threshold /= 100;
        if (!values[OPTION_COMPARE])
            return tool_fail(error, TOOL_BAD_INPUT, "--threshold is given: expected --compare with it");
    }
    options->all_devices = values[OPTION_ALL_DEVICES] != NULL;
    if (options->devices[0] && options->all_devices)
        return tool_fail(error, TOOL_BAD_INPUT, "expected one of --device and --all-devices, not both");
    options->parameters = values[OPTION_PARAMETERS];
    for (int i = OPTION_PARAMETERS; i <= OPTION_BACKWARD_PARAMETERS; i++)
        TOOL_TRY(check_parameters(options_table[i].name, values[i], &options->request, error));
    options->untuned = values[OPTION_UNTUNED] != NULL;
    options->keep_caches = values[OPTION_KEEP_CACHES] != NULL;
    options->json = values[TOOL_OPTION_JSON] != NULL;
    options->verbose = values[OPTION_VERBOSE] != NULL;
    if (options->json && options->verbose)
        return tool_fail(error, TOOL_BAD_INPUT, "--verbose is given: expected none with --json, which has all figures");
    options->plot = values[OPTION_PLOT];
    if (values[OPTION_PROGRAMS])
        TOOL_TRY(tool_resolve_output("programs", values[OPTION_PROGRAMS], &options->programs, error));
    if (values[OPTION_COMPARE])
        options->compare[options->compare_count++] = values[OPTION_COMPARE];
    return TOOL_DONE;
}

/* Takes device, seconds, caches and form; of others only the `count` of `own` may be given. */
static tool_exit parse_few(const char *const *values, const int *own, size_t count, const char *with,
                           bench_options *options, tool_error *error)
{
    static const int allowed[] = {TOOL_OPTION_DEVICE, TOOL_OPTION_JSON, OPTION_SECONDS, OPTION_KEEP_CACHES};
    for (int i = 0; i < OPTION_COUNT; i++) {
        bool goes = values[i] == NULL;
        for (size_t n = 0; n < TOOL_COUNT(allowed); n++)
            goes = goes || allowed[n] == i;
        for (size_t n = 0; n < count; n++)
            goes = goes || own[n] == i;
        if (!goes)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s is given: expected none of attention's options with --%s",
                             options_table[i].name, with);
    }
    options->seconds = 1;
    TOOL_TRY(tool_parse_positive("seconds", values[OPTION_SECONDS], &options->seconds, error));
    if (options->device_count > 1)
        return tool_fail(error, TOOL_BAD_INPUT, "--device is given more than once: expected one with --%s", with);
    options->json = values[TOOL_OPTION_JSON] != NULL;
    options->keep_caches = values[OPTION_KEEP_CACHES] != NULL;
    return TOOL_DONE;
}

#define MORE_OPTIONS 4

/* A size of attention, with its variants, for what is no list of cases. NULL: no default. `more`: other options that
 * it takes, an option more than once where there are fewer. */
static tool_exit parse_one_size(const char *const *values, const char *with, const char *variants,
                                const char *const *defaults, const int more[MORE_OPTIONS], bench_options *options,
                                tool_error *error)
{
    const int own[] = {OPTION_VARIANTS,
                       OPTION_SIZES + BENCH_SIZE_BATCH,
                       OPTION_SIZES + BENCH_SIZE_HEADS,
                       OPTION_SIZES + BENCH_SIZE_LENGTH,
                       OPTION_SIZES + BENCH_SIZE_HEAD_SIZE,
                       more[0],
                       more[1],
                       more[2],
                       more[3]};
    const char *sizes[BENCH_SIZE_OPTION_COUNT];
    const bench_choice choice = {.variants = values[OPTION_VARIANTS] ? values[OPTION_VARIANTS] : variants,
                                 .sizes = sizes};
    unsigned suite = 0;
    for (int i = 0; i < BENCH_SIZE_OPTION_COUNT; i++)
        sizes[i] = values[OPTION_SIZES + i] ? values[OPTION_SIZES + i] : defaults[i];
    TOOL_TRY(parse_few(values, own, TOOL_COUNT(own), with, options, error));
    TOOL_TRY(bench_parse_pass("forward", &options->request, error));
    return bench_parse_choice(&choice, &options->request, &suite, error);
}

/* A layer as wide as its heads: by default as models of the papers have it. */
static tool_exit parse_layers(const char *const *values, bench_options *options, tool_error *error)
{
    static const char *const sizes[BENCH_SIZE_OPTION_COUNT] = {[BENCH_SIZE_BATCH] = "4",
                                                               [BENCH_SIZE_HEADS] = "8",
                                                               [BENCH_SIZE_LENGTH] = "1024",
                                                               [BENCH_SIZE_HEAD_SIZE] = "64"};
    static const int more[MORE_OPTIONS] = {OPTION_SUITE, OPTION_DTYPE, OPTION_DTYPE, OPTION_DTYPE};
    options->layer = true;
    TOOL_TRY(parse_one_size(values, "suite layer", NULL, sizes, more, options, error));
    return values[OPTION_DTYPE] ? tool_parse_dtype("dtype", values[OPTION_DTYPE], &options->layer_dtype, error)
                                : TOOL_DONE;
}

static tool_exit parse_calls(const char *const *values, bench_options *options, tool_error *error)
{
    static const char *const sizes[BENCH_SIZE_OPTION_COUNT] = {
        [BENCH_SIZE_BATCH] = "1", [BENCH_SIZE_HEADS] = "1", [BENCH_SIZE_LENGTH] = "16", [BENCH_SIZE_HEAD_SIZE] = "64"};
    static const int more[MORE_OPTIONS] = {OPTION_SUITE, OPTION_SUITE, OPTION_SUITE, OPTION_SUITE};
    options->call = true;
    return parse_one_size(values, "suite call", "softmax", sizes, more, options, error);
}

static tool_exit parse_serving(const char *const *values, bench_options *options, tool_error *error)
{
    static const char *const sizes[BENCH_SIZE_OPTION_COUNT] = {[BENCH_SIZE_BATCH] = "64",
                                                               [BENCH_SIZE_HEADS] = "8",
                                                               [BENCH_SIZE_KV_HEADS] = "2",
                                                               [BENCH_SIZE_LENGTH] = "8000",
                                                               [BENCH_SIZE_HEAD_SIZE] = "64"};
    static const int more[MORE_OPTIONS] = {OPTION_SUITE, OPTION_SIZES + BENCH_SIZE_KV_HEADS, OPTION_SUITE,
                                           OPTION_SUITE};
    if (values[OPTION_VARIANTS])
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--variants is given: expected none with --suite serving: it is softmax");
    options->serving = true;
    TOOL_TRY(parse_one_size(values, "suite serving", "softmax", sizes, more, options, error));
    const bench_shape *const shape = &options->request.shapes[0];
    return shape->heads % shape->kv_heads == 0
               ? TOOL_DONE
               : tool_fail(error, TOOL_BAD_INPUT,
                           "--kv-heads: %" PRId64 ": expected a divisor of the %" PRId64 " heads", shape->kv_heads,
                           shape->heads);
}

static tool_exit parse_parallel(const char *const *values, bench_options *options, tool_error *error)
{
    static const char *const sizes[BENCH_SIZE_OPTION_COUNT] = {[BENCH_SIZE_BATCH] = "1",
                                                               [BENCH_SIZE_HEADS] = "4",
                                                               [BENCH_SIZE_LENGTH] = "1024",
                                                               [BENCH_SIZE_HEAD_SIZE] = "64"};
    static const char *const names[] = {"all-gather", "ring", "all-to-all"};
    static const clmgk_dist_schedule schedules[] = {CLMGK_DIST_ALL_GATHER, CLMGK_DIST_RING, CLMGK_DIST_ALL_TO_ALL};
    static const int more[MORE_OPTIONS] = {OPTION_PARALLEL, OPTION_RANKS, OPTION_SEND_RATE, OPTION_DTYPE};
    const char *const rate = values[OPTION_SEND_RATE];
    size_t index = 0;
    TOOL_TRY(tool_parse_name("parallel", values[OPTION_PARALLEL], names, TOOL_COUNT(names), &index, error));
    options->parallel = schedules[index];
    options->parallel_name = names[index];
    options->parallel_ranks = 2;
    TOOL_TRY(tool_parse_integer("ranks", values[OPTION_RANKS], 1, 64, &options->parallel_ranks, error));
    options->send_equal = rate && strcmp(rate, "equal") == 0;
    if (!options->send_equal)
        TOOL_TRY(tool_parse_positive("send-rate", rate, &options->send_rate, error));
    TOOL_TRY(parse_one_size(values, "parallel", "softmax", sizes, more, options, error));
    return tool_parse_dtype("dtype", values[OPTION_DTYPE], &options->layer_dtype, error);
}

/* Products alone: nothing of attention goes with them. */
static tool_exit parse_products(const char *const *values, bench_options *options, tool_error *error)
{
    static const int own[] = {OPTION_GEMM, OPTION_DTYPE, OPTION_PRECISION};
    clmgk_dtype dtype = CLMGK_DTYPE_F32;
    clmgk_precision precision = CLMGK_PRECISION_EXACT;
    TOOL_TRY(parse_few(values, own, TOOL_COUNT(own), "gemm", options, error));
    TOOL_TRY(tool_parse_products("gemm", values[OPTION_GEMM], options->products, &options->product_count, error));
    if (values[OPTION_DTYPE])
        TOOL_TRY(tool_parse_dtype("dtype", values[OPTION_DTYPE], &dtype, error));
    TOOL_TRY(tool_parse_precision("precision", values[OPTION_PRECISION], &precision, error));
    for (size_t i = 0; i < options->product_count; i++) {
        options->products[i].transpose_b = true; /* as layers have it */
        options->products[i].dtype = dtype;
        options->products[i].precision = precision;
    }
    return TOOL_DONE;
}

/* Takes the files that follow the first one of --compare out of the arguments. */
static tool_exit take_files(int *argc, char **argv, const char **files, size_t *count, tool_error *error)
{
    int kept = 0;
    bool follows = false; /* a value of --compare stands before */
    for (int i = 0; i < *argc; i++) {
        const bool own = i > 0 && strcmp(argv[i - 1], "--compare") == 0;
        if (!follows || own || argv[i][0] == '-') {
            follows = own || strncmp(argv[i], "--compare=", 10) == 0;
            argv[kept++] = argv[i];
            continue;
        }
        if (*count + 1 == BENCH_MAX_FILES)
            return tool_fail(error, TOOL_BAD_INPUT, "--compare: expected at most %d files", BENCH_MAX_FILES);
        files[(*count)++] = argv[i];
    }
    argv[kept] = NULL;
    *argc = kept;
    return TOOL_DONE;
}

/* Takes each --device but the first out of the arguments. */
static tool_exit take_devices(int *argc, char **argv, bench_options *options, tool_error *error)
{
    int kept = 0;
    options->device_count = 0;
    for (int i = 0; i < *argc; i++) {
        const bool apart = strcmp(argv[i], "--device") == 0 && i + 1 < *argc;
        const bool joined = strncmp(argv[i], "--device=", 9) == 0;
        const bool kept_here = (!apart && !joined) || options->device_count == 0;
        if (apart || joined) {
            if (options->device_count == BENCH_MAX_DEVICES)
                return tool_fail(error, TOOL_BAD_INPUT, "--device: expected at most %d", BENCH_MAX_DEVICES);
            options->devices[options->device_count++] = apart ? argv[i + 1] : argv[i] + 9;
        }
        if (kept_here)
            argv[kept++] = argv[i];
        if (apart && kept_here)
            argv[kept++] = argv[i + 1];
        i += apart;
    }
    argv[kept] = NULL;
    *argc = kept;
    options->device_count += options->device_count == 0; /* the default */
    return TOOL_DONE;
}

/* Files that are shown side by side: what they hold was measured with options of its own. */
static tool_exit parse_files(const char *const *values, const char *const *more, size_t count, bench_options *options,
                             tool_error *error)
{
    for (int i = 0; i < OPTION_COUNT; i++)
        if (values[i] && i != OPTION_COMPARE && i != OPTION_PLOT)
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--%s is given: expected only --plot with several files of --compare",
                             options_table[i].name);
    options->plot = values[OPTION_PLOT];
    options->compare[options->compare_count++] = values[OPTION_COMPARE];
    for (size_t i = 0; i < count; i++)
        options->compare[options->compare_count++] = more[i];
    return TOOL_DONE;
}

tool_exit bench_parse_options(int argc, char **argv, bench_options *options, bool *finished, tool_error *error)
{
    static const char *const own_suites[] = {"layer", "call", "serving"};
    static tool_exit (*const parsers[])(const char *const *, bench_options *,
                                        tool_error *) = {parse_layers, parse_calls, parse_serving};
    const char *values[OPTION_COUNT], *files[BENCH_MAX_FILES];
    size_t file_count = 0;
    *options = (bench_options){.threshold = 0.05};
    TOOL_TRY(take_devices(&argc, argv, options, error));
    TOOL_TRY(take_files(&argc, argv, files, &file_count, error));
    TOOL_TRY(tool_parse_options(&bench_program, argc, argv, values, finished, error));
    if (*finished)
        return TOOL_DONE;
    for (size_t i = 0; i < options->device_count; i++)
        TOOL_TRY(tool_check_selector(options->devices[i], error));
    if (file_count > 0)
        return parse_files(values, files, file_count, options, error);
    if (values[OPTION_GEMM])
        return parse_products(values, options, error);
    if (values[OPTION_PARALLEL])
        return parse_parallel(values, options, error);
    for (int i = OPTION_RANKS; i <= OPTION_SEND_RATE; i++)
        if (values[i])
            return tool_fail(error, TOOL_BAD_INPUT, "--%s is given: expected --parallel with it",
                             options_table[i].name);
    for (size_t i = 0; values[OPTION_SUITE] && i < TOOL_COUNT(own_suites); i++) {
        if (strcmp(values[OPTION_SUITE], own_suites[i]) == 0)
            return parsers[i](values, options, error);
    }
    const bench_choice choice = {BENCH_CHOICE(values), .default_suite = "short", .own_suites = own_suites,
                                 .own_suite_count = TOOL_COUNT(own_suites)};
    unsigned suite = 0;
    options->request.texts = true;
    TOOL_TRY(bench_parse_choice(&choice, &options->request, &suite, error));
    options->short_batches = suite == BENCH_SUITE_SHORT;
    options->seconds = suite == BENCH_SUITE_QUICK || suite == BENCH_SUITE_GPU ? 0.5 : options->short_batches ? 1.5 : 4;
    return parse_manner(values, options, error);
}
