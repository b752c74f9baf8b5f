/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of a shape: their descriptors, and what they cost. */
#include "cases.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *bench_gradient_array(int which)
{
    static char names[CLMGK_REF_GRADIENTS][24];
    char *const name = names[which];
    snprintf(name, sizeof(names[0]), "d%s",
             clmgk_array_get_info((clmgk_array)(CLMGK_ARRAY_GRAD_Q + which))->name + strlen("grad_"));
    for (char *at = strchr(name, '_'); at; at = strchr(at, '_'))
        *at = '-';
    return name;
}

const char *bench_gradient_name(int which)
{
    return bench_gradient_array(which) + 1;
}

const char *bench_pass_name(bench_pass pass)
{
    return clmgk_pass_name(pass == BENCH_MASK       ? CLMGK_PASS_MASK
                           : pass == BENCH_BACKWARD ? CLMGK_PASS_BACKWARD
                                                    : CLMGK_PASS_FORWARD);
}

bench_names bench_gradient_names(uint32_t set)
{
    bench_names names = {{0}};
    size_t length = 0;
    for (int i = 0; i < CLMGK_REF_GRADIENTS; i++) {
        if (set & 1U << i)
            length += (size_t)snprintf(names.text + length, sizeof(names.text) - length, "%s%s", length ? "," : "",
                                       bench_gradient_name(i));
    }
    return names;
}

/* ---- descriptors -------------------------------------------------------------------------------------------- */

static int64_t heads_of(const bench_shape *shape, const bench_variant *variant)
{
    return variant->heads == BENCH_HEADS_OF_SHAPE ? shape->heads
           : variant->heads == BENCH_HEADS_HALF   ? (shape->heads + 1) / 2
                                                  : variant->heads;
}

/* Whether the variant has several components of a key: separate keys, or shifts. */
static bool has_components(clmgk_variant variant)
{
    return (clmgk_variant_traits(variant) & (CLMGK_TRAIT_KEYS | CLMGK_TRAIT_SHIFT)) != 0;
}

static int64_t components_of(const bench_shape *shape, const bench_variant *variant)
{
    if (variant->components)
        return variant->components;
    const bool square = (clmgk_variant_traits(variant->variant) & CLMGK_TRAIT_SQUARE) != 0;
    return has_components(variant->variant) || (tool_is_mixed(variant->variant) && !square) ? shape->components : 0;
}

static void take_modifiers(const bench_modifiers *modifiers, clmgk_attention_desc *desc)
{
    desc->use_window = modifiers->window;
    desc->window_left = modifiers->window_left;
    desc->window_right = modifiers->window_right;
    desc->sequences = modifiers->sequences;
    desc->use_bias = modifiers->bias;
    desc->bias_batch = modifiers->bias && !modifiers->bias_axis[0];
    desc->bias_heads = modifiers->bias && !modifiers->bias_axis[1];
    desc->bias_length = modifiers->bias && !modifiers->bias_axis[2];
    desc->bias_length_k = modifiers->bias && !modifiers->bias_axis[3];
    desc->use_alibi = modifiers->alibi;
    desc->use_sinks = modifiers->sinks;
    desc->dropout = modifiers->dropout;
    desc->softcap = modifiers->softcap;
}

/* What the linear family alone has. */
static void take_features(const bench_request *request, const bench_shape *shape, clmgk_attention_desc *desc)
{
    desc->feature = request->feature;
    desc->feature_order = request->feature_order;
    desc->features =
        request->feature == CLMGK_FEATURE_FAVOR && request->features == 0 ? shape->head_size : request->features;
    desc->use_state = desc->use_new_state = shape->modifiers.state;
}

