/* SPDX-License-Identifier: Apache-2.0 */
/* Validation of descriptors, their defaults, and what they say of arrays. */
#include "attention/core/formulas.h"
#include "attention/core/mask.h"
#include "attention/plan.h"
#include "operation/rows.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static clmgk_status check_enums(const clmgk_attention_desc *d, clmgk_error *error)
{
    if (mgk_family_of(d->variant) == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "variant: %d: expected a clmgk_variant", (int)d->variant);
#define ENUM(field, count)  #field, (int)d->field, count
#define SWITCH(name, field) {ENUM(field, 2)},
    const struct {
        const char *field;
        int value, count;
    } fields[] = {{ENUM(dtype, CLMGK_DTYPES)},
                  {ENUM(dtype_k, 1 + CLMGK_ALL_DTYPES)},
                  {ENUM(dtype_v, 1 + CLMGK_ALL_DTYPES)},
                  {ENUM(dtype_o, 1 + CLMGK_DTYPES)},
                  {ENUM(dtype_grad_q, 1 + CLMGK_DTYPES)},
                  {ENUM(dtype_grad_k, 1 + CLMGK_DTYPES)},
                  {ENUM(dtype_grad_v, 1 + CLMGK_DTYPES)},
                  {ENUM(precision, 3)},
                  {ENUM(score, 3)},
                  {ENUM(estep, 2)},
                  {ENUM(prior_shape, 4)},
                  {ENUM(variance_shape, 3)},
                  {ENUM(alignment, 3)},
                  {ENUM(causal, 2)},
                  {ENUM(use_window, 2)},
                  {ENUM(shared_noise, 2)},
                  {ENUM(combine, 2)},
                  {ENUM(partial_keys, 2)},
                  {ENUM(sizes_at_call, 2)},
                  {ENUM(resolved, 2)},
                  {ENUM(feature, 5)},
                  {ENUM(append_rotary, 3)},
                  {ENUM(unnormalised, 2)},
                  CLMGK_SWITCH_LIST(SWITCH)};
    for (size_t i = 0; i < MGK_COUNT(fields); ++i)
        MGK_TRY(mgk_check_range(fields[i].field, fields[i].value, 0, fields[i].count - 1, error));
    return CLMGK_OK;
}

/* The linear family's fields, in other families. */
static clmgk_status check_no_features(const clmgk_attention_desc *d, clmgk_error *error)
{
    const struct {
        const char *field;
        double value;
    } fields[] = {{"feature", d->feature},
                  {"feature_order", d->feature_order},
                  {"features", (double)d->features},
                  {"guard", d->guard},
                  {"feature_epsilon", d->feature_epsilon},
                  {"unnormalised", d->unnormalised},
                  {"state_pool", (double)d->state_pool}};
    for (size_t i = 0; i < MGK_COUNT(fields); ++i)
        if (fields[i].value != 0.0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %g: expected 0 with variant %s", fields[i].field,
                            fields[i].value, clmgk_variant_name(d->variant));
    return CLMGK_OK;
}

/* Refuses fields that mean nothing to the variant. */
static clmgk_status check_foreign_fields(const clmgk_attention_desc *d, clmgk_error *error)
{
    const char *field = d->shared_noise && !mgk_has_trait(d, CLMGK_TRAIT_NOISE) ? "shared_noise" : NULL;
#define FIND_FOREIGN(name, switch)                                                                                     \
    if (d->switch && !mgk_array_exists(d, CLMGK_ARRAY_##name))                                                         \
        field = #switch;
    CLMGK_SWITCH_LIST(FIND_FOREIGN)
    if (field == NULL)
        return mgk_has_trait(d, CLMGK_TRAIT_LINEAR) ? CLMGK_OK : check_no_features(d, error);
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: 1: expected 0 with variant %s", field,
                    clmgk_variant_name(d->variant));
}

/* A hidden layer is the generalised form's; a relu of a sum over global heads is no product of features. */
static clmgk_status check_hidden(const clmgk_attention_desc *d, clmgk_error *error)
{
    const bool linear = mgk_has_trait(d, CLMGK_TRAIT_LINEAR);
    if (d->mix_hidden != 0 && (linear || !mgk_has_trait(d, CLMGK_TRAIT_GENERALISED)))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "mix_hidden: %" PRId64 ": expected 0 with variant %s%s",
                        d->mix_hidden, clmgk_variant_name(d->variant),
                        linear && mgk_has_trait(d, CLMGK_TRAIT_GENERALISED)
                            ? ": a hidden unit's relu is not a product of features"
                            : "");
    MGK_TRY(mgk_check_range("mix_hidden", d->mix_hidden, 0, CLMGK_MAX_MIXED_HEADS, error));
    if (d->mix_hidden > 0)
        return CLMGK_OK;
    if (d->use_mix_hidden_offset)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "use_mix_hidden_offset: 1: expected 0, or mix_hidden > 0 with it");
    const bool wanted = (d->gradients & CLMGK_GRADIENT_MIX_HIDDEN_OFFSET) != 0;
    if (wanted && !linear && mgk_has_trait(d, CLMGK_TRAIT_GENERALISED))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "gradients: MIX_HIDDEN_OFFSET: expected mix_hidden > 0 with this gradient");
    return CLMGK_OK;
}

