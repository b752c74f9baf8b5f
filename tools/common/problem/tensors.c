/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <inttypes.h>
#include <string.h>

file_axes tensors_file_axes(const char *axes, bool tokens_first)
{
    file_axes order = {""};
    const size_t rank = strlen(axes);
    memcpy(order.text, axes, rank);
    if (tokens_first) { /* [B,H,N,D]: [B,N,H,D] */
        order.text[1] = axes[rank - 2];
        memcpy(order.text + 2, axes + 1, rank - 3);
    }
    return order;
}

/* The elements between two neighbours along an axis of a dense array, 1 at least. */
static tool_exit stride_of(const npy_file *file, const char *order, char letter, int64_t *stride, tool_error *error)
{
    *stride = 1;
    for (int inner = (int)(strchr(order, letter) - order) + 1; inner < file->header.axes; inner++) {
        const int64_t size = file->header.shape[inner] > 0 ? file->header.shape[inner] : 1;
        if (*stride > INT64_MAX / size)
            return input_fail_shape(file, "axes whose product fits", error);
        *stride *= size;
    }
    return TOOL_DONE;
}

static tool_exit layout_of(const npy_file *file, const char *axes, bool tokens_first, clmgk_layout *layout,
                           tool_error *error)
{
    const size_t rank = strlen(axes);
    const file_axes order = tensors_file_axes(axes, tokens_first);
    *layout = (clmgk_layout){.strided = 1};
    TOOL_TRY(stride_of(file, order.text, axes[0], &layout->batch, error));
    TOOL_TRY(stride_of(file, order.text, axes[1], &layout->head, error));
    TOOL_TRY(stride_of(file, order.text, axes[rank - 2], &layout->token, error));
    if (rank == 5)
        TOOL_TRY(stride_of(file, order.text, axes[2], &layout->component, error));
    return TOOL_DONE;
}

static tool_exit describe(const tool_problem_arguments *arguments, tool_problem *problem, clmgk_array array,
                          const char *axes, clmgk_layout *layout, tool_error *error)
{
    TOOL_TRY(input_expect(problem, array, tensors_file_axes(axes, arguments->tokens_first).text, error));
    TOOL_TRY(layout_of(&problem->file[array], axes, arguments->tokens_first, layout, error));
    const int64_t block = clmgk_dtype_get_info(clmgk_array_dtype(&problem->desc, array)).block;
    layout->batch /= block;
    layout->head /= block;
    layout->component /= block;
    layout->token /= block;
    return input_read(problem, array, error);
}

static tool_exit describe_q(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const bool mixed = tool_is_mixed(arguments->variant);
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_Q, error));
    TOOL_TRY(describe(arguments, problem, CLMGK_ARRAY_Q, mixed ? "BMND" : "BHND", &desc->q, error));
    desc->dtype = arguments->has_dtype                                  ? arguments->dtype
                  : problem->file[CLMGK_ARRAY_Q].header.type == NPY_F16 ? CLMGK_DTYPE_F16
                                                                        : CLMGK_DTYPE_F32;
    desc->dtype_k = arguments->dtype_k;
    desc->dtype_v = arguments->dtype_v;
    desc->dtype_o = arguments->dtype_o;
    desc->dtype_grad_q = desc->dtype_grad_k = desc->dtype_grad_v = arguments->dtype_grad;
    desc->precision = arguments->precision;
    if (clmgk_variant_traits(arguments->variant) & CLMGK_TRAIT_SQUARE)
        input_set_size(problem, arguments->file[CLMGK_ARRAY_MIX_AFTER] ? 'A' : 'H', input_size(problem, 'M'),
                       tool_array_option(CLMGK_ARRAY_Q));
    return TOOL_DONE;
}

/* An axis of one component is no axis. */
static void drop_single_component(npy_header *header, bool tokens_first)
{
    const int component = tokens_first ? 3 : 2;
    if (header->axes != 5 || header->shape[component] != 1)
        return;
    for (int axis = component; axis + 1 < header->axes; axis++)
        header->shape[axis] = header->shape[axis + 1];
    header->axes--;
}

/* The axes of K or V: pools of pages, caches of packed sequences, or one array. */
static const char *place_axes(const tool_problem_arguments *arguments, const char *pages, const char *caches,
                              const char *one)
{
    if (arguments->file[CLMGK_ARRAY_PAGE_TABLE])
        return pages;
    return arguments->file[CLMGK_ARRAY_OFFSETS] && arguments->file[CLMGK_ARRAY_LENGTHS] ? caches : one;
}

