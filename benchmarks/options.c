/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: which devices, variants, sizes, and what to do with the figures. */
#include "bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    OPTION_ALL_DEVICES = TOOL_STANDARD_OPTION_COUNT,
    OPTION_SUITE,
    OPTION_SHAPES,
    OPTION_VARIANTS,
    OPTION_BATCH,
    OPTION_HEADS,
    OPTION_KV_HEADS,
    OPTION_COMPONENTS,
    OPTION_LENGTH,
    OPTION_LENGTH_K,
    OPTION_HEAD_SIZE,
    OPTION_VALUE_SIZE,
    OPTION_CAUSAL,
    OPTION_WINDOW,
    OPTION_PACKED,
    OPTION_BIAS,
    OPTION_ALIBI,
    OPTION_SINKS,
    OPTION_DROPOUT,
    OPTION_PASS,
    OPTION_GRADIENTS,
    OPTION_DTYPE,
    OPTION_SECONDS,
    OPTION_KEEP_CACHES,
    OPTION_PLOT,
    OPTION_COMPARE,
    OPTION_THRESHOLD,
    OPTION_ENGINE,
    OPTION_PARAMETERS,
    OPTION_BACKWARD_PARAMETERS,
    OPTION_COUNT
};

static const tool_option options_table[OPTION_COUNT] = {
    TOOL_STANDARD_OPTIONS,
    {"all-devices", NULL, "measure on every device, one after another"},
    {"suite", "NAME", "paper (default): the papers' sizes; quick: three small ones; full: many"},
    {"shapes", "NAME,...", "named sizes in place of a suite"},
    {"variants", "A,B:H,...",
     "softmax, gaussian, mgk, smgk, each with its own number of heads after a colon;\n"
     "without one: the shape's. Default: softmax, and mgk and smgk with half the heads"},
    {"batch", "B", "a size without a name: batch, default 1"},
    {"heads", "H", "query heads, default 8: softmax with so many is the baseline of ratios"},
    {"kv-heads", "G", "key/value heads, default: each variant's heads"},
    {"components", "M", "components per key of mgk and smgk, default 2"},
    {"length", "N", "queries; required for a size without a name"},
    {"length-k", "S", "keys, default N"},
    {"head-size", "D", "query/key head size; required for a size without a name"},
    {"value-size", "E", "value head size, default D"},
    {"causal", NULL, "hide later keys"},
    {"window", "L,R", "keys i-L .. i+R along the diagonal; -1: no limit"},
    {"packed", "T", "the N rows are T sequences of uneven lengths, back to back"},
    {"bias", "AXES",
     "an additive bias: b, h, n, s for an axis that it has in full, 1 for one that it has\n"
     "not: 1hns is [1,H,N,S]"},
    {"alibi", NULL, "a slope per head"},
    {"sinks", NULL, "a sink's logit per head"},
    {"dropout", "P", "probability of dropping a weight"},
    {"pass", "NAME", "forward (default), backward (apart from its forward pass), or both"},
    {"gradients", "A,...",
     "what the backward pass computes: q, k, v, prior, variance, shift, bias, sinks or all,\n"
     "each for the variants that have it. Default: q, k, v, shift"},
    {"dtype", "T,...", "storage types f32, f16, bf16; default f32"},
    {"seconds", "X",
     "repeat the runs of a size for X seconds (at least three times); default 4,\n"
     "quick: 0.5"},
    {"keep-caches", NULL,
     "use compiled programs from the caches as they are: quicker, but what was compiled\n"
     "before has no cold first call"},
    {"plot", "F.svg", "draw times and rates with gnuplot"},
    {"compare", "OLD.json", "show changes beyond noise against an earlier --json; exit 1 on a regression"},
    {"threshold", "X", "a slow-down by more than X percent, and beyond noise, is a regression; default 5"},
    {"engine", "NAME", "auto (default), lane or simt"},
    {"parameters", "P", "kernel parameters, name=value,...: for work on the kernels"},
    {"backward-parameters", "P", "the same of the backward pass"},
};

const tool_program bench_program = {
    .name = "clmgk-bench",
    .summary = "Times attention variants beside each other, each checked against double precision first.\n"
               "Without options: softmax with 8 heads, MGK and sMGK with 4 (two components) over the sizes of the\n"
               "papers, beside the figures of the MGK paper's Table 7.",
    .notes = "A name after --shapes that does not exist lists those that do.",
    .options = options_table,
    .option_count = OPTION_COUNT,
};

/* ---- lists -------------------------------------------------------------------------------------------------- */

#define TOKEN_SIZE 64