/* Weights of a softmax over keys are mixed; the linear forms never compute them. */
static clmgk_status check_after(const clmgk_attention_desc *d, clmgk_error *error)
{
    const bool mixed = mgk_has_trait(d, CLMGK_TRAIT_ADMIXTURE), linear = mgk_has_trait(d, CLMGK_TRAIT_LINEAR);
    if (d->mix_after_heads != 0 && (linear || !mixed))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "mix_after_heads: %" PRId64 ": expected 0 with variant %s%s",
                        d->mix_after_heads, clmgk_variant_name(d->variant),
                        linear && mixed ? ": it has no softmax, whose weights could be mixed" : "");
    MGK_TRY(mgk_check_range("mix_after_heads", d->mix_after_heads, 0, CLMGK_MAX_MIXED_HEADS, error));
    if (d->mix_after_heads > 0 && d->combine)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "combine: 1: expected 0 with mix_after_heads = %" PRId64
                        ": O sums weights of several heads, each relative to an L of its own",
                        d->mix_after_heads);
    if (d->mix_after_heads == 0 && mixed && !linear && (d->gradients & CLMGK_GRADIENT_MIX_AFTER) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "gradients: MIX_AFTER: expected mix_after_heads > 0 with this gradient");
    return CLMGK_OK;
}

static void set_default(int64_t *field, int64_t value)
{
    if (*field == 0)
        *field = value;
}

/* From here on length_k is the number of keys. */
static clmgk_status resolve_keys(clmgk_attention_desc *d, clmgk_error *error)
{
    if (d->length_k < CLMGK_NO_KEYS)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "length_k: %" PRId64 ": expected 1 to %" PRId64
                        ", 0 for as many as queries, or CLMGK_NO_KEYS (%d)",
                        d->length_k, MGK_MAX_AXIS, CLMGK_NO_KEYS);
    const int64_t pages = d->page_size > 0 && d->table_pages > 0 && d->table_pages <= MGK_MAX_AXIS / d->page_size
                              ? d->table_pages * d->page_size
                              : 0; /* the keys of a whole table */
    set_default(&d->length_k, pages > 0 ? pages : d->length);
    if (d->length_k == CLMGK_NO_KEYS)
        d->length_k = 0;
    d->resolved = 1;
    return CLMGK_OK;
}

static clmgk_status resolve_axes(clmgk_attention_desc *d, clmgk_error *error)
{
    set_default(&d->batch, 1);
    set_default(&d->heads, 1);
    set_default(&d->kv_heads, d->heads);
    set_default(&d->value_size, d->head_size);
    if (!d->resolved)
        MGK_TRY(resolve_keys(d, error));
    MGK_TRY(mgk_check_axis("batch", d->batch, 1, error));
    MGK_TRY(mgk_check_axis("heads", d->heads, 1, error));
    MGK_TRY(mgk_check_axis("kv_heads", d->kv_heads, 1, error));
    MGK_TRY(mgk_check_axis("length", d->length, 0, error));
    MGK_TRY(mgk_check_axis("length_k", d->length_k, 0, error));
    MGK_TRY(mgk_check_range("head_size", d->head_size, 1, CLMGK_MAX_HEAD_SIZE, error));
    MGK_TRY(mgk_check_range("value_size", d->value_size, 1, CLMGK_MAX_HEAD_SIZE, error));
    if (d->heads % d->kv_heads != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "kv_heads: %" PRId64 ": expected a divisor of heads = %" PRId64, d->kv_heads, d->heads);
    return CLMGK_OK;
}

static clmgk_status resolve_variance(clmgk_attention_desc *d, clmgk_error *error)
{
    if (mgk_has_trait(d, CLMGK_TRAIT_LINEAR)) /* has none */
        return CLMGK_OK;
    if (d->variance_shape != CLMGK_VARIANCE_NUMBER) {
        if (d->variance != 0.0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "variance: %g: expected 0 because variance_shape names an array", d->variance);
        return CLMGK_OK;
    }
    if (!(d->variance >= 0.0) || isinf(d->variance))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "variance: %g: expected a positive number, or 0 for the square root of head_size", d->variance);
    const double root = sqrt((double)d->head_size);
    if (d->variance == 0.0)
        d->variance = root;
    if (mgk_has_trait(d, CLMGK_TRAIT_ADMIXTURE) && d->variance != root)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "variance: %g: expected 0 with variant %s (to change the scale, multiply the mixing)",
                        d->variance, clmgk_variant_name(d->variant));
    /* the kernels take it as an f32 */
    const float single = (float)d->variance;
    if (single == 0.0f || isinf(single) || isinf(1.4427f / single))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "variance: %g: expected 4.24e-39 to 3.4e+38", d->variance);
    return CLMGK_OK;
}

/* ---- masks and modifiers ------------------------------------------------------------------------------------ */

static clmgk_status resolve_window_side(const char *field, int64_t *side, clmgk_error *error)
{
    if (*side < -1)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected -1 (no limit), 0 or more", field,
                        *side);
    if (*side >= MGK_MAX_AXIS) /* larger than every distance */
        *side = -1;
    return CLMGK_OK;
}

