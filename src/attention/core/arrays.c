/* SPDX-License-Identifier: Apache-2.0 */
/* Shape and presence of every array, by the lines of CLMGK_ARRAY_LIST. */
#include "attention/core/arrays.h"

#include "engine/engine.h"

#include <string.h>

/* ---- expressions of the list --------------------------------------------------------------------------------- */

static bool has_trait(const clmgk_attention_desc *d, clmgk_variant_trait trait)
{
    return mgk_has_trait(d, trait);
}

static bool generalised(const clmgk_attention_desc *d)
{
    return has_trait(d, CLMGK_TRAIT_GENERALISED);
}

static bool linear(const clmgk_attention_desc *d)
{
    return has_trait(d, CLMGK_TRAIT_LINEAR);
}

/* c */
static bool has_offset(const clmgk_attention_desc *d)
{
    return generalised(d) && !linear(d);
}

/* The state has a logarithmic scale. */
static bool has_scale(const clmgk_attention_desc *d)
{
    return linear(d) && (d->feature == CLMGK_FEATURE_EXP || d->feature == CLMGK_FEATURE_FAVOR);
}

static const char *query_axes(const clmgk_attention_desc *d)
{
    return has_trait(d, CLMGK_TRAIT_ADMIXTURE) ? "BMND" : "BHND";
}

bool mgk_has_caches(const clmgk_attention_desc *d)
{
    return d->sequences > 0 && (d->use_lengths || d->page_size > 0);
}

/* The axes of an array of keys, whose problems are in pages, in caches of packed sequences, or in batches. */
static const char *place_axes(const clmgk_attention_desc *d, const char *pages, const char *caches, const char *batches)
{
    return d->page_size > 0 ? pages : mgk_has_caches(d) ? caches : batches;
}

static const char *key_axes(const clmgk_attention_desc *d)
{
    if (has_trait(d, CLMGK_TRAIT_ADMIXTURE))
        return place_axes(d, "PMKD", "TMSD", "BMSD");
    if (has_trait(d, CLMGK_TRAIT_KEYS))
        return place_axes(d, "PGMKD", "TGMSD", "BGMSD");
    return place_axes(d, "PGKD", "TGSD", "BGSD");
}

static const char *value_axes(const clmgk_attention_desc *d)
{
    return place_axes(d, "PGKE", "TGSE", "BGSE");
}

/* Tokens first, as projections make them. */
static const char *append_axes(const clmgk_attention_desc *d)
{
    if (has_trait(d, CLMGK_TRAIT_ADMIXTURE))
        return "RMD";
    return has_trait(d, CLMGK_TRAIT_KEYS) ? "RGMD" : "RGD";
}

/* Shapes of the scales of K and V: without D and E. */
static const char *key_scale_axes(const clmgk_attention_desc *d)
{
    if (has_trait(d, CLMGK_TRAIT_ADMIXTURE))
        return place_axes(d, "PMK", "TMS", "BMS");
    if (has_trait(d, CLMGK_TRAIT_KEYS))
        return place_axes(d, "PGMK", "TGMS", "BGMS");
    return place_axes(d, "PGK", "TGS", "BGS");
}

static const char *value_scale_axes(const clmgk_attention_desc *d)
{
    return place_axes(d, "PGK", "TGS", "BGS");
}

/* Problems with a length of keys each. */
static const char *cache_axis(const clmgk_attention_desc *d)
{
    return mgk_has_caches(d) ? "T" : "B";
}

static const char *problem_axis(const clmgk_attention_desc *d)
{
    return d->sequences > 0 ? "T" : "B";
}

/* Of each problem, or compressed, of all. */
static const char *table_axes(const clmgk_attention_desc *d)
{
    return d->use_page_offsets ? "C" : d->sequences > 0 ? "TC" : "BC";
}

/* A uniform prior counts as [M]. */
static const char *prior_axes(const clmgk_attention_desc *d)
{
    if (d->prior_shape == CLMGK_PRIOR_HMS)
        return "HMS";
    return d->prior_shape == CLMGK_PRIOR_HM ? "HM" : "M";
}

