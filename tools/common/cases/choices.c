/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of variants, types and sizes on a command line. */
#include "cases.h"

#include <string.h>

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
                            tool_exit (*add)(const char *option, char *token, bench_request *request,
                                             tool_error *error),
                            bench_request *request, tool_error *error)
{
    const char *rest = text;
    size_t count = 0;
    do {
        char token[TOKEN_SIZE];
        if (!next_token(&rest, token))
            return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected names separated by commas", option, text);
        if (count++ == capacity)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected at most %zu names", option, text, capacity);
        TOOL_TRY(add(option, token, request, error));
    } while (*rest != '\0');
    return TOOL_DONE;
}

/* "8", or "2x8" of a mixed variant: global and local heads; "2x6x8": with hidden units between them */
static tool_exit parse_heads(const char *option, char *text, bench_variant *variant, tool_error *error)
{
    char *const hidden = strchr(text, 'x'), *const local = strrchr(text, 'x');
    if (!local)
        return tool_parse_integer(option, text, 1, INT32_MAX, &variant->heads, error);
    if (!tool_is_mixed(variant->variant))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected one number of heads: %s mixes none", option, text,
                         clmgk_variant_name(variant->variant));
    *hidden = *local = '\0';
    TOOL_TRY(tool_parse_integer(option, text, 1, INT32_MAX, &variant->components, error));
    if (hidden < local)
        TOOL_TRY(tool_parse_integer(option, hidden + 1, 1, INT32_MAX, &variant->hidden, error));
    return tool_parse_integer(option, local + 1, 1, INT32_MAX, &variant->heads, error);
}

static tool_exit add_variant(const char *option, char *token, bench_request *request, tool_error *error)
{
    bench_variant *variant = &request->variants[request->variant_count++];
    char name[TOKEN_SIZE];
    const size_t length = strcspn(token, ":");
    memcpy(name, token, length);
    name[length] = '\0';
    *variant = (bench_variant){.heads = BENCH_HEADS_OF_SHAPE};
    TOOL_TRY(tool_parse_variant(option, name, &variant->variant, error));
    if (token[length] == ':')
        TOOL_TRY(parse_heads(option, token + length + 1, variant, error));
    for (const bench_variant *other = request->variants; other < variant; other++) {
        if (other->variant == variant->variant && other->heads == variant->heads &&
            other->components == variant->components && other->hidden == variant->hidden)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s: '%s' is given twice with the same heads", option, name);
    }
    return TOOL_DONE;
}

static tool_exit add_dtype(const char *option, char *token, bench_request *request, tool_error *error)
{
    clmgk_dtype dtype = CLMGK_DTYPE_F32;
    TOOL_TRY(tool_parse_dtype(option, token, &dtype, error));
    for (size_t i = 0; i < request->dtype_count; i++) {
        if (request->dtypes[i] == dtype)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s: '%s' is given twice", option, token);
    }
    request->dtypes[request->dtype_count++] = dtype;
    return TOOL_DONE;
}

static tool_exit add_gradient(const char *option, char *token, bench_request *request, tool_error *error)
{
    const char *names[CLMGK_REF_GRADIENTS + 1];
    size_t index = 0;
    for (int i = 0; i < CLMGK_REF_GRADIENTS; i++)
        names[i] = bench_gradient_name(i);
    names[CLMGK_REF_GRADIENTS] = "all";
    TOOL_TRY(tool_parse_name(option, token, names, TOOL_COUNT(names), &index, error));
    if (index < CLMGK_REF_GRADIENTS)
        request->named_gradients |= 1U << index;
    request->gradients |= index < CLMGK_REF_GRADIENTS ? 1U << index : CLMGK_GRADIENT_ALL;
    return TOOL_DONE;
}

static tool_exit add_shape(const char *option, char *token, bench_request *request, tool_error *error)
{
    const char *names[BENCH_MAX_SHAPES];
    size_t index = 0;
    for (size_t i = 0; i < bench_shape_count; i++)
        names[i] = bench_shapes[i].name;
    TOOL_TRY(tool_parse_name(option, token, names, bench_shape_count, &index, error));
    for (size_t i = 0; i < request->shape_count; i++) {
        if (strcmp(request->shapes[i].name, token) == 0)
            return tool_fail(error, TOOL_BAD_INPUT, "--%s: '%s' is given twice", option, token);
    }
    request->shapes[request->shape_count++] = bench_shapes[index];
    return TOOL_DONE;
}