static clmgk_attention_desc describe(const bench_request *request, const bench_group *group,
                                     const bench_variant *variant, clmgk_dtype dtype)
{
    const bench_shape *const shape = group->shape;
    const bool linear = tool_is_linear(variant->variant);
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = variant->variant;
    desc.dtype = dtype;
    desc.dtype_k = request->dtype_k;
    desc.dtype_v = request->dtype_v;
    desc.dtype_o = request->dtype_o;
    desc.use_scale_k = desc.dtype_k == CLMGK_STORAGE_INT8;
    desc.use_scale_v = desc.dtype_v == CLMGK_STORAGE_INT8;
    desc.precision = request->precision;
    desc.batch = group->batch;
    desc.heads = heads_of(shape, variant);
    desc.kv_heads = shape->kv_heads;
    desc.components = components_of(shape, variant);
    desc.length = shape->length;
    desc.length_k = shape->length_k;
    desc.head_size = shape->head_size;
    desc.value_size = shape->value_size;
    desc.causal = shape->causal;
    if (has_components(variant->variant)) /* learned per head, as the papers' models do */
        desc.prior_shape = CLMGK_PRIOR_HM;
    desc.use_mix_weight = (clmgk_variant_traits(variant->variant) & CLMGK_TRAIT_GENERALISED) != 0;
    desc.use_mix_offset = desc.use_mix_weight && !linear;
    desc.mix_hidden = variant->hidden;
    desc.use_mix_hidden_offset = variant->hidden > 0;
    take_modifiers(&shape->modifiers, &desc);
    if (linear)
        take_features(request, shape, &desc);
    return desc;
}

/* The gradients of `set` whose parameters a resolved descriptor has. */
static uint32_t gradients_had(const clmgk_attention_desc *desc, uint32_t set)
{
    uint32_t had = 0;
    for (int i = 0; i < CLMGK_REF_GRADIENTS; i++) {
        if (clmgk_ref_gradient_count(desc, (clmgk_ref_gradient)i) > 0)
            had |= set & 1U << i;
    }
    return had;
}

const bench_case *bench_case_of(const bench_request *request, const bench_group *group, size_t pass, size_t variant)
{
    const bench_case *first = group->cases;
    while (first->pass != request->passes[pass])
        first++;
    return &first[variant];
}

/* What a case's operations are counted of: a text hides what the shape's own masks hide. */
static clmgk_attention_desc counted(const bench_case *one)
{
    clmgk_attention_desc desc = one->desc;
    if (one->text) {
        desc.causal = one->shape->causal;
        desc.use_window = one->shape->modifiers.window;
        desc.window_left = one->shape->modifiers.window_left;
        desc.window_right = one->shape->modifiers.window_right;
    }
    return desc;
}

tool_exit bench_count_flops(bench_case *one, const clmgk_plan_info *plan, tool_error *error)
{
    const clmgk_attention_desc whole = counted(one), *const desc = &whole;
    clmgk_host_args arrays = CLMGK_HOST_ARGS_INIT;
    int32_t *offsets = calloc((size_t)desc->sequences + 1, sizeof(*offsets));
    TOOL_TRY(tool_check_memory(offsets, "offsets", error));
    for (int64_t t = 0; t < desc->sequences; t++)
        offsets[t + 1] = bench_offset(desc, t + 1);
    arrays.offsets = offsets;
    one->flops = one->pass == BENCH_BACKWARD ? tool_backward_flops(desc, &arrays, plan)
                                             : tool_forward_flops(desc, &arrays, plan);
    if (one->text)
        one->flops /= (double)one->text->sparsity;
    if (one->pass == BENCH_MASK) /* no products */
        one->flops = 0;
    free(offsets);
    return TOOL_DONE;
}

/* A layer around the case. Noise counts as shared by all heads, as in the FiSH paper. */
static tool_exit count_layer(bench_case *one, tool_error *error)
{
    const bench_shape *const shape = one->shape;
    clmgk_attention_desc desc = one->desc;
    const bool noise = (clmgk_variant_traits(desc.variant) & CLMGK_TRAIT_NOISE) != 0;
    desc.shared_noise = noise;
    one->width = shape->width ? shape->width : shape->heads * shape->head_size;
    const int64_t width_k = desc.length_k != desc.length ? one->width : 0;
    return tool_check_library(
        clmgk_count_attention(&desc, one->width, width_k, one->width, &one->counts, &error->library), error);
}