/* A number counts as [1]. */
static const char *variance_axes(const clmgk_attention_desc *d)
{
    if (d->variance_shape == CLMGK_VARIANCE_HM)
        return "HM";
    return d->variance_shape == CLMGK_VARIANCE_M ? "M" : "1";
}

/* Heads with a softmax of their own, and their rows. */
static const char *head_axis(const clmgk_attention_desc *d)
{
    return d->mix_after_heads > 0 ? "A" : "H";
}

static const char *row_axes(const clmgk_attention_desc *d)
{
    return d->mix_after_heads > 0 ? "BAN" : "BHN";
}

static const char *mix_axes(const clmgk_attention_desc *d)
{
    if (d->mix_hidden > 0)
        return "UM";
    if (has_trait(d, CLMGK_TRAIT_SHARED_MIX))
        return "M";
    return d->mix_after_heads > 0 ? "AM" : "HM";
}

static const char *weight_axes(const clmgk_attention_desc *d)
{
    if (d->mix_hidden > 0)
        return d->mix_after_heads > 0 ? "AU" : "HU";
    return d->mix_after_heads > 0 ? "AM" : "HM";
}

/* C, z and m of the state: of each head, or of each global head, whose z and m no local head differs in. */
static const char *axes_of_state(const clmgk_attention_desc *d, const char *batches[2], const char *pool[2])
{
    return (d->state_pool > 0 ? pool : batches)[has_trait(d, CLMGK_TRAIT_ADMIXTURE)];
}

static const char *state_axes(const clmgk_attention_desc *d)
{
    return axes_of_state(d, (const char *[]){"BHFE", "BHMFE"}, (const char *[]){"pHFE", "pHMFE"});
}

static const char *total_axes(const clmgk_attention_desc *d)
{
    return axes_of_state(d, (const char *[]){"BHF", "BMF"}, (const char *[]){"pHF", "pMF"});
}

static const char *scale_axes(const clmgk_attention_desc *d)
{
    return axes_of_state(d, (const char *[]){"BH", "B"}, (const char *[]){"pH", "p"});
}

/* The axes of captured array `number`. */
static const char *capture_axes(const clmgk_attention_desc *d, int number)
{
    static const char axes[] = "wxyz";
    return axes + CLMGK_MAX_CAPTURE_AXES - d->captures[number].axes;
}

/* Arrays of floats have gradients, by the score. */
static bool has_capture_gradient(const clmgk_attention_desc *d, int number)
{
    return d->score_mod != NULL && d->captures[number].name != NULL && d->captures[number].type != CLMGK_CAPTURE_I32;
}

#define CASE(array, value)                                                                                             \
    case CLMGK_ARRAY_##array:                                                                                          \
        return value;

static const char *axes_of(const clmgk_attention_desc *d, clmgk_array array)
{
    switch (array) {
#define AXES(name, field, element, access, values, passes, axes, has) CASE(name, axes)
#define AXES_OF_GRADIENT(name, field, element, bit, axes, has)        CASE(GRAD_##name, axes)
#define AXES_OF_STATISTIC(name, field, bit, axes)                     CASE(name, axes)
        CLMGK_ARRAY_LIST(AXES, AXES_OF_GRADIENT, AXES_OF_STATISTIC)
    case CLMGK_ARRAYS:
        break;
    }
    return "";
}

bool mgk_array_exists(const clmgk_attention_desc *d, clmgk_array array)
{
    switch (array) {
#define HAS(name, field, element, access, values, passes, axes, has) CASE(name, has)
#define HAS_GRADIENT(name, field, element, bit, axes, has)           CASE(GRAD_##name, has)
#define HAS_STATISTIC(name, ...)                                     CASE(name, true)
        CLMGK_ARRAY_LIST(HAS, HAS_GRADIENT, HAS_STATISTIC)
    case CLMGK_ARRAYS:
        break;
    }
    return false;
}