/* ---- sizes -------------------------------------------------------------------------------------------------- */

static const tool_option size_options[BENCH_SIZE_OPTION_COUNT] = {BENCH_SIZE_OPTIONS(TOOL_OPTION_ROW)};

const char *bench_given_size(const char *const *values)
{
    for (size_t i = 0; i < TOOL_COUNT(size_options); i++) {
        if (values[i])
            return size_options[i].name;
    }
    return NULL;
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
    TOOL_TRY(tool_parse_window(text, INT32_MAX, sides, error));
    modifiers->window = true;
    modifiers->window_left = sides[0];
    modifiers->window_right = sides[1];
    return TOOL_DONE;
}

#define MAX_SEQUENCES 65536

static tool_exit parse_modifiers(const char *const *values, bench_modifiers *modifiers, tool_error *error)
{
    if (values[BENCH_SIZE_WINDOW])
        TOOL_TRY(parse_window(values[BENCH_SIZE_WINDOW], modifiers, error));
    TOOL_TRY(tool_parse_integer("packed", values[BENCH_SIZE_PACKED], 1, MAX_SEQUENCES, &modifiers->sequences, error));
    if (values[BENCH_SIZE_BIAS])
        TOOL_TRY(parse_bias(values[BENCH_SIZE_BIAS], modifiers, error));
    TOOL_TRY(tool_parse_number("dropout", values[BENCH_SIZE_DROPOUT], &modifiers->dropout, error));
    modifiers->alibi = values[BENCH_SIZE_ALIBI] != NULL;
    modifiers->sinks = values[BENCH_SIZE_SINKS] != NULL;
    modifiers->state = values[BENCH_SIZE_STATE] != NULL;
    return TOOL_DONE;
}