/* Refuses a field that means nothing unless a switch is on. */
static clmgk_status check_idle(const char *field, int64_t value, bool idle, const char *needed, clmgk_error *error)
{
    return idle ? CLMGK_OK
                : mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRId64 ": expected 0, or %s = 1 with it", field,
                           value, needed);
}

static clmgk_status check_no_window(const char *field, int64_t side, clmgk_error *error)
{
    return check_idle(field, side, side == 0 || side == -1, "use_window", error);
}

static clmgk_status resolve_window(clmgk_attention_desc *d, clmgk_error *error)
{
    if (!d->use_window) {
        MGK_TRY(check_no_window("window_left", d->window_left, error));
        return check_no_window("window_right", d->window_right, error);
    }
    MGK_TRY(resolve_window_side("window_left", &d->window_left, error));
    return resolve_window_side("window_right", &d->window_right, error);
}

/* Packed queries over a cache of keys and values for each sequence, of which the call's lengths are in use. */
static clmgk_status check_caches(const clmgk_attention_desc *d, clmgk_error *error)
{
    if (d->use_offsets_k)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "use_offsets_k: 1: expected 0 with sequences = %" PRId64
                        " and %s, which give each sequence a cache of its own",
                        d->sequences, d->page_size > 0 ? "pages" : "use_lengths = 1");
    if (mgk_has_trait(d, CLMGK_TRAIT_LINEAR))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "use_lengths: 1: expected 0 with packed sequences and variant %s, which has no cache of keys",
                        clmgk_variant_name(d->variant));
    if (d->use_positions)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "use_positions: 1: expected 0 with packed sequences and use_lengths = 1, whose caches are in"
                        " order");
    if (d->gradients != 0 || d->statistics != 0)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                        "%s: expected 0 with packed sequences and use_lengths = 1: caches are for inference",
                        d->gradients != 0 ? "gradients" : "statistics");
    return CLMGK_OK;
}

/* Keys and values in pages, for inference. */
static clmgk_status check_pages(const clmgk_attention_desc *d, clmgk_error *error)
{
    MGK_TRY(mgk_check_axis("page_size", d->page_size, 0, error));
    if (d->page_size == 0) {
        MGK_TRY(check_idle("pages", d->pages, d->pages == 0, "page_size", error));
        MGK_TRY(check_idle("table_pages", d->table_pages, d->table_pages == 0, "page_size", error));
        return check_idle("use_page_offsets", d->use_page_offsets, d->use_page_offsets == 0, "page_size", error);
    }
    MGK_TRY(mgk_check_axis("pages", d->pages, 1, error));
    MGK_TRY(mgk_check_axis("table_pages", d->table_pages, 1, error));
    if (mgk_has_trait(d, CLMGK_TRAIT_LINEAR))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "page_size: %" PRId64 ": expected 0 with variant %s",
                        d->page_size, clmgk_variant_name(d->variant));
    if (d->use_page_offsets && d->use_lengths)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "use_lengths: 1: expected 0 with use_page_offsets = 1: last_page gives the lengths");
    if (!d->use_page_offsets && d->length_k > d->table_pages * d->page_size)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "length_k: %" PRId64 ": expected at most table_pages * page_size = %" PRId64, d->length_k,
                        d->table_pages * d->page_size);
    const char *const field = d->gradients != 0        ? "gradients"
                              : d->statistics != 0     ? "statistics"
                              : d->use_positions       ? "use_positions"
                              : d->mix_after_heads > 0 ? "mix_after_heads"
                                                       : NULL;
    return field == NULL ? CLMGK_OK
                         : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%s: expected 0 with page_size = %" PRId64 ": %s",
                                    field, d->page_size,
                                    d->gradients != 0 || d->statistics != 0 ? "pages are for inference"
                                                                            : "its kernels do not read pages");
}

static clmgk_status resolve_append(clmgk_attention_desc *d, clmgk_error *error)
{
    const mgk_rotary_fields rotary = {.prefix = "append_",
                                      .head = "head_size",
                                      .rotary = d->append_rotary,
                                      .head_size = d->head_size,
                                      .size = &d->append_rotary_size,
                                      .base = &d->append_rotary_base};
    MGK_TRY(mgk_check_axis("append", d->append, 0, error));
    MGK_TRY(mgk_resolve_rotary(&rotary, error));
    if (d->append == 0)
        return d->append_rotary == CLMGK_ROTARY_NONE
                   ? CLMGK_OK
                   : mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "append_rotary: %d: expected 0 with append = 0",
                              (int)d->append_rotary);
    if (mgk_has_trait(d, CLMGK_TRAIT_LINEAR))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "append: %" PRId64 ": expected 0 with variant %s", d->append,
                        clmgk_variant_name(d->variant));
    const int64_t rows = d->page_size > 0 ? d->page_size : d->length_k;
    const int64_t places = d->page_size > 0 ? d->pages : mgk_has_caches(d) ? d->sequences : d->batch;
    if (rows > 0 && places > INT32_MAX / rows)
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW,
                        "append: %" PRId64 ": expected less than 2^31 slots, found %" PRId64 " times %" PRId64,
                        d->append, places, rows);
    return CLMGK_OK;
}