/* ---- lines ---------------------------------------------------------------------------------------------------- */

const clmgk_array_info *clmgk_array_get_info(clmgk_array array)
{
    static const clmgk_array_info infos[] = {
#define INFO(name, field, element, access, values, ...) {#field, CLMGK_ELEMENT_##element, CLMGK_VALUES_##values, 0, 0},
#define INFO_OF_GRADIENT(name, field, element, bit, ...)                                                               \
    {"grad_" #field, CLMGK_ELEMENT_##element, CLMGK_VALUES_ANY, bit, 0},
#define INFO_OF_STATISTIC(name, field, bit, axes) {#field, CLMGK_ELEMENT_F32, CLMGK_VALUES_ANY, 0, bit},
        CLMGK_ARRAY_LIST(INFO, INFO_OF_GRADIENT, INFO_OF_STATISTIC)};
    return (unsigned)array < MGK_COUNT(infos) ? &infos[array] : NULL;
}

clmgk_buffer *clmgk_array_buffer(clmgk_attention_args *args, clmgk_array array)
{
    static const size_t offsets[] = {
#define OFFSET(name, field, ...)             offsetof(clmgk_attention_args, field),
#define OFFSET_OF_GRADIENT(name, field, ...) offsetof(clmgk_attention_args, grad_##field),
        CLMGK_ARRAY_LIST(OFFSET, OFFSET_OF_GRADIENT, OFFSET)};
    if (args == NULL || (unsigned)array >= MGK_COUNT(offsets))
        return NULL;
    return (clmgk_buffer *)(void *)((char *)args + offsets[array]);
}

const clmgk_capture *mgk_capture_of(const clmgk_attention_desc *desc, clmgk_array array)
{
    const bool gradient = array >= CLMGK_ARRAY_GRAD_CAPTURE_0 && array <= CLMGK_ARRAY_GRAD_CAPTURE_7;
    const int first = gradient ? CLMGK_ARRAY_GRAD_CAPTURE_0 : CLMGK_ARRAY_CAPTURE_0;
    const int number = (int)array - first;
    return number >= 0 && number < CLMGK_MAX_CAPTURES ? &desc->captures[number] : NULL;
}

/* A gradient's own type, or its array's. */
static clmgk_storage gradient_storage(clmgk_storage own, clmgk_storage array)
{
    return own != CLMGK_STORAGE_AS_Q ? own : array;
}

/* The type of a STORAGE array, if it may differ from Q's. */
static clmgk_storage storage_of(const clmgk_attention_desc *desc, clmgk_array array)
{
    switch (array) {
    case CLMGK_ARRAY_GRAD_Q:
        return desc->dtype_grad_q;
    case CLMGK_ARRAY_K:
        return desc->dtype_k;
    case CLMGK_ARRAY_GRAD_K:
        return gradient_storage(desc->dtype_grad_k, desc->dtype_k);
    case CLMGK_ARRAY_V:
        return desc->dtype_v;
    case CLMGK_ARRAY_GRAD_V:
        return gradient_storage(desc->dtype_grad_v, desc->dtype_v);
    case CLMGK_ARRAY_O:
    case CLMGK_ARRAY_GRAD_O:
    case CLMGK_ARRAY_PARTS_O:
        return desc->dtype_o;
    default:
        return CLMGK_STORAGE_AS_Q;
    }
}

clmgk_dtype mgk_array_dtype(const clmgk_attention_desc *desc, clmgk_array array)
{
    const clmgk_array_info *const info = clmgk_array_get_info(array);
    if (info != NULL && info->element == CLMGK_ELEMENT_CAPTURE && mgk_capture_of(desc, array)->type < CLMGK_CAPTURE_I32)
        return (clmgk_dtype)mgk_capture_of(desc, array)->type;
    if (info == NULL || info->element != CLMGK_ELEMENT_STORAGE)
        return CLMGK_DTYPE_F32;
    return mgk_dtype_of(desc, storage_of(desc, array));
}

bool mgk_has_cache_types(const clmgk_attention_desc *desc)
{
    return mgk_is_cache_type(mgk_array_dtype(desc, CLMGK_ARRAY_K)) ||
           mgk_is_cache_type(mgk_array_dtype(desc, CLMGK_ARRAY_V));
}

bool mgk_has_one_type(const clmgk_attention_desc *desc)
{
    static const clmgk_array arrays[] = {CLMGK_ARRAY_K,      CLMGK_ARRAY_V,      CLMGK_ARRAY_O,
                                         CLMGK_ARRAY_GRAD_Q, CLMGK_ARRAY_GRAD_K, CLMGK_ARRAY_GRAD_V};
    for (size_t i = 0; i < MGK_COUNT(arrays); ++i)
        if (mgk_array_dtype(desc, arrays[i]) != desc->dtype)
            return false;
    return true;
}

size_t mgk_array_element_size(const clmgk_attention_desc *desc, clmgk_array array)
{
    const clmgk_array_info *const info = clmgk_array_get_info(array);
    if (info == NULL)
        return 0;
    return info->element == CLMGK_ELEMENT_BYTE ? 1 : clmgk_dtype_get_info(mgk_array_dtype(desc, array)).bytes;
}

/* ---- shapes --------------------------------------------------------------------------------------------------- */

int mgk_count_numbers(const clmgk_attention_desc *desc)
{
    int count = 0;
    while (count < CLMGK_MAX_NUMBERS && desc->numbers[count] != NULL)
        ++count;
    return count;
}

/* Blocks of an axis; 0 before their size is known. */
static int64_t blocks(int64_t length, int64_t size)
{
    return size > 0 ? (length + size - 1) / size : 0;
}

static int64_t size_of(const clmgk_attention_desc *d, char axis)
{
    const struct {
        char axis;
        int64_t size;
    } sizes[] = {{'B', d->batch},
                 {'H', d->heads},
                 {'G', d->kv_heads},
                 {'N', d->length},
                 {'S', d->length_k},
                 {'D', d->head_size},
                 {'E', d->value_size},
                 {'M', d->components},
                 {'T', d->sequences},
                 {'F', d->features},
                 {'b', d->bias_batch},
                 {'h', d->bias_heads},
                 {'n', d->bias_length},
                 {'s', d->bias_length_k},
                 {'U', d->mix_hidden},
                 {'#', mgk_count_numbers(d)},
                 {'A', d->mix_after_heads},
                 {'2', 2},
                 {'c', d->mask_blocks_batch},
                 {'d', d->mask_blocks_heads},
                 {'q', blocks(d->length, d->mask_block_q)},
                 {'k', blocks(d->length_k, d->mask_block_k)},
                 {'P', d->pages},
                 {'K', d->page_size},
                 {'C', d->table_pages},
                 {'o', d->batch + 1},
                 {'R', d->append},
                 {'Y', d->prefix_pages},
                 {'p', d->state_pool}};
    for (size_t i = 0; i < MGK_COUNT(sizes); ++i)
        if (sizes[i].axis == axis)
            return sizes[i].size;
    return axis == 't' ? d->sequences + 1 : 1;
}

/* A saturating product: an extent computed from it does not fit. */
static int64_t product(int64_t a, int64_t b)
{
    int64_t out = INT64_MAX;
    return mgk_mul_i64(a, b, &out) ? out : INT64_MAX;
}

/* Offset of the array's layout in the descriptor; 0: none. */
static size_t layout_offset(clmgk_array array)
{
#define OFFSET_OF_LAYOUT(NAME, field) [CLMGK_ARRAY_##NAME] = offsetof(clmgk_attention_desc, field)
    static const size_t offsets[CLMGK_ARRAYS] = {OFFSET_OF_LAYOUT(Q, q),
                                                 OFFSET_OF_LAYOUT(K, k),
                                                 OFFSET_OF_LAYOUT(V, v),
                                                 OFFSET_OF_LAYOUT(O, o),
                                                 OFFSET_OF_LAYOUT(LSE, lse),
                                                 OFFSET_OF_LAYOUT(GRAD_LSE, lse),
                                                 OFFSET_OF_LAYOUT(LSE_LOW, lse),
                                                 OFFSET_OF_LAYOUT(GRAD_O, grad_o),
                                                 OFFSET_OF_LAYOUT(GRAD_Q, grad_q),
                                                 OFFSET_OF_LAYOUT(GRAD_K, grad_k),
                                                 OFFSET_OF_LAYOUT(GRAD_V, grad_v),
                                                 OFFSET_OF_LAYOUT(APPEND_K, append_k),
                                                 OFFSET_OF_LAYOUT(APPEND_V, append_v),
                                                 OFFSET_OF_LAYOUT(SCALE_K, scale_k),
                                                 OFFSET_OF_LAYOUT(SCALE_V, scale_v)};
    return offsets[array];
}

clmgk_layout *mgk_array_layout(clmgk_attention_desc *desc, clmgk_array array)
{
    const size_t offset = layout_offset(array);
    return offset != 0 ? (clmgk_layout *)(void *)((char *)desc + offset) : NULL;
}

/* [B,heads,(M,)tokens,width], or [tokens,heads,(M,)width]; L has no width. */
static int64_t stride_in(const clmgk_layout *layout, const clmgk_shape *shape, int axis)
{
    const char letter = shape->axes[axis];
    if (letter == 'R')
        return layout->token;
    if (axis == 1)
        return layout->head;
    if (axis == 0)
        return layout->batch;
    if (letter == 'N' || letter == 'S' || letter == 'K')
        return layout->token;
    return letter == 'M' ? layout->component : 1;
}

/* Numbers of an element: of a block, in an array of blocks. */
static int32_t block_of(const clmgk_attention_desc *desc, clmgk_array array)
{
    return clmgk_dtype_get_info(mgk_array_dtype(desc, array)).block;
}

clmgk_shape mgk_array_shape(const clmgk_attention_desc *desc, clmgk_array array)
{
    clmgk_shape shape = {.rank = 0};
    const size_t offset = layout_offset(array);
    const clmgk_layout *const layout = (const void *)((const char *)desc + offset);
    const char *const axes = axes_of(desc, array);
    const clmgk_capture *const capture = mgk_capture_of(desc, array);
    const bool strided = capture != NULL && capture->strided && clmgk_array_get_info(array)->gradient == 0;
    const int32_t block = block_of(desc, array);
    shape.rank = (int32_t)strlen(axes);
    memcpy(shape.axes, axes, (size_t)shape.rank);
    int64_t dense = 1;
    for (int axis = shape.rank - 1; axis >= 0; --axis) {
        shape.size[axis] = capture != NULL ? capture->shape[axis] : size_of(desc, axes[axis]);
        if (axis == shape.rank - 1)
            shape.size[axis] /= block;
        shape.stride[axis] = offset != 0 ? stride_in(layout, &shape, axis) : strided ? capture->strides[axis] : dense;
        dense = product(dense, shape.size[axis]);
    }
    return shape;
}

int64_t mgk_softmax_heads(const clmgk_attention_desc *desc)
{
    return desc->mix_after_heads > 0 ? desc->mix_after_heads : desc->heads;
}

/* Some pass of the descriptor uses the array. */
static bool is_used(const clmgk_attention_desc *desc, clmgk_array array)
{
    for (int pass = 0; pass < CLMGK_PASSES; ++pass)
        if (mgk_array_presence(desc, (clmgk_pass)pass, array) != CLMGK_ABSENT)
            return true;
    return false;
}

clmgk_shape mgk_array_used_shape(const clmgk_attention_desc *desc, clmgk_array array)
{
    return is_used(desc, array) ? mgk_array_shape(desc, array) : (clmgk_shape){.rank = 0};
}

int64_t mgk_array_count(const clmgk_attention_desc *desc, clmgk_array array)
{
    const clmgk_shape shape = mgk_array_used_shape(desc, array);
    int64_t count = shape.rank > 0;
    bool empty = false;
    for (int i = 0; i < shape.rank; ++i) {
        empty = empty || shape.size[i] == 0;
        count = product(count, shape.size[i]);
    }
    return empty ? 0 : count;
}

bool mgk_array_extent(const clmgk_attention_desc *desc, clmgk_array array, int64_t *extent)
{
    const clmgk_shape shape = mgk_array_used_shape(desc, array);
    int64_t last = 0; /* offset of the last element */
    *extent = 0;
    if (mgk_array_count(desc, array) == 0)
        return true;
    for (int i = 0; i < shape.rank; ++i) {
        int64_t step = 0;
        if (!mgk_mul_i64(shape.size[i] - 1, shape.stride[i], &step) || !mgk_add_i64(last, step, &last))
            return false;
    }
    int64_t bytes = 0;
    return mgk_add_i64(last, 1, extent) && mgk_mul_i64(*extent, (int64_t)mgk_array_element_size(desc, array), &bytes);
}

bool mgk_desc_read(const clmgk_attention_desc *given, clmgk_attention_desc *desc)
{
    return given != NULL &&
           mgk_struct_read(given, "resolved", MGK_LEAST_DESC_SIZE, desc, sizeof(*desc), NULL) == CLMGK_OK;
}

/* ---- passes --------------------------------------------------------------------------------------------------- */

/* The arrays that an append writes: K and V, and the scales that it computes, those of integers. */
static bool is_appended(const clmgk_attention_desc *desc, clmgk_array array)
{
    return array == CLMGK_ARRAY_K || array == CLMGK_ARRAY_V ||
           (array == CLMGK_ARRAY_SCALE_K && mgk_array_dtype(desc, CLMGK_ARRAY_K) == CLMGK_DTYPE_INT8) ||
           (array == CLMGK_ARRAY_SCALE_V && mgk_array_dtype(desc, CLMGK_ARRAY_V) == CLMGK_DTYPE_INT8);
}

bool mgk_array_is_output(const clmgk_attention_desc *desc, clmgk_pass pass, clmgk_array array)
{
    const clmgk_array_info *const info = clmgk_array_get_info(array);
    if (pass == CLMGK_PASS_BACKWARD)
        return info->gradient != 0;
    if (pass == CLMGK_PASS_STATISTICS)
        return info->statistic != 0;
    if (pass == CLMGK_PASS_MASK)
        return array == CLMGK_ARRAY_MASK_BLOCKS;
    if (pass == CLMGK_PASS_APPEND)
        return is_appended(desc, array);
    return array == CLMGK_ARRAY_O || array == CLMGK_ARRAY_LSE || array == CLMGK_ARRAY_LSE_LOW ||
           array == CLMGK_ARRAY_DENOMINATOR || (array >= CLMGK_ARRAY_NEW_STATE_C && array <= CLMGK_ARRAY_NEW_STATE_M);
}

bool mgk_pass_is_wanted(const clmgk_attention_desc *desc, clmgk_pass pass)
{
    const bool wanted[CLMGK_PASSES] = {true,
                                       desc->gradients != 0,
                                       desc->statistics != 0,
                                       desc->combine != 0,
                                       desc->use_mask_blocks && desc->mask_mod != NULL,
                                       desc->append > 0};
    return wanted[pass];
}

/* The letter of the pass: r required, o optional, - absent. */
static char letter_of(clmgk_pass pass, clmgk_array array)
{
    static const char *const passes[] = {
#define PASSES(name, field, element, access, values, letters, ...) letters,
#define PASSES_OF_GRADIENT(...)                                    "-r--",
#define PASSES_OF_STATISTIC(...)                                   "--r-",
        CLMGK_ARRAY_LIST(PASSES, PASSES_OF_GRADIENT, PASSES_OF_STATISTIC)};
    return ((size_t)pass < strlen(passes[array]) ? passes[array] + pass : "-")[0];
}

clmgk_presence mgk_array_presence(const clmgk_attention_desc *desc, clmgk_pass pass, clmgk_array array)
{
    const clmgk_array_info *const info = clmgk_array_get_info(array);
    if (info == NULL || (unsigned)pass >= CLMGK_PASSES || !mgk_pass_is_wanted(desc, pass))
        return CLMGK_ABSENT;
    const char letter = letter_of(pass, array);
    const bool result = info->gradient != 0 || info->statistic != 0;
    const bool asked = (desc->gradients & info->gradient) != 0 || (desc->statistics & info->statistic) != 0;
    if (letter == '-' || !(result ? asked : mgk_array_exists(desc, array)))
        return CLMGK_ABSENT;
    return letter == 'r' ? CLMGK_REQUIRED : CLMGK_OPTIONAL;
}

bool mgk_array_is_of_pass(clmgk_pass pass, clmgk_array array)
{
    return letter_of(pass, array) != '-';
}

clmgk_status mgk_fail_missing(const clmgk_attention_desc *desc, clmgk_pass pass, clmgk_array array, const char *noun,
                              clmgk_error *error)
{
    if (pass == CLMGK_PASS_BACKWARD && array == CLMGK_ARRAY_LSE)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "lse: NULL: expected L of the forward pass, which gradients depend on");
    if (pass == CLMGK_PASS_BACKWARD && array == CLMGK_ARRAY_LSE_LOW)
        return mgk_fail(
            error, CLMGK_ERROR_INVALID_BUFFER,
            "lse_low: NULL: expected the array that the forward pass wrote, because the descriptor's use_lse_low is 1");
    if (pass == CLMGK_PASS_BACKWARD && array == CLMGK_ARRAY_DENOMINATOR)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "denominator: NULL: expected the array that the forward pass wrote, on which gradients depend");
    return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected %s (variant %s)", clmgk_array_name(array),
                    noun, clmgk_variant_name(desc->variant));
}