static tool_exit make_case(const bench_shape *shape, bench_pass pass, const clmgk_attention_desc *given,
                           const bench_text *text, uint32_t gradients, bench_case *one, tool_error *error)
{
    clmgk_attention_desc desc;
    TOOL_TRY(tool_check_library(clmgk_attention_validate(given, &desc, &error->library), error));
    desc.gradients = pass == BENCH_BACKWARD ? gradients_had(&desc, gradients) : 0;
    TOOL_TRY(tool_check_library(clmgk_attention_validate(&desc, &desc, &error->library), error));
    *one = (bench_case){.shape = shape, .pass = pass, .text = text, .desc = desc};
    one->array_bytes = bench_array_bytes(&desc, pass);
    one->counts = (clmgk_counts)CLMGK_COUNTS_INIT;
    if (pass != BENCH_MASK)
        TOOL_TRY(count_layer(one, error));
    return bench_count_flops(one, NULL, error);
}

/* Cases of softmax that a shape has beside the variants. */
enum { MAX_EXTRA_CASES = 4 + CLMGK_DTYPES };

static const bench_variant softmax = {CLMGK_VARIANT_SOFTMAX, BENCH_HEADS_OF_SHAPE, 0, 0};

static size_t list_extra_cases(const bench_request *request, bench_pass pass, const bench_group *group,
                               clmgk_attention_desc descs[MAX_EXTRA_CASES])
{
    const bench_shape *const shape = group->shape;
    static const clmgk_dtype plain_type = CLMGK_DTYPE_F32;
    const clmgk_attention_desc plain = describe(request, group, &softmax, plain_type);
    size_t count = 0;
    if (shape->with & BENCH_WITH_CAUSAL) {
        descs[count] = plain;
        descs[count++].causal = 1;
    }
    for (int dtype = 0; (shape->with & BENCH_WITH_STORAGE) && dtype < CLMGK_DTYPES; dtype++)
        if (dtype != (int)plain_type)
            descs[count++] = describe(request, group, &softmax, (clmgk_dtype)dtype);
    if (shape->with & BENCH_WITH_FULL) {
        descs[count] = plain;
        descs[count].use_window = 0;
        descs[count].window_left = descs[count].window_right = 0;
        count++;
    }
    if ((shape->with & BENCH_WITH_CACHES) && pass == BENCH_FORWARD) {
        descs[count] = plain;
        descs[count].dtype_k = descs[count].dtype_v = CLMGK_STORAGE_F16;
        descs[count].use_scale_k = descs[count].use_scale_v = 0;
        count++;
        descs[count] = plain;
        descs[count].dtype_k = descs[count].dtype_v = CLMGK_STORAGE_INT8;
        descs[count].use_scale_k = descs[count].use_scale_v = 1;
        count++;
    }
    return count;
}

static size_t count_texts(const bench_request *request, const bench_shape *shape)
{
    size_t count = 0;
    while (request->texts && shape->modifiers.texts && shape->modifiers.texts[count].name)
        count++;
    return count;
}

/* Softmax with a text in the place of the shape's masks and modifiers. */
static clmgk_attention_desc describe_text(const bench_request *request, const bench_group *group,
                                          const bench_text *text, clmgk_dtype dtype)
{
    clmgk_attention_desc desc = describe(request, group, &softmax, dtype);
    desc.causal = desc.use_window = desc.use_alibi = 0;
    desc.window_left = desc.window_right = 0;
    desc.softcap = 0;
    desc.score_mod = text->score_mod;
    desc.mask_mod = text->mask_mod;
    desc.use_mask_blocks = text->classes;
    desc.mask_blocks_batch = desc.mask_blocks_heads = text->classes; /* the same of all */
    if (text->slopes || text->documents)
        desc.captures[0] = (clmgk_capture){.name = text->slopes ? text->slopes : text->documents,
                                           .type = text->slopes ? CLMGK_CAPTURE_F32 : CLMGK_CAPTURE_I32,
                                           .axes = 1};
    if (desc.length_k == 0)
        desc.length_k = desc.length;
    bench_size_capture(&desc);
    return desc;
}