/* The first field that a prefix rules out, which comes before all keys; NULL: none. */
static const char *find_placed(const clmgk_attention_desc *d)
{
    const struct {
        bool wrong;
        const char *field;
    } rules[] = {{d->use_window, "use_window"},
                 {d->use_alibi, "use_alibi"},
                 {d->use_bias, "use_bias"},
                 {d->dropout > 0.0, "dropout"},
                 {mgk_has_trait(d, CLMGK_TRAIT_NOISE), "noise of the variant"},
                 {d->score_mod != NULL, "score_mod"},
                 {d->mask_mod != NULL, "mask_mod"},
                 {d->prior_shape == CLMGK_PRIOR_HMS, "prior_shape"},
                 {d->causal && d->alignment == CLMGK_ALIGN_TOP_LEFT, "alignment TOP_LEFT of a causal mask"},
                 {d->sizes_at_call, "sizes_at_call"}};
    for (size_t i = 0; i < MGK_COUNT(rules); ++i)
        if (rules[i].wrong)
            return rules[i].field;
    return NULL;
}

static clmgk_status check_prefix(const clmgk_attention_desc *d, clmgk_error *error)
{
    MGK_TRY(mgk_check_axis("prefix_pages", d->prefix_pages, 0, error));
    if (d->prefix_pages == 0)
        return CLMGK_OK;
    if (d->page_size == 0 || d->sequences == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "prefix_pages: %" PRId64 ": expected 0 without %s",
                        d->prefix_pages, d->page_size == 0 ? "pages (page_size)" : "packed sequences (sequences)");
    if (d->prefix_pages > MGK_MAX_AXIS / d->page_size)
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "prefix_pages: %" PRId64 ": expected at most %" PRId64 " keys",
                        d->prefix_pages, MGK_MAX_AXIS);
    const char *const field = find_placed(d);
    return field == NULL ? CLMGK_OK
                         : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED,
                                    "prefix_pages: %" PRId64 ": expected 0 with %s, for which a key's place counts",
                                    d->prefix_pages, field);
}

/* The uses that a type of a cache, of the array in this field, does not serve. */
static clmgk_status check_cache_pass(const clmgk_attention_desc *d, const char *array, const char *type,
                                     clmgk_error *error)
{
    const bool linear = mgk_has_trait(d, CLMGK_TRAIT_LINEAR);
    const struct {
        bool wrong;
        const char *with, *name, *reason;
    } rules[] = {{d->gradients != 0, "gradients", "", "types of caches are for inference"},
                 {d->statistics != 0, "statistics", "", "types of caches are for inference"},
                 {linear, "variant ", clmgk_variant_name(d->variant), "the linear family keeps a state, not a cache"}};
    for (size_t i = 0; i < MGK_COUNT(rules); ++i)
        if (rules[i].wrong)
            return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%s: %s: expected f32, f16 or bf16 with %s%s: %s", array,
                            type, rules[i].with, rules[i].name, rules[i].reason);
    return CLMGK_OK;
}

/* K or V in a type of a cache, with its scales. */
static clmgk_status check_cache_type(const clmgk_attention_desc *d, clmgk_array array, int64_t size, int use_scale,
                                     clmgk_error *error)
{
    const char *const fields[2][4] = {{"dtype_k", "use_scale_k", "head_size", "K"},
                                      {"dtype_v", "use_scale_v", "value_size", "V"}};
    const char *const *const field = fields[array == CLMGK_ARRAY_V];
    const clmgk_dtype dtype = mgk_array_dtype(d, array);
    const clmgk_dtype_info info = clmgk_dtype_get_info(dtype);
    if (use_scale && (!mgk_is_cache_type(dtype) || info.block > 1))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: 1: expected 0 with %s in %s, which has %s", field[1],
                        field[3], info.name, info.block > 1 ? "scales in its blocks" : "no scales");
    if (size % info.block != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "%s: %" PRId64 ": expected a multiple of %d, the block of %s in %s", field[2], size, info.block,
                        field[3], info.name);
    return mgk_is_cache_type(dtype) ? check_cache_pass(d, field[0], info.name, error) : CLMGK_OK;
}

/* Packed sequences have an alignment of their own, and lengths, too, unless they have caches. */
static clmgk_status check_sequences(const clmgk_attention_desc *d, clmgk_error *error)
{
    MGK_TRY(mgk_check_axis("sequences", d->sequences, 0, error));
    if (d->sequences == 0)
        return d->use_offsets_k
                   ? mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "use_offsets_k: 1: expected sequences > 0 with it")
                   : CLMGK_OK;
    if (d->batch != 1)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "batch: %" PRId64 ": expected 1 with packed sequences (sequences = %" PRId64 ")", d->batch,
                        d->sequences);
    if (d->use_lengths_q)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "use_lengths_q: 1: expected 0 with packed sequences");
    if (mgk_has_caches(d))
        return check_caches(d, error);
    if (!d->use_offsets_k && d->length != d->length_k)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "length_k: %" PRId64 ": expected length = %" PRId64
                        " because keys use the queries' offsets (use_offsets_k = 0)",
                        d->length_k, d->length);
    return CLMGK_OK;
}