/* ---- public calls ---------------------------------------------------------------------------------------------- */

clmgk_shape clmgk_array_shape(const clmgk_attention_desc *resolved, clmgk_array array)
{
    clmgk_attention_desc d;
    return mgk_desc_read(resolved, &d) ? mgk_array_used_shape(&d, array) : (clmgk_shape){.rank = 0};
}

int64_t clmgk_array_count(const clmgk_attention_desc *resolved, clmgk_array array)
{
    clmgk_attention_desc d;
    return mgk_desc_read(resolved, &d) ? mgk_array_count(&d, array) : 0;
}

int64_t clmgk_array_bytes(const clmgk_attention_desc *resolved, clmgk_array array)
{
    clmgk_attention_desc d;
    int64_t extent = 0;
    if (!mgk_desc_read(resolved, &d) || !mgk_array_extent(&d, array, &extent))
        return 0;
    return extent * (int64_t)mgk_array_element_size(&d, array);
}

size_t clmgk_array_element_size(const clmgk_attention_desc *resolved, clmgk_array array)
{
    clmgk_attention_desc d;
    return mgk_desc_read(resolved, &d) ? mgk_array_element_size(&d, array) : 0;
}

clmgk_dtype clmgk_array_dtype(const clmgk_attention_desc *resolved, clmgk_array array)
{
    clmgk_attention_desc d;
    return mgk_desc_read(resolved, &d) ? mgk_array_dtype(&d, array) : CLMGK_DTYPE_F32;
}

clmgk_presence clmgk_array_presence(const clmgk_attention_desc *resolved, clmgk_pass pass, clmgk_array array)
{
    clmgk_attention_desc d;
    return mgk_desc_read(resolved, &d) ? mgk_array_presence(&d, pass, array) : CLMGK_ABSENT;
}

int32_t clmgk_array_is_output(const clmgk_attention_desc *resolved, clmgk_pass pass, clmgk_array array)
{
    clmgk_attention_desc d;
    return clmgk_array_get_info(array) != NULL && mgk_desc_read(resolved, &d) && mgk_array_is_output(&d, pass, array);
}