static tool_exit parse_sizes(const char *const *values, bench_shape *shape, tool_error *error)
{
    *shape = (bench_shape){.what = "given sizes", .batch = 1, .heads = 8, .components = 2};
    int64_t *const sizes[] = {[BENCH_SIZE_BATCH] = &shape->batch,         [BENCH_SIZE_HEADS] = &shape->heads,
                              [BENCH_SIZE_KV_HEADS] = &shape->kv_heads,   [BENCH_SIZE_COMPONENTS] = &shape->components,
                              [BENCH_SIZE_LENGTH] = &shape->length,       [BENCH_SIZE_LENGTH_K] = &shape->length_k,
                              [BENCH_SIZE_HEAD_SIZE] = &shape->head_size, [BENCH_SIZE_VALUE_SIZE] = &shape->value_size};
    if (!values[BENCH_SIZE_LENGTH] || !values[BENCH_SIZE_HEAD_SIZE])
        return tool_fail(error, TOOL_BAD_INPUT, "--%s is given: expected %s%s%s with it", bench_given_size(values),
                         values[BENCH_SIZE_LENGTH] ? "" : "--length",
                         values[BENCH_SIZE_LENGTH] || values[BENCH_SIZE_HEAD_SIZE] ? "" : " and ",
                         values[BENCH_SIZE_HEAD_SIZE] ? "" : "--head-size");
    for (size_t i = 0; i < TOOL_COUNT(sizes); i++) {
        TOOL_TRY(tool_parse_integer(size_options[i].name, values[i], 1, INT32_MAX, sizes[i], error));
    }
    shape->causal = values[BENCH_SIZE_CAUSAL] != NULL;
    return parse_modifiers(values, &shape->modifiers, error);
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

tool_exit bench_parse_gradients(const char *text, bench_request *request, tool_error *error)
{
    return parse_list("gradients", text, CLMGK_REF_GRADIENTS, add_gradient, request, error);
}

/* The program has taken its own suites before: here they only complete the message. */
static tool_exit parse_suite(const char *text, const char *const *own, size_t own_count, bench_request *request,
                             unsigned *suite, tool_error *error)
{
    static const unsigned suites[] = {BENCH_SUITE_SHORT,     BENCH_SUITE_PAPER,  BENCH_SUITE_QUICK, BENCH_SUITE_FULL,
                                      BENCH_SUITE_ADMIXTURE, BENCH_SUITE_LINEAR, BENCH_SUITE_GPU,   BENCH_SUITE_SCORES};
    const char *names[TOOL_COUNT(suites) + BENCH_MAX_OWN_SUITES] = {"short",     "paper",  "quick", "full",
                                                                    "admixture", "linear", "gpu",   "scores"};
    size_t index = 0;
    for (size_t i = 0; i < own_count; i++)
        names[TOOL_COUNT(suites) + i] = own[i];
    TOOL_TRY(tool_parse_name("suite", text, names, TOOL_COUNT(suites) + own_count, &index, error));
    *suite = suites[index];
    for (size_t i = 0; i < bench_shape_count; i++) {
        if (bench_shapes[i].suites & suites[index])
            request->shapes[request->shape_count++] = bench_shapes[i];
    }
    return TOOL_DONE;
}

tool_exit bench_parse_pass(const char *text, bench_request *request, tool_error *error)
{
    static const char *const names[] = {"forward", "backward", "both"};
    size_t index = 0;
    TOOL_TRY(tool_parse_name("pass", text, names, TOOL_COUNT(names), &index, error));
    request->pass_count = 0;
    if (index != 1)
        request->passes[request->pass_count++] = BENCH_FORWARD;
    if (index != 0)
        request->passes[request->pass_count++] = BENCH_BACKWARD;
    return TOOL_DONE;
}

static void take_default_variants(bench_request *request, unsigned suite)
{
    static const bench_variant mixture[] = {{CLMGK_VARIANT_SOFTMAX, BENCH_HEADS_OF_SHAPE, 0, 0},
                                            {CLMGK_VARIANT_MGK, BENCH_HEADS_HALF, 0, 0},
                                            {CLMGK_VARIANT_SMGK, BENCH_HEADS_HALF, 0, 0}};
    static const bench_variant admixture[] = {{CLMGK_VARIANT_SOFTMAX, BENCH_HEADS_OF_SHAPE, 0, 0},
                                              {CLMGK_VARIANT_HARD_FISH, BENCH_HEADS_OF_SHAPE, 2, 0},
                                              {CLMGK_VARIANT_HARD_FISH, BENCH_HEADS_OF_SHAPE, 4, 0},
                                              {CLMGK_VARIANT_HARD_MISH, BENCH_HEADS_OF_SHAPE, 2, 0},
                                              {CLMGK_VARIANT_TALKING_HEADS, BENCH_HEADS_OF_SHAPE, 0, 0},
                                              {CLMGK_VARIANT_FISH, BENCH_HEADS_OF_SHAPE, 2, 0}};
    static const bench_variant linear[] = {{CLMGK_VARIANT_LINEAR, BENCH_HEADS_OF_SHAPE, 0, 0},
                                           {CLMGK_VARIANT_MLK, BENCH_HEADS_HALF, 0, 0},
                                           {CLMGK_VARIANT_SMLK, BENCH_HEADS_HALF, 0, 0}};
    static const bench_variant of_gpu[] = {
        {CLMGK_VARIANT_SOFTMAX, BENCH_HEADS_OF_SHAPE, 0, 0},   {CLMGK_VARIANT_MGK, BENCH_HEADS_HALF, 0, 0},
        {CLMGK_VARIANT_SMGK, BENCH_HEADS_HALF, 0, 0},          {CLMGK_VARIANT_HARD_FISH, BENCH_HEADS_OF_SHAPE, 2, 0},
        {CLMGK_VARIANT_HARD_MISH, BENCH_HEADS_OF_SHAPE, 2, 0}, {CLMGK_VARIANT_LINEAR, BENCH_HEADS_OF_SHAPE, 0, 0}};
    const bench_variant *variants = mixture;
    request->variant_count = TOOL_COUNT(mixture);
    if (suite == BENCH_SUITE_ADMIXTURE)
        variants = admixture, request->variant_count = TOOL_COUNT(admixture);
    else if (suite == BENCH_SUITE_LINEAR)
        variants = linear, request->variant_count = TOOL_COUNT(linear);
    else if (suite == BENCH_SUITE_GPU)
        variants = of_gpu, request->variant_count = TOOL_COUNT(of_gpu);
    else if (suite == BENCH_SUITE_SCORES)
        request->variant_count = 1;
    memcpy(request->variants, variants, request->variant_count * sizeof(*variants));
}

/* Whether a variant of the request has features. */
static bool has_linear(const bench_request *request)
{
    bool found = false;
    for (size_t i = 0; i < request->variant_count; i++)
        found = found || tool_is_linear(request->variants[i].variant);
    return found;
}

/* A state, unlike the other sizes of a shape, is of one family. */
static tool_exit check_state(const bench_choice *choice, const bench_request *request, tool_error *error)
{
    return choice->sizes[BENCH_SIZE_STATE] && !has_linear(request)
               ? tool_fail(error, TOOL_BAD_INPUT, "--state is given: expected a variant of the linear family with it")
               : TOOL_DONE;
}

#define MAX_ORDER 3

static tool_exit parse_feature(const bench_choice *choice, bench_request *request, tool_error *error)
{
    static const char *const names[] = {"feature", "feature-order", "features"};
    const char *const values[] = {choice->feature, choice->feature_order, choice->features};
    int64_t order = 0;
    for (size_t i = 0; i < TOOL_COUNT(values); i++) {
        if (values[i] && !has_linear(request))
            return tool_fail(error, TOOL_BAD_INPUT, "--%s is given: expected a variant of the linear family with it",
                             names[i]);
    }
    TOOL_TRY(tool_parse_feature("feature", choice->feature, &request->feature, error));
    TOOL_TRY(tool_parse_integer("feature-order", choice->feature_order, 1, MAX_ORDER, &order, error));
    if (choice->feature_order && request->feature != CLMGK_FEATURE_DPFP)
        return tool_fail(error, TOOL_BAD_INPUT, "--feature-order is given: expected --feature dpfp with it");
    if (choice->features && request->feature != CLMGK_FEATURE_FAVOR)
        return tool_fail(error, TOOL_BAD_INPUT, "--features is given: expected --feature favor with it");
    request->feature_order = (int32_t)order;
    return tool_parse_integer("features", choice->features, 1, CLMGK_MAX_FEATURES, &request->features, error);
}

static tool_exit parse_shapes(const bench_choice *choice, bench_request *request, unsigned *suite, tool_error *error)
{
    const char *size = bench_given_size(choice->sizes);
    *suite = 0;
    if ((choice->suite != NULL) + (choice->shapes != NULL) + (size != NULL) > 1)
        return tool_fail(error, TOOL_BAD_INPUT, "expected one of --suite, --shapes and sizes (--%s), not several",
                         size ? size : "heads");
    if (choice->shapes)
        return parse_list("shapes", choice->shapes, BENCH_MAX_SHAPES, add_shape, request, error);
    if (size)
        return parse_sizes(choice->sizes, &request->shapes[request->shape_count++], error);
    return parse_suite(choice->suite ? choice->suite : choice->default_suite, choice->own_suites,
                       choice->own_suite_count, request, suite, error);
}

/* A type whose elements stand by themselves. */
static tool_exit parse_cache(const char *option, const char *text, clmgk_storage *storage, tool_error *error)
{
    TOOL_TRY(tool_parse_cache_storage(option, text, storage, error));
    if (text && clmgk_dtype_get_info((clmgk_dtype)(*storage - 1)).block > 1)
        return tool_fail(error, TOOL_BAD_INPUT, "--%s '%s': expected a type without blocks", option, text);
    return TOOL_DONE;
}

tool_exit bench_parse_choice(const bench_choice *choice, bench_request *request, unsigned *suite, tool_error *error)
{
    TOOL_TRY(parse_shapes(choice, request, suite, error));
    if (choice->variants)
        TOOL_TRY(parse_list("variants", choice->variants, BENCH_MAX_VARIANTS, add_variant, request, error));
    else
        take_default_variants(request, *suite);
    TOOL_TRY(check_state(choice, request, error));
    TOOL_TRY(parse_feature(choice, request, error));
    TOOL_TRY(parse_cache("dtype-k", choice->dtype_k, &request->dtype_k, error));
    TOOL_TRY(parse_cache("dtype-v", choice->dtype_v, &request->dtype_v, error));
    TOOL_TRY(tool_parse_storage("dtype-o", choice->dtype_o, &request->dtype_o, error));
    TOOL_TRY(tool_parse_precision("precision", choice->precision, &request->precision, error));
    const char *const usual = *suite == BENCH_SUITE_GPU ? "bf16,f32" : "f32";
    return parse_list("dtype", choice->dtypes ? choice->dtypes : usual, CLMGK_DTYPES, add_dtype, request, error);
}