/* A file with an axis of components (even if it is of the wrong rank) is read as the variant has it. */
static tool_exit describe_k(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    npy_file *const k = &problem->file[CLMGK_ARRAY_K];
    const uint32_t traits = clmgk_variant_traits(arguments->variant);
    const bool keys = (traits & CLMGK_TRAIT_KEYS) != 0;
    const char *axes = traits & CLMGK_TRAIT_ADMIXTURE ? place_axes(arguments, "PMKD", "TMSD", "BMSD")
                                                      : place_axes(arguments, "PGKD", "TGSD", "BGSD");
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_K, error));
    drop_single_component(&k->header, arguments->tokens_first); /* the slot keeps the file's own shape */
    if (k->header.axes == 5 && !keys)
        return tool_fail(error, TOOL_BAD_INPUT, "--k %s: has shape %s; expected %s, as %s has one key a position",
                         k->path, npy_shape_text(k->header.axes, k->header.shape).text,
                         input_axes_text(tensors_file_axes(axes, arguments->tokens_first).text).text,
                         clmgk_variant_name(arguments->variant));
    if (keys && k->header.axes != 4)
        axes = place_axes(arguments, "PGMKD", "TGMSD", "BGMSD");
    else if (!(traits & (CLMGK_TRAIT_ADMIXTURE | CLMGK_TRAIT_SHIFT)))
        input_set_size(problem, 'M', 1, tool_array_option(CLMGK_ARRAY_K));
    return describe(arguments, problem, CLMGK_ARRAY_K, axes, &problem->desc.k, error);
}

static tool_exit describe_grad_o(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_GRAD_O, error));
    return describe(arguments, problem, CLMGK_ARRAY_GRAD_O, "BHNE", &problem->desc.grad_o, error);
}

/* The rows of p; a list of numbers has rows of M. */
static int64_t rows_of_mix(const tool_problem *problem)
{
    const npy_file *const mix = &problem->file[CLMGK_ARRAY_MIX];
    return mix->stream ? mix->header.shape[0] : mix->header.shape[0] / input_size(problem, 'M');
}

/* Whether p and w, which are open, are those of a hidden layer: where b is given, and where w has a column for each row
 * of p and is no [H,M]. */
static bool is_hidden(const tool_problem_arguments *arguments, const tool_problem *problem)
{
    const npy_header *const weight = &problem->file[CLMGK_ARRAY_MIX_WEIGHT].header;
    const int64_t rows = rows_of_mix(problem);
    const bool linear = (clmgk_variant_traits(arguments->variant) & CLMGK_TRAIT_LINEAR) != 0;
    if (linear || arguments->file[CLMGK_ARRAY_MIX_HIDDEN_OFFSET])
        return !linear;
    const bool plain = weight->shape[0] == rows && weight->shape[1] == input_size(problem, 'M');
    return weight->axes == 2 && weight->shape[1] == rows && !plain;
}

/* p and w, of which one or the other has an axis of heads, of which there are A where weights are mixed after the
 * softmax. */
static tool_exit describe_weighted(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_MIX, error));
    TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_MIX_WEIGHT, error));
    const bool hidden = is_hidden(arguments, problem), after = arguments->file[CLMGK_ARRAY_MIX_AFTER] != NULL;
    const char *const own = after ? "AM" : "HM";
    TOOL_TRY(input_expect(problem, CLMGK_ARRAY_MIX, hidden ? "UM" : own, error));
    TOOL_TRY(input_expect(problem, CLMGK_ARRAY_MIX_WEIGHT, !hidden ? own : after ? "AU" : "HU", error));
    TOOL_TRY(input_read(problem, CLMGK_ARRAY_MIX, error));
    return input_read(problem, CLMGK_ARRAY_MIX_WEIGHT, error);
}