/* Copies the part of *text before the next comma and moves *text behind it; false where it is empty or long. */
static bool next_token(const char **text, char token[TOKEN_SIZE])
{
    const size_t length = strcspn(*text, ",");
    if (length == 0 || length >= TOKEN_SIZE)
        return false;
    memcpy(token, *text, length);
    token[length] = '\0';
    *text += length;
    if (**text == ',' && *++*text == '\0')
        return false;
    return true;
}

/* Calls `add` for every element of a comma-separated list. */
static tool_exit parse_list(const char *option, const char *text, size_t capacity,
                            tool_exit (*add)(const char *option, const char *token, bench_options *options,
                                             tool_error *error),
                            bench_options *options, tool_error *error)
{
    const char *rest = text;
    size_t count = 0;
    do {
        char token[TOKEN_SIZE];
        if (!next_token(&rest, token))
            return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected names separated by commas", option, text);
        if (count++ == capacity)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected at most %zu names", option, text, capacity);
        TOOL_TRY(add(option, token, options, error));
    } while (*rest != '\0');
    return TOOL_DONE;
}

static tool_exit add_variant(const char *option, const char *token, bench_options *options, tool_error *error)
{
    bench_variant *variant = &options->variants[options->variant_count++];
    char name[TOKEN_SIZE];
    const size_t length = strcspn(token, ":");
    memcpy(name, token, length);
    name[length] = '\0';
    variant->heads = BENCH_HEADS_OF_SHAPE;
    if (token[length] == ':')
        TOOL_TRY(tool_parse_integer(option, token + length + 1, 1, INT32_MAX, &variant->heads, error));
    return tool_parse_variant(option, name, &variant->variant, error);
}

static tool_exit add_dtype(const char *option, const char *token, bench_options *options, tool_error *error)
{
    clmgk_dtype dtype = CLMGK_DTYPE_F32;
    TOOL_TRY(tool_parse_dtype(option, token, &dtype, error));
    for (size_t i = 0; i < options->dtype_count; i++) {
        if (options->dtypes[i] == dtype)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s: '%s' is given twice", option, token);
    }
    options->dtypes[options->dtype_count++] = dtype;
    return TOOL_DONE;
}

static tool_exit add_gradient(const char *option, const char *token, bench_options *options, tool_error *error)
{
    const char *names[CLMGK_REF_GRADIENTS + 1];
    size_t index = 0;
    memcpy(names, bench_gradient_name, sizeof(bench_gradient_name));
    names[CLMGK_REF_GRADIENTS] = "all";
    TOOL_TRY(tool_parse_name(option, token, names, TOOL_COUNT(names), &index, error));
    if (index < CLMGK_REF_GRADIENTS)
        options->named_gradients |= 1U << index;
    options->gradients |= index < CLMGK_REF_GRADIENTS ? 1U << index : CLMGK_GRADIENT_ALL;
    return TOOL_DONE;
}

static tool_exit add_shape(const char *option, const char *token, bench_options *options, tool_error *error)
{
    const char *names[BENCH_MAX_SHAPES];
    size_t index = 0;
    for (size_t i = 0; i < bench_shape_count; i++)
        names[i] = bench_shapes[i].name;
    TOOL_TRY(tool_parse_name(option, token, names, bench_shape_count, &index, error));
    options->shapes[options->shape_count++] = bench_shapes[index];
    return TOOL_DONE;
}

/* ---- sizes -------------------------------------------------------------------------------------------------- */

static const int size_options[] = {OPTION_BATCH,  OPTION_HEADS,    OPTION_KV_HEADS,  OPTION_COMPONENTS,
                                   OPTION_LENGTH, OPTION_LENGTH_K, OPTION_HEAD_SIZE, OPTION_VALUE_SIZE,
                                   OPTION_CAUSAL, OPTION_WINDOW,   OPTION_PACKED,    OPTION_BIAS,
                                   OPTION_ALIBI,  OPTION_SINKS,    OPTION_DROPOUT};

static const char *given_size_option(const char *const *values)
{
    for (size_t i = 0; i < TOOL_COUNT(size_options); i++) {
        if (values[size_options[i]])
            return options_table[size_options[i]].name;
    }
    return NULL;
}

static tool_exit parse_size(const char *const *values, int option, int64_t *value, tool_error *error)
{
    if (!values[option])
        return TOOL_DONE;
    return tool_parse_integer(options_table[option].name, values[option], 1, INT32_MAX, value, error);
}

/* "1hns" */
static tool_exit parse_bias(const char *text, bench_modifiers *modifiers, tool_error *error)
{
    static const char axes[] = "bhns";
    bool ok = strlen(text) == TOOL_COUNT(modifiers->bias_axis);
    for (size_t i = 0; ok && i < TOOL_COUNT(modifiers->bias_axis); i++) {
        modifiers->bias_axis[i] = text[i] == axes[i];
        ok = text[i] == axes[i] || text[i] == '1';
    }
    modifiers->bias = true;
    return ok ? TOOL_DONE
              : tool_fail(error, TOOL_BAD_INPUT, "--bias '%s': expected 'bhns' with 1 for any of them, as in 1hns",
                          text);
}