static tool_exit add_texts(const bench_request *request, bench_pass pass, bench_group *group, tool_error *error)
{
    const bench_text *const texts = group->shape->modifiers.texts;
    const size_t count = count_texts(request, group->shape);
    for (size_t t = 0; t < request->dtype_count; t++) {
        for (size_t i = 0; i < count; i++) {
            if (texts[i].classes && pass != BENCH_FORWARD)
                continue;
            const clmgk_attention_desc desc = describe_text(request, group, &texts[i], request->dtypes[t]);
            TOOL_TRY(make_case(group->shape, texts[i].classes ? BENCH_MASK : pass, &desc, &texts[i], request->gradients,
                               &group->cases[group->count++], error));
        }
    }
    return TOOL_DONE;
}

/* The cases of a shape, in the order in which they are run. */
static tool_exit add_pass(const bench_request *request, bench_pass pass, bench_group *group, tool_error *error)
{
    const bench_shape *shape = group->shape;
    for (size_t t = 0; t < request->dtype_count; t++) {
        for (size_t i = 0; i < request->variant_count; i++) {
            const clmgk_attention_desc desc = describe(request, group, &request->variants[i], request->dtypes[t]);
            TOOL_TRY(make_case(shape, pass, &desc, NULL, request->gradients, &group->cases[group->count++], error));
        }
    }
    clmgk_attention_desc extra[MAX_EXTRA_CASES];
    const size_t extras = list_extra_cases(request, pass, group, extra);
    for (size_t i = 0; i < extras; i++)
        TOOL_TRY(make_case(shape, pass, &extra[i], NULL, request->gradients, &group->cases[group->count++], error));
    return add_texts(request, pass, group, error);
}

static tool_exit make_group(const bench_request *request, const bench_shape *shape, bool short_batch,
                            bench_group *group, tool_error *error)
{
    const size_t of_pass =
        (request->variant_count + count_texts(request, shape)) * request->dtype_count + MAX_EXTRA_CASES;
    group->shape = shape;
    group->batch = short_batch && shape->short_batch ? shape->short_batch : shape->batch;
    group->cases = calloc(request->pass_count * of_pass, sizeof(*group->cases));
    TOOL_TRY(tool_check_memory(group->cases, "the list of cases", error));
    for (size_t i = 0; i < request->pass_count; i++)
        TOOL_TRY(add_pass(request, request->passes[i], group, error));
    return TOOL_DONE;
}

/* At least one case must compute each gradient that was requested by name. */
static tool_exit check_gradients(const bench_request *request, const bench_group *groups, tool_error *error)
{
    uint32_t computed = 0;
    for (size_t i = 0; i < request->shape_count; i++) {
        for (size_t c = 0; c < groups[i].count; c++)
            computed |= groups[i].cases[c].desc.gradients;
    }
    const uint32_t missing = request->named_gradients & ~computed;
    if (missing)
        return tool_fail(error, TOOL_BAD_INPUT, "--gradients '%s': expected gradients that one of the cases has",
                         bench_gradient_names(missing).text);
    return TOOL_DONE;
}

tool_exit bench_make_groups(const bench_request *request, bool short_batches, bench_group **groups, tool_error *error)
{
    *groups = calloc(request->shape_count, sizeof(**groups));
    TOOL_TRY(tool_check_memory(*groups, "the list of shapes", error));
    tool_exit status = TOOL_DONE;
    for (size_t i = 0; i < request->shape_count && status == TOOL_DONE; i++)
        status = make_group(request, &request->shapes[i], short_batches, &(*groups)[i], error);
    if (status == TOOL_DONE)
        status = check_gradients(request, *groups, error);
    if (status != TOOL_DONE) {
        bench_free_groups(request, *groups);
        *groups = NULL;
    }
    return status;
}