/* m gives H and A; else p or w gives H, or where p is the same for all heads, --heads, dO or V does. */
static tool_exit describe_mix(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    const bool shared = (clmgk_variant_traits(arguments->variant) & CLMGK_TRAIT_SHARED_MIX) != 0;
    const bool after = arguments->file[CLMGK_ARRAY_MIX_AFTER] != NULL;
    if (after)
        TOOL_TRY(input_take(arguments, problem, CLMGK_ARRAY_MIX_AFTER, "HA", error));
    if (arguments->file[CLMGK_ARRAY_MIX_WEIGHT])
        TOOL_TRY(describe_weighted(arguments, problem, error));
    else
        TOOL_TRY(input_take(arguments, problem, CLMGK_ARRAY_MIX, shared ? "M" : after ? "AM" : "HM", error));
    if (arguments->file[CLMGK_ARRAY_GRAD_MIX_HIDDEN_OFFSET] && input_size(problem, 'U') == 0)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s: expected a hidden layer with it, --mix [U,M] and --mix-weight [H,U]",
                         tool_array_option(CLMGK_ARRAY_GRAD_MIX_HIDDEN_OFFSET));
    if (after && arguments->heads && arguments->heads != input_size(problem, 'H'))
        return tool_fail(error, TOOL_BAD_INPUT, "--heads %" PRId64 ": expected H = %" PRId64 " as in --%s",
                         arguments->heads, input_size(problem, 'H'), tool_array_option(CLMGK_ARRAY_MIX_AFTER));
    if (arguments->heads)
        input_set_size(problem, 'H', arguments->heads, "heads");
    return shared && !after && !arguments->heads && arguments->file[CLMGK_ARRAY_GRAD_O]
               ? describe_grad_o(arguments, problem, error)
               : TOOL_DONE;
}

/* Without values, as their weights alone are wanted, E is 1. */
static tool_exit describe_v(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    const tool_size *const heads = &problem->size['H' - 'A'];
    if (arguments->file[CLMGK_ARRAY_V]) {
        TOOL_TRY(input_open(arguments, problem, CLMGK_ARRAY_V, error));
        return describe(arguments, problem, CLMGK_ARRAY_V, place_axes(arguments, "PGKE", "TGSE", "BGSE"),
                        &problem->desc.v, error);
    }
    if (!heads->source)
        return tool_fail(error, TOOL_BAD_INPUT, "--heads is required with %s without --%s",
                         clmgk_variant_name(arguments->variant), tool_array_option(CLMGK_ARRAY_V));
    if (!problem->size['G' - 'A'].source)
        input_set_size(problem, 'G', heads->value, heads->source);
    input_set_size(problem, 'E', 1, NULL);
    return TOOL_DONE;
}

/* O and its gradient in Q's order of axes; L is dense. */
static tool_exit describe_o(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    npy_file o = {.option = "out", .header = {.axes = 4}};
    const file_axes order = tensors_file_axes("BHNE", arguments->tokens_first);
    for (int axis = 0; axis < o.header.axes; axis++)
        o.header.shape[axis] = input_size(problem, order.text[axis]);
    TOOL_TRY(layout_of(&o, "BHNE", arguments->tokens_first, &problem->desc.o, error));
    problem->desc.grad_o = problem->desc.o;
    return TOOL_DONE;
}

tool_exit tensors_describe(const tool_problem_arguments *arguments, tool_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    TOOL_TRY(describe_q(arguments, problem, error));
    TOOL_TRY(describe_k(arguments, problem, error));
    if (tool_is_mixed(arguments->variant))
        TOOL_TRY(describe_mix(arguments, problem, error));
    TOOL_TRY(describe_v(arguments, problem, error));
    if (arguments->file[CLMGK_ARRAY_GRAD_O] && !problem->slot[CLMGK_ARRAY_GRAD_O].used)
        TOOL_TRY(describe_grad_o(arguments, problem, error));
    if (arguments->file[CLMGK_ARRAY_SHIFT])
        TOOL_TRY(input_take(arguments, problem, CLMGK_ARRAY_SHIFT, "HMD", error));
    TOOL_TRY(describe_o(arguments, problem, error));
    desc->grad_q = desc->q;
    desc->grad_k = desc->k;
    desc->grad_v = desc->v;
    desc->batch = input_size(problem, 'B');
    desc->heads = input_size(problem, 'H');
    desc->kv_heads = input_size(problem, 'G');
    desc->components = input_size(problem, 'M');
    desc->length = input_size(problem, 'N');
    desc->length_k = input_size(problem, 'S');
    desc->head_size = input_size(problem, 'D');
    desc->value_size = input_size(problem, 'E');
    desc->mix_hidden = input_size(problem, 'U');
    desc->mix_after_heads = input_size(problem, 'A');
    return TOOL_DONE;
}