/* An axis of the bias: 1 or full. */
static clmgk_status resolve_bias_axis(const char *field, int64_t *axis, int64_t full, clmgk_error *error)
{
    set_default(axis, full);
    MGK_TRY(mgk_check_axis(field, *axis, 0, error));
    if (*axis != 1 && *axis != full)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE, "%s: %" PRId64 ": expected 1 or %" PRId64, field, *axis,
                        full);
    return CLMGK_OK;
}

static clmgk_status check_no_bias(const clmgk_attention_desc *d, clmgk_error *error)
{
    const struct {
        const char *field;
        int64_t size;
    } axes[] = {{"bias_batch", d->bias_batch},
                {"bias_heads", d->bias_heads},
                {"bias_length", d->bias_length},
                {"bias_length_k", d->bias_length_k}};
    for (size_t i = 0; i < MGK_COUNT(axes); ++i)
        MGK_TRY(check_idle(axes[i].field, axes[i].size, axes[i].size == 0, "use_bias", error));
    return CLMGK_OK;
}

static clmgk_status resolve_bias(clmgk_attention_desc *d, clmgk_error *error)
{
    if (!d->use_bias)
        return check_no_bias(d, error);
    set_default(&d->bias_batch, d->batch);
    MGK_TRY(mgk_check_axis("bias_batch", d->bias_batch, 1, error));
    if (d->batch % d->bias_batch != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "bias_batch: %" PRId64 ": expected a divisor of batch = %" PRId64, d->bias_batch, d->batch);
    MGK_TRY(resolve_bias_axis("bias_heads", &d->bias_heads, mgk_softmax_heads(d), error));
    MGK_TRY(resolve_bias_axis("bias_length", &d->bias_length, d->length, error));
    return resolve_bias_axis("bias_length_k", &d->bias_length_k, d->length_k, error);
}

static clmgk_status check_softcap(const clmgk_attention_desc *d, clmgk_error *error)
{
    if (d->softcap == 0.0)
        return CLMGK_OK;
    if (!(d->softcap > 0.0) || isinf(d->softcap))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "softcap: %g: expected a positive number, or 0 for none",
                        d->softcap);
    /* the kernels take it and its inverse as f32 */
    const float single = (float)d->softcap;
    if (single == 0.0f || isinf(single) || isinf(1.0f / single))
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "softcap: %g: expected 2.94e-39 to 3.4e+38", d->softcap);
    const bool one_score = mgk_has_trait(d, CLMGK_TRAIT_ADMIXTURE) || d->components == 1;
    if (!one_score || d->score != CLMGK_SCORE_DOT)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "softcap: %g: expected 0, or dot scores of one component",
                        d->softcap);
    return CLMGK_OK;
}

/* Of random numbers. */
static clmgk_status resolve_coordinates(clmgk_attention_desc *d, clmgk_error *error)
{
    const int64_t heads = mgk_softmax_heads(d);
    MGK_TRY(mgk_check_axis("first_batch", d->first_batch, 0, error));
    MGK_TRY(mgk_check_axis("first_head", d->first_head, 0, error));
    set_default(&d->all_heads, d->first_head + heads);
    MGK_TRY(mgk_check_axis("all_heads", d->all_heads, 0, error));
    if (d->all_heads < d->first_head + heads)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "all_heads: %" PRId64 ": expected at least %" PRId64 ": first_head and the heads of the call",
                        d->all_heads, d->first_head + heads);
    return CLMGK_OK;
}

static clmgk_status check_dropout(const clmgk_attention_desc *d, clmgk_error *error)
{
    if (d->dropout >= 0.0 && d->dropout < 1.0)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "dropout: %g: expected a probability, 0 or more and less than 1",
                    d->dropout);
}

/* ---- passes ------------------------------------------------------------------------------------------------- */

static clmgk_status check_set(const char *field, uint32_t set, uint32_t all, clmgk_error *error)
{
    if ((set & ~all) == 0)
        return CLMGK_OK;
    return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: %" PRIu32 ": expected a set of flags, at most %" PRIu32,
                    field, set, all);
}

/* The field whose 1 would give the descriptor the gradient; NULL: none. */
static const char *switch_of(const clmgk_attention_desc *d, clmgk_array gradient)
{
    clmgk_attention_desc with = *d;
#define TURN_ON(name, switch)                                                                                          \
    with.switch = 1;                                                                                                   \
    if (mgk_array_exists(&with, gradient))                                                                             \
        return #switch;
    CLMGK_SWITCH_LIST(TURN_ON)
    return NULL;
}