void bench_free_groups(const bench_request *request, bench_group *groups)
{
    for (size_t i = 0; groups && i < request->shape_count; i++) {
        for (size_t c = 0; c < groups[i].count; c++) {
            free(groups[i].cases[c].parameters);
            free(groups[i].cases[c].compiler_options);
            free(groups[i].cases[c].kernel);
            free(groups[i].cases[c].cache_note);
        }
        free(groups[i].cases);
    }
    free(groups);
}

/* "8", "2x8", "2x6x8" */
static void print_heads(const clmgk_attention_desc *desc, char *text, size_t size)
{
    const uint32_t traits = clmgk_variant_traits(desc->variant);
    if (desc->mix_hidden > 0)
        snprintf(text, size, "%" PRId64 "x%" PRId64 "x%" PRId64, desc->components, desc->mix_hidden, desc->heads);
    else if ((traits & CLMGK_TRAIT_ADMIXTURE) && !(traits & CLMGK_TRAIT_SQUARE))
        snprintf(text, size, "%" PRId64 "x%" PRId64, desc->components, desc->heads);
    else
        snprintf(text, size, "%" PRId64, desc->heads);
}

/* " favor-256", " dpfp-2"; nothing for the default map and for other families. */
static void print_feature(const clmgk_attention_desc *desc, char *text, size_t size)
{
    text[0] = '\0';
    if (!tool_is_linear(desc->variant) || desc->feature == CLMGK_FEATURE_ELU1)
        return;
    const char *const name = clmgk_feature_name(desc->feature);
    if (desc->feature == CLMGK_FEATURE_FAVOR)
        snprintf(text, size, " %s-%" PRId64, name, desc->features);
    else if (desc->feature == CLMGK_FEATURE_DPFP)
        snprintf(text, size, " %s-%d", name, (int)desc->feature_order);
    else
        snprintf(text, size, " %s", name);
}

const char *bench_shape_name(const bench_shape *shape)
{
    return shape->name ? shape->name : "given";
}

bench_label bench_case_label(const bench_case *one)
{
    bench_label label;
    char heads[24], feature[16];
    const clmgk_attention_desc *desc = &one->desc;
    print_heads(desc, heads, sizeof(heads));
    print_feature(desc, feature, sizeof(feature));
    const tool_dtypes types = tool_dtypes_text(desc);
    const bool plain =
        strcmp(types.text, clmgk_dtype_name(CLMGK_DTYPE_F32)) == 0; /* the table's type if it says none */
    const int length = snprintf(
        label.text, sizeof(label.text), "%s %s%s%s%s%s%s%s%s%s", clmgk_variant_name(desc->variant), heads, feature,
        plain ? "" : " ", plain ? "" : types.text, desc->causal && !one->shape->causal ? " causal" : "",
        one->shape->modifiers.window && !desc->use_window && !one->text ? " full" : "", one->text ? " " : "",
        one->text ? one->text->name : "", one->pass == BENCH_BACKWARD ? " backward" : "");
    if (length >= (int)sizeof(label.text))
        memcpy(&label.text[sizeof(label.text) - 4], "...", 4);
    return label;
}

bool bench_is_tuned(const bench_case *one)
{
    return one->tuning > CLMGK_TUNING_CLASS && one->tuning < CLMGK_TUNING_CALLER;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* Bytes, as numbers that no sum carries beyond their range. */
typedef struct needs {
    double arrays, largest; /* of the device's memory */
    double check;           /* of the host's */
} needs;

static double largest_array_bytes(const clmgk_attention_desc *desc)
{
    const bench_elements count = bench_count_elements(desc);
    double largest = 0;
    for (clmgk_array array = 0; array < CLMGK_ARRAYS; array++)
        largest = fmax(largest, (double)count.of[array] * (double)clmgk_array_element_size(desc, array));
    return largest;
}

static needs needs_of(const bench_group *group)
{
    needs need = {0};
    double own = 0;
    for (size_t i = 0; i < group->count; i++) {
        const bench_case *one = &group->cases[i];
        const clmgk_attention_desc *desc = &one->desc;
        need.arrays = fmax(need.arrays, (double)one->array_bytes);
        need.largest = fmax(need.largest, largest_array_bytes(desc));
        if (one->pass != BENCH_BACKWARD)
            need.check = fmax(need.check, (double)bench_slice_bytes(desc));
        else
            own += (double)bench_count_elements(desc).of[CLMGK_ARRAY_O] *
                   (double)clmgk_array_element_size(desc, CLMGK_ARRAY_O);
    }
    need.arrays += own;
    return need;
}

static double host_memory_bytes(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES);
    return pages > 0 ? (double)pages * (double)sysconf(_SC_PAGESIZE) : (double)INFINITY;
}