static tool_exit parse_window(const char *text, bench_modifiers *modifiers, tool_error *error)
{
    int64_t sides[2];
    TOOL_TRY(tool_parse_integers("window", text, -1, INT32_MAX, TOOL_COUNT(sides), sides, error));
    modifiers->window = true;
    modifiers->window_left = sides[0];
    modifiers->window_right = sides[1];
    return TOOL_DONE;
}

#define MAX_SEQUENCES 65536

static tool_exit parse_modifiers(const char *const *values, bench_modifiers *modifiers, tool_error *error)
{
    if (values[OPTION_WINDOW])
        TOOL_TRY(parse_window(values[OPTION_WINDOW], modifiers, error));
    if (values[OPTION_PACKED])
        TOOL_TRY(tool_parse_integer("packed", values[OPTION_PACKED], 1, MAX_SEQUENCES, &modifiers->sequences, error));
    if (values[OPTION_BIAS])
        TOOL_TRY(parse_bias(values[OPTION_BIAS], modifiers, error));
    if (values[OPTION_DROPOUT])
        TOOL_TRY(tool_parse_number("dropout", values[OPTION_DROPOUT], &modifiers->dropout, error));
    modifiers->alibi = values[OPTION_ALIBI] != NULL;
    modifiers->sinks = values[OPTION_SINKS] != NULL;
    return TOOL_DONE;
}

static tool_exit parse_unnamed_shape(const char *const *values, bench_shape *shape, tool_error *error)
{
    *shape = (bench_shape){.what = "given sizes", .batch = 1, .heads = 8, .components = 2};
    if (!values[OPTION_LENGTH] || !values[OPTION_HEAD_SIZE])
        return tool_fail(error, TOOL_BAD_INPUT, "--%s is given: expected --length and --head-size with it",
                         given_size_option(values));
    TOOL_TRY(parse_size(values, OPTION_BATCH, &shape->batch, error));
    TOOL_TRY(parse_size(values, OPTION_HEADS, &shape->heads, error));
    TOOL_TRY(parse_size(values, OPTION_KV_HEADS, &shape->kv_heads, error));
    TOOL_TRY(parse_size(values, OPTION_COMPONENTS, &shape->components, error));
    TOOL_TRY(parse_size(values, OPTION_LENGTH, &shape->length, error));
    TOOL_TRY(parse_size(values, OPTION_LENGTH_K, &shape->length_k, error));
    TOOL_TRY(parse_size(values, OPTION_HEAD_SIZE, &shape->head_size, error));
    TOOL_TRY(parse_size(values, OPTION_VALUE_SIZE, &shape->value_size, error));
    shape->causal = values[OPTION_CAUSAL] != NULL;
    return parse_modifiers(values, &shape->modifiers, error);
}

static tool_exit parse_suite(const char *name, bench_options *options, tool_error *error)
{
    static const char *const names[] = {"quick", "paper", "full"};
    static const unsigned suites[] = {BENCH_SUITE_QUICK, BENCH_SUITE_PAPER, BENCH_SUITE_FULL};
    size_t index = 0;
    TOOL_TRY(tool_parse_name("suite", name, names, TOOL_COUNT(names), &index, error));
    for (size_t i = 0; i < bench_shape_count; i++) {
        if (bench_shapes[i].suites & suites[index])
            options->shapes[options->shape_count++] = bench_shapes[i];
    }
    if (suites[index] == BENCH_SUITE_QUICK)
        options->seconds = 0.5;
    return TOOL_DONE;
}

static tool_exit parse_shapes(const char *const *values, bench_options *options, tool_error *error)
{
    const char *size_option = given_size_option(values);
    if ((values[OPTION_SUITE] != NULL) + (values[OPTION_SHAPES] != NULL) + (size_option != NULL) > 1)
        return tool_fail(error, TOOL_BAD_INPUT, "expected one of --suite, --shapes and sizes (--%s), not several",
                         size_option ? size_option : "heads");
    if (values[OPTION_SHAPES])
        return parse_list("shapes", values[OPTION_SHAPES], BENCH_MAX_SHAPES, add_shape, options, error);
    if (size_option) {
        options->shape_count = 1;
        return parse_unnamed_shape(values, &options->shapes[0], error);
    }
    return parse_suite(values[OPTION_SUITE] ? values[OPTION_SUITE] : "paper", options, error);
}