/* Accepts gradients of arrays that the variant and the descriptor use. */
static clmgk_status check_gradients(const clmgk_attention_desc *d, clmgk_error *error)
{
    static const struct {
        const char *name;
        clmgk_array array;
        uint32_t bit;
    } gradients[] = {
#define GRADIENT(name, field, element, bit, ...) {#name, CLMGK_ARRAY_GRAD_##name, bit},
        CLMGK_ARRAY_LIST(CLMGK_ARRAY_NONE, GRADIENT, CLMGK_ARRAY_NONE)};
    for (size_t i = 0; i < MGK_COUNT(gradients); ++i) {
        if ((d->gradients & gradients[i].bit) == 0 || mgk_array_exists(d, gradients[i].array))
            continue;
        const char *const field = switch_of(d, gradients[i].array);
        if (field != NULL)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "gradients: %s: expected %s = 1 with this gradient",
                            gradients[i].name, field);
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "gradients: %s: expected only arrays of the variant: %s has no such array", gradients[i].name,
                        clmgk_variant_name(d->variant));
    }
    return CLMGK_OK;
}

static clmgk_status check_outputs(const clmgk_attention_desc *d, clmgk_error *error)
{
    MGK_TRY(check_gradients(d, error));
    MGK_TRY(check_set("statistics", d->statistics, CLMGK_STATISTIC_ALL, error));
    if ((d->statistics & CLMGK_STATISTIC_NLL) != 0 && d->use_positions)
        return mgk_fail(
            error, CLMGK_ERROR_UNSUPPORTED,
            "statistics: NLL: expected use_positions = 0: the number of a row's keys is taken from indices");
    if ((d->statistics & CLMGK_STATISTIC_NLL) != 0 && d->score != CLMGK_SCORE_GAUSSIAN)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "statistics: NLL: expected gaussian scores");
    return CLMGK_OK;
}

/* ---- layouts ------------------------------------------------------------------------------------------------ */

/* Strides of a dense array; false on overflow. An empty array has the strides of an array with one token. */
static bool dense_layout(clmgk_layout *layout, const clmgk_shape *shape)
{
    if (shape->axes[0] == 'R') {
        layout->strided = 1;
        layout->component = shape->size[shape->rank - 1];
        layout->head = shape->rank > 3 ? shape->size[2] * layout->component : layout->component;
        return mgk_mul_i64(shape->size[1], layout->head, &layout->token);
    }
    const bool has_width = shape->axes[shape->rank - 1] == 'D' || shape->axes[shape->rank - 1] == 'E';
    const int tokens = shape->rank - (has_width ? 2 : 1);
    const int64_t components = tokens > 2 ? shape->size[2] : 1;
    layout->strided = 1;
    layout->token = has_width ? shape->size[tokens + 1] : 1;
    return mgk_mul_i64(shape->size[tokens] == 0 ? 1 : shape->size[tokens], layout->token, &layout->component) &&
           mgk_mul_i64(layout->component, components, &layout->head) &&
           mgk_mul_i64(layout->head, shape->size[1], &layout->batch);
}

static clmgk_status check_strides(const char *name, const clmgk_layout *layout, clmgk_error *error)
{
    const struct {
        const char *axis;
        int64_t stride;
    } strides[] = {
        {"batch", layout->batch}, {"head", layout->head}, {"component", layout->component}, {"token", layout->token}};
    for (size_t i = 0; i < MGK_COUNT(strides); ++i)
        if (strides[i].stride < 0)
            return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE, "%s.%s: stride %" PRId64 ": expected 0 or more", name,
                            strides[i].axis, strides[i].stride);
    return CLMGK_OK;
}

/* With axes sorted by stride, each stride must exceed the reach of the axes before it. */
static clmgk_status check_no_overlap(const char *name, const clmgk_shape *shape, clmgk_error *error)
{
    bool done[CLMGK_MAX_RANK] = {false};
    int64_t reach = 0; /* offset of the last element over the axes so far */
    for (int step = 0; step < shape->rank; ++step) {
        int next = -1;
        for (int i = 0; i < shape->rank; ++i)
            if (!done[i] && (next < 0 || shape->stride[i] < shape->stride[next]))
                next = i;
        done[next] = true;
        if (shape->size[next] <= 1)
            continue;
        if (shape->stride[next] <= reach)
            return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                            "%s: stride %" PRId64 " of axis %d: expected more than %" PRId64
                            ", so that no two elements overlap",
                            name, shape->stride[next], next, reach);
        reach += (shape->size[next] - 1) * shape->stride[next];
    }
    return CLMGK_OK;
}

/* True if the array is an output, whose elements must not overlap. */
static bool is_written(const clmgk_attention_desc *d, clmgk_array array)
{
    for (int pass = 0; pass < CLMGK_PASSES; ++pass)
        if (mgk_pass_is_wanted(d, (clmgk_pass)pass) && mgk_array_is_output(d, (clmgk_pass)pass, array))
            return true;
    return false;
}

/* Fills in and checks the layout of an array. */
static clmgk_status resolve_layout(clmgk_attention_desc *d, clmgk_array array, clmgk_error *error)
{
    clmgk_layout *const layout = mgk_array_layout(d, array);
    const char *const name = clmgk_array_name(array);
    clmgk_shape shape = mgk_array_shape(d, array);
    int64_t extent = 0;
    if (layout->strided != 0 && layout->strided != 1)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s.strided: %d: expected 0 or 1", name,
                        (int)layout->strided);
    if (layout->strided)
        MGK_TRY(check_strides(name, layout, error));
    else if (!dense_layout(layout, &shape))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its size in elements does not fit in 64 bits", name);
    if (!mgk_array_extent(d, array, &extent))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its extent in bytes does not fit in 64 bits", name);
    shape = mgk_array_shape(d, array);
    return extent > 0 && is_written(d, array) ? check_no_overlap(name, &shape, error) : CLMGK_OK;
}