bool bench_fits(const clmgk_device_info *info, bench_group *group)
{
    char reason[CLMGK_ERROR_MESSAGE_SIZE];
    const needs need = needs_of(group);
    const double host = host_memory_bytes();
    const double here = need.check + (info->device_class == CLMGK_DEVICE_CPU ? need.arrays : 0);
    if (need.arrays > (double)info->global_memory_bytes || need.largest > (double)info->max_allocation_bytes)
        snprintf(reason, sizeof(reason),
                 "arrays of %.0f MB, one of %.0f MB; the device has %.0f MB and buffers of at most %.0f MB",
                 1e-6 * need.arrays, 1e-6 * need.largest, 1e-6 * (double)info->global_memory_bytes,
                 1e-6 * (double)info->max_allocation_bytes);
    else if (here > host)
        snprintf(reason, sizeof(reason), "arrays and their check need %.0f MB of the host's memory; it has %.0f MB",
                 1e-6 * here, 1e-6 * host);
    else
        return true;
    for (size_t i = 0; i < group->count; i++) {
        group->cases[i].refused = true;
        memcpy(group->cases[i].reason, reason, sizeof(reason));
    }
    return false;
}

/* Masks and modifiers, null for what a case has not, so that an object without these keys says the same. */
static json_t *modifiers_json(const clmgk_attention_desc *desc)
{
    const bench_names gradients = bench_gradient_names(desc->gradients);
    json_t *window = desc->use_window
                         ? json_pack("[I, I]", (json_int_t)desc->window_left, (json_int_t)desc->window_right)
                         : json_null();
    json_t *bias = desc->use_bias
                       ? json_pack("[I, I, I, I]", (json_int_t)desc->bias_batch, (json_int_t)desc->bias_heads,
                                   (json_int_t)desc->bias_length, (json_int_t)desc->bias_length_k)
                       : json_null();
    json_t *sequences = desc->sequences ? json_integer((json_int_t)desc->sequences) : json_null();
    json_t *dropout = desc->dropout > 0 ? json_real(desc->dropout) : json_null();
    json_t *alibi = desc->use_alibi ? json_true() : json_null();
    json_t *sinks = desc->use_sinks ? json_true() : json_null();
    json_t *const object = json_pack(
        "{s:s?, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s?, s:s?}", "gradients", desc->gradients ? gradients.text : NULL,
        "window", window, "sequences", sequences, "bias", bias, "alibi", alibi, "sinks", sinks, "dropout", dropout,
        "softcap", tool_json_positive(desc->softcap), "score_mod", desc->score_mod, "mask_mod", desc->mask_mod);
    return tool_json_merge(object, tool_json_features(desc));
}

json_t *bench_case_json(const bench_case *one)
{
    const clmgk_attention_desc *desc = &one->desc;
    json_t *key =
        json_pack("{s:s?, s:s, s:s, s:s}", "shape", one->shape->name, "variant", clmgk_variant_name(desc->variant),
                  "dtype", clmgk_dtype_name(desc->dtype), "pass", bench_pass_name(one->pass));
    key = tool_json_merge(key, tool_json_own_dtypes(desc));
    return tool_json_merge(tool_json_merge(key, tool_json_sizes(desc)), modifiers_json(desc));
}