static void take_default_variants(bench_options *options)
{
    static const bench_variant defaults[] = {{CLMGK_VARIANT_SOFTMAX, BENCH_HEADS_OF_SHAPE},
                                             {CLMGK_VARIANT_MGK, BENCH_HEADS_HALF},
                                             {CLMGK_VARIANT_SMGK, BENCH_HEADS_HALF}};
    memcpy(options->variants, defaults, sizeof(defaults));
    options->variant_count = TOOL_COUNT(defaults);
}

/* ---- the rest ----------------------------------------------------------------------------------------------- */

static tool_exit parse_positive(const char *option, const char *text, double *value, tool_error *error)
{
    double *numbers = NULL;
    size_t count = 0;
    TOOL_TRY(tool_parse_numbers(option, text, &numbers, &count, error));
    const double number = count == 1 ? numbers[0] : -1;
    free(numbers);
    if (!(number > 0) || !isfinite(number))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected one number above 0", option, text);
    *value = number;
    return TOOL_DONE;
}

static tool_exit parse_pass(const char *text, bench_options *options, tool_error *error)
{
    static const char *const names[] = {"forward", "backward", "both"};
    size_t index = 0;
    TOOL_TRY(tool_parse_name("pass", text, names, TOOL_COUNT(names), &index, error));
    options->pass_count = 0;
    if (index != 1)
        options->passes[options->pass_count++] = BENCH_FORWARD;
    if (index != 0)
        options->passes[options->pass_count++] = BENCH_BACKWARD;
    return TOOL_DONE;
}

static tool_exit parse_backward(const char *const *values, bench_options *options, tool_error *error)
{
    static const int backward[] = {OPTION_GRADIENTS, OPTION_BACKWARD_PARAMETERS};
    TOOL_TRY(parse_pass(values[OPTION_PASS] ? values[OPTION_PASS] : "forward", options, error));
    for (size_t i = 0; i < TOOL_COUNT(backward); i++) {
        if (values[backward[i]] && options->passes[options->pass_count - 1] == BENCH_FORWARD)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s is given: expected --pass backward or both with it",
                             options_table[backward[i]].name);
    }
    options->backward_parameters = values[OPTION_BACKWARD_PARAMETERS];
    if (values[OPTION_GRADIENTS])
        return parse_list("gradients", values[OPTION_GRADIENTS], CLMGK_REF_GRADIENTS, add_gradient, options, error);
    options->gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_SHIFT;
    return TOOL_DONE;
}

static tool_exit parse_manner(const char *const *values, bench_options *options, tool_error *error)
{
    TOOL_TRY(parse_backward(values, options, error));
    if (values[OPTION_ENGINE])
        TOOL_TRY(tool_parse_engine("engine", values[OPTION_ENGINE], &options->engine, error));
    if (values[OPTION_SECONDS])
        TOOL_TRY(parse_positive("seconds", values[OPTION_SECONDS], &options->seconds, error));
    if (values[OPTION_THRESHOLD]) {
        TOOL_TRY(parse_positive("threshold", values[OPTION_THRESHOLD], &options->threshold, error));
        options->threshold /= 100;
        if (!values[OPTION_COMPARE])
            return tool_fail(error, TOOL_BAD_INPUT, "--threshold is given: expected --compare with it");
    }
    options->device = values[TOOL_OPTION_DEVICE];
    options->all_devices = values[OPTION_ALL_DEVICES] != NULL;
    if (options->device && options->all_devices)
        return tool_fail(error, TOOL_BAD_INPUT, "expected one of --device and --all-devices, not both");
    options->parameters = values[OPTION_PARAMETERS];
    options->keep_caches = values[OPTION_KEEP_CACHES] != NULL;
    options->json = values[TOOL_OPTION_JSON] != NULL;
    options->plot = values[OPTION_PLOT];
    options->compare = values[OPTION_COMPARE];
    return TOOL_DONE;
}

tool_exit bench_parse_options(int argc, char **argv, bench_options *options, bool *finished, tool_error *error)
{
    const char *values[OPTION_COUNT];
    *options = (bench_options){.seconds = 4, .threshold = 0.05};
    TOOL_TRY(tool_parse_options(&bench_program, argc, argv, values, finished, error));
    if (*finished)
        return TOOL_DONE;
    TOOL_TRY(parse_shapes(values, options, error));
    if (values[OPTION_VARIANTS])
        TOOL_TRY(parse_list("variants", values[OPTION_VARIANTS], BENCH_MAX_VARIANTS, add_variant, options, error));
    else
        take_default_variants(options);
    if (values[OPTION_DTYPE])
        TOOL_TRY(parse_list("dtype", values[OPTION_DTYPE], BENCH_DTYPES, add_dtype, options, error));
    else
        options->dtypes[options->dtype_count++] = CLMGK_DTYPE_F32;
    return parse_manner(values, options, error);
}