static clmgk_status resolve_layouts(clmgk_attention_desc *d, clmgk_error *error)
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i)
        if (mgk_array_layout(d, (clmgk_array)i) != NULL && i != CLMGK_ARRAY_GRAD_LSE) /* shares L's layout */
            MGK_TRY(resolve_layout(d, (clmgk_array)i, error));
    return CLMGK_OK;
}

/* ---- sizes -------------------------------------------------------------------------------------------------- */

static bool fits(const int64_t *factors, size_t count)
{
    int64_t product = 1;
    for (size_t i = 0; i < count; ++i)
        if (!mgk_mul_i64(product, factors[i] == 0 ? 1 : factors[i], &product))
            return false;
    return true;
}

/* Checks the sizes of dense arrays, and of workspaces (a few f32 numbers for each row, or each key and component; some
 * states of the linear family). */
static clmgk_status check_extents(const clmgk_attention_desc *d, clmgk_error *error)
{
    const int64_t heads = d->heads > mgk_softmax_heads(d) ? d->heads : mgk_softmax_heads(d);
    const int64_t rows[] = {d->batch, heads, d->components, d->length, 64};
    const int64_t keys[] = {mgk_has_caches(d) ? d->sequences : d->batch, heads, d->components, d->length_k, 64};
    const int64_t states[] = {d->batch, d->heads, d->components, d->features, d->value_size, 1 << 16};
    if (!fits(rows, MGK_COUNT(rows)) || !fits(keys, MGK_COUNT(keys)))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "batch * heads * components * %s does not fit in 64 bits",
                        fits(rows, MGK_COUNT(rows)) ? "length_k" : "length");
    if (!fits(states, MGK_COUNT(states)))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW,
                        "batch * heads * components * features * value_size does not fit in 64 bits");
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        int64_t extent = 0;
        if (!mgk_array_extent(d, (clmgk_array)i, &extent))
            return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its extent in bytes does not fit in 64 bits",
                            clmgk_array_name((clmgk_array)i));
    }
    return CLMGK_OK;
}

clmgk_status mgk_attention_resolve(const clmgk_attention_desc *desc, clmgk_attention_desc *resolved, clmgk_error *error)
{
    if (desc == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "desc: NULL: expected a descriptor");
    clmgk_attention_desc d;
    MGK_TRY(mgk_struct_read(desc, "desc", MGK_LEAST_DESC_SIZE, &d, sizeof(d), error));
    d.struct_size = sizeof(d);
    MGK_TRY(check_enums(&d, error));
    MGK_TRY(check_foreign_fields(&d, error));
    MGK_TRY(check_hidden(&d, error));
    MGK_TRY(check_after(&d, error));
    MGK_TRY(resolve_axes(&d, error));
    MGK_TRY(mgk_family_of(d.variant)->resolve(&d, error));
    MGK_TRY(mgk_check_range("components", d.components, 1, CLMGK_MAX_COMPONENTS, error));
    if (d.alignment == CLMGK_ALIGN_LENGTHS && !d.use_lengths && !d.use_page_offsets)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "alignment: LENGTHS: expected use_lengths = 1");
    MGK_TRY(check_pages(&d, error));
    MGK_TRY(check_cache_type(&d, CLMGK_ARRAY_K, d.head_size, d.use_scale_k, error));
    MGK_TRY(check_cache_type(&d, CLMGK_ARRAY_V, d.value_size, d.use_scale_v, error));
    MGK_TRY(resolve_variance(&d, error));
    MGK_TRY(resolve_window(&d, error));
    MGK_TRY(check_sequences(&d, error));
    MGK_TRY(resolve_append(&d, error));
    MGK_TRY(check_prefix(&d, error));
    MGK_TRY(resolve_bias(&d, error));
    MGK_TRY(check_softcap(&d, error));
    MGK_TRY(check_dropout(&d, error));
    MGK_TRY(resolve_coordinates(&d, error));
    MGK_TRY(check_set("gradients", d.gradients, CLMGK_GRADIENT_ALL, error));
    MGK_TRY(mgk_resolve_texts(&d, error));
    MGK_TRY(mgk_resolve_mask_blocks(&d, error));
    MGK_TRY(check_outputs(&d, error));
    MGK_TRY(resolve_layouts(&d, error));
    MGK_TRY(check_extents(&d, error));
    *resolved = d;
    return CLMGK_OK;
}

/* ---- sizes of a call -------------------------------------------------------------------------------------------- */

static clmgk_status check_limit(const char *field, int64_t size, int64_t limit, clmgk_error *error)
{
    return size <= limit
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                          "sizes.%s: %" PRId64 ": expected at most %" PRId64 ", the descriptor's", field, size, limit);
}

static clmgk_status check_limits(const clmgk_attention_desc *d, const clmgk_attention_desc *limits, clmgk_error *error)
{
    MGK_TRY(check_limit("batch", d->batch, limits->batch, error));
    MGK_TRY(check_limit("length", d->length, limits->length, error));
    MGK_TRY(check_limit("length_k", d->length_k, limits->length_k, error));
    MGK_TRY(check_limit("sequences", d->sequences, limits->sequences, error));
    MGK_TRY(check_limit("table_pages", d->table_pages, limits->table_pages, error));
    MGK_TRY(check_limit("append", d->append, limits->append, error));
    return d->sequences > 0 || limits->sequences == 0
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                          "sizes.sequences: 0: expected 1 to %" PRId64 ": the plan has packed sequences",
                          limits->sequences);
}

/* A whole axis follows the call's; an axis of 1 stays. */
static void follow(int64_t *axis, int64_t limit, int64_t size)
{
    if (*axis == limit && limit > 1)
        *axis = size;
}

clmgk_layout *mgk_call_layout(clmgk_call_sizes *sizes, clmgk_array array)
{
#define OFFSET(NAME, field) [CLMGK_ARRAY_##NAME] = offsetof(clmgk_call_sizes, field)
    static const size_t offsets[CLMGK_ARRAYS] = {OFFSET(Q, q),
                                                 OFFSET(K, k),
                                                 OFFSET(V, v),
                                                 OFFSET(O, o),
                                                 OFFSET(LSE, lse),
                                                 OFFSET(GRAD_O, grad_o),
                                                 OFFSET(GRAD_Q, grad_q),
                                                 OFFSET(GRAD_K, grad_k),
                                                 OFFSET(GRAD_V, grad_v),
                                                 OFFSET(APPEND_K, append_k),
                                                 OFFSET(APPEND_V, append_v),
                                                 OFFSET(SCALE_K, scale_k),
                                                 OFFSET(SCALE_V, scale_v)};
#undef OFFSET
    return offsets[array] != 0 ? (clmgk_layout *)(void *)((char *)sizes + offsets[array]) : NULL;
}

static void take_sizes(const clmgk_call_sizes *sizes, clmgk_attention_desc *d)
{
    clmgk_call_sizes own = *sizes;
    d->batch = sizes->batch;
    d->length = sizes->length;
    d->length_k = sizes->length_k;
    d->sequences = sizes->sequences;
    if (sizes->table_pages != 0)
        d->table_pages = sizes->table_pages;
    if (sizes->append != 0)
        d->append = sizes->append;
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        const clmgk_layout *const layout = mgk_call_layout(&own, (clmgk_array)i);
        if (layout != NULL)
            *mgk_array_layout(d, (clmgk_array)i) = *layout;
    }
    d->resolved = 0;
}

clmgk_status mgk_attention_resize(const clmgk_attention_desc *limits, const clmgk_call_sizes *sizes,
                                  clmgk_attention_desc *d, clmgk_error *error)
{
    *d = *limits;
    take_sizes(sizes, d);
    MGK_TRY(resolve_axes(d, error));
    MGK_TRY(check_pages(d, error));
    MGK_TRY(check_sequences(d, error));
    MGK_TRY(resolve_append(d, error));
    MGK_TRY(check_limits(d, limits, error));
    follow(&d->bias_batch, limits->batch, d->batch);
    follow(&d->bias_length, limits->length, d->length);
    follow(&d->bias_length_k, limits->length_k, d->length_k);
    follow(&d->mask_blocks_batch, limits->batch, d->batch);
    if (d->use_bias && d->batch % d->bias_batch != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_SHAPE,
                        "sizes.batch: %" PRId64 ": expected a multiple of bias_batch = %" PRId64, d->batch,
                        d->bias_batch);
    MGK_TRY(resolve_layouts(d, error));
    return check_extents(d, error);
}

clmgk_status clmgk_attention_validate(const clmgk_attention_desc *desc, clmgk_attention_desc *resolved,
                                      clmgk_error *error)
{
    clmgk_attention_desc d;
    MGK_TRY(mgk_attention_resolve(desc, &d, error));
    if (resolved == NULL)
        return CLMGK_OK;
    resolved->struct_size = desc->struct_size;
    mgk_struct_write(resolved, 0, &d, sizeof(d));
    return CLMGK_OK;
}

void mgk_plan_list_arrays(const clmgk_attention_desc *desc, mgk_plan_array array[CLMGK_ARRAYS])
{
    for (int i = 0; i < CLMGK_ARRAYS; ++i) {
        mgk_plan_array *const line = &array[i];
        const clmgk_shape shape = mgk_array_used_shape(desc, (clmgk_array)i);
        line->element = mgk_array_element_size(desc, (clmgk_array)i);
        line->extent =
            shape.rank > 0 ? mgk_extent_of(shape.rank, shape.size, shape.stride, line->element) : mgk_extent_dense(0);
        for (int pass = 0; pass < CLMGK_PASSES; ++pass)
            line->presence[pass] = mgk_array_presence(desc, (clmgk_pass)pass, (clmgk_array)i);
    }
}
