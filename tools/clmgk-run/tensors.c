/* SPDX-License-Identifier: Apache-2.0 */
#include "input.h"

#include <inttypes.h>

/* ---- axes --------------------------------------------------------------------------------------------------- */

/* Where a file has its axes, by --layout. */
typedef struct axis_order {
    const char *text; /* for messages */
    int axes;
    int head, component, token; /* component: -1 where there is none; batch is first, the innermost last */
} axis_order;

/* heads first, tokens first; the admixture family's Q and K */
static const axis_order q_order[] = {{"[B,H,N,D]", 4, 1, -1, 2}, {"[B,N,H,D]", 4, 2, -1, 1}};
static const axis_order q_order_mixed[] = {{"[B,M,N,D]", 4, 1, -1, 2}, {"[B,N,M,D]", 4, 2, -1, 1}};
static const axis_order k_order[] = {{"[B,G,S,D]", 4, 1, -1, 2}, {"[B,S,G,D]", 4, 2, -1, 1}};
static const axis_order k_order_mixed[] = {{"[B,M,S,D]", 4, 1, -1, 2}, {"[B,S,M,D]", 4, 2, -1, 1}};
static const axis_order k_order_m[] = {{"[B,G,M,S,D]", 5, 1, 2, 3}, {"[B,S,G,M,D]", 5, 2, 3, 1}};
static const axis_order v_order[] = {{"[B,G,S,E]", 4, 1, -1, 2}, {"[B,S,G,E]", 4, 2, -1, 1}};
static const axis_order o_order[] = {{"[B,H,N,E]", 4, 1, -1, 2}, {"[B,N,H,E]", 4, 2, -1, 1}};

static int64_t size_of(const npy_file *file, int axis)
{
    return file->header.shape[axis];
}

/* The elements between two neighbours along `axis` of a dense array, 1 at least. */
static tool_exit stride_of(const npy_file *file, int axis, int64_t *stride, tool_error *error)
{
    *stride = 1;
    for (int inner = axis + 1; inner < file->header.axes; inner++) {
        const int64_t size = size_of(file, inner) > 0 ? size_of(file, inner) : 1;
        if (*stride > INT64_MAX / size)
            return input_fail_shape(file, "axes whose product fits", error);
        *stride *= size;
    }
    return TOOL_DONE;
}

static tool_exit layout_of(const npy_file *file, const axis_order *order, clmgk_layout *layout, tool_error *error)
{
    *layout = (clmgk_layout){.strided = 1};
    TOOL_TRY(stride_of(file, 0, &layout->batch, error));
    TOOL_TRY(stride_of(file, order->head, &layout->head, error));
    TOOL_TRY(stride_of(file, order->token, &layout->token, error));
    if (order->component >= 0)
        TOOL_TRY(stride_of(file, order->component, &layout->component, error));
    return TOOL_DONE;
}

/* ---- Q, K, V ------------------------------------------------------------------------------------------------ */

static tool_exit describe_q(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const q = &problem->file[RUN_Q];
    const bool mixed = tool_is_mixed(arguments->variant);
    const axis_order *const order = mixed ? &q_order_mixed[arguments->tokens_first] : &q_order[arguments->tokens_first];
    TOOL_TRY(input_open_floats(problem, RUN_Q, arguments->file[RUN_Q], error));
    if (q->header.axes != order->axes)
        return input_fail_shape(q, order->text, error);
    TOOL_TRY(input_expect_positive(q, 0, "B", error));
    TOOL_TRY(input_expect_positive(q, order->head, mixed ? "M" : "H", error));
    TOOL_TRY(input_expect_positive(q, 3, "D", error));
    desc->batch = size_of(q, 0);
    *(mixed ? &desc->components : &desc->heads) = size_of(q, order->head);
    problem->heads_option = run_option(RUN_Q);
    desc->length = size_of(q, order->token);
    desc->head_size = size_of(q, 3);
    desc->dtype = arguments->has_dtype        ? arguments->dtype
                  : q->header.type == NPY_F16 ? CLMGK_DTYPE_F16
                                              : CLMGK_DTYPE_F32;
    TOOL_TRY(layout_of(q, order, &desc->q, error));
    desc->grad_q = desc->q;
    return TOOL_DONE;
}

/* An axis of one component is no axis. */
static void drop_single_component(npy_header *header, const axis_order *order)
{
    if (header->axes != order->axes || header->shape[order->component] != 1)
        return;
    for (int axis = order->component; axis + 1 < header->axes; axis++)
        header->shape[axis] = header->shape[axis + 1];
    header->axes--;
}

/* G, a divisor of H. */
static tool_exit describe_kv_heads(run_problem *problem, const npy_file *file, int axis, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    TOOL_TRY(input_expect_positive(file, axis, "G", error));
    if (desc->heads % size_of(file, axis) != 0)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--%s %s: has G = %" PRId64 " heads; expected a divisor of H = %" PRId64 " as in --%s",
                         file->option, file->path, size_of(file, axis), desc->heads, problem->heads_option);
    desc->kv_heads = size_of(file, axis);
    return TOOL_DONE;
}

static tool_exit describe_k(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    npy_file *const k = &problem->file[RUN_K];
    const bool mgk = arguments->variant == CLMGK_VARIANT_MGK;
    const bool mixed = tool_is_mixed(arguments->variant);
    const axis_order *const one = mixed ? &k_order_mixed[arguments->tokens_first] : &k_order[arguments->tokens_first];
    const axis_order *const several = &k_order_m[arguments->tokens_first];
    TOOL_TRY(input_open_floats(problem, RUN_K, arguments->file[RUN_K], error));
    drop_single_component(&k->header, several); /* the slot keeps the file's own shape */
    const axis_order *const order = k->header.axes == several->axes ? several : one;
    if (k->header.axes != order->axes)
        return input_fail_shape(k, mgk ? several->text : one->text, error);
    if (order == several && !mgk)
        return tool_fail(error, TOOL_BAD_INPUT, "--k %s: has shape %s; expected %s, as %s has one key a position",
                         k->path, npy_shape_text(k->header.axes, k->header.shape).text, one->text,
                         clmgk_variant_name(arguments->variant));
    const int last = order->axes - 1;
    TOOL_TRY(input_expect_size(k, 0, "B", desc->batch, RUN_Q, error));
    TOOL_TRY(input_expect_size(k, last, "D", desc->head_size, RUN_Q, error));
    if (mixed)
        TOOL_TRY(input_expect_size(k, order->head, "M", desc->components, RUN_Q, error));
    else
        TOOL_TRY(describe_kv_heads(problem, k, order->head, error));
    if (order == several)
        TOOL_TRY(input_expect_positive(k, order->component, "M", error));
    desc->length_k = size_of(k, order->token);
    if (!mixed)
        desc->components = order == several ? size_of(k, order->component) : 1;
    TOOL_TRY(layout_of(k, order, &desc->k, error));
    desc->grad_k = desc->k;
    return TOOL_DONE;
}

/* V's heads where those of K are others, and H where nothing else has given it. */
static tool_exit describe_own_heads(run_problem *problem, const npy_file *v, int axis, tool_error *error)
{
    TOOL_TRY(input_expect_positive(v, axis, "G", error));
    if (problem->desc.heads == 0) {
        problem->desc.heads = size_of(v, axis);
        problem->heads_option = run_option(RUN_V);
    }
    return describe_kv_heads(problem, v, axis, error);
}

static tool_exit describe_v(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const v = &problem->file[RUN_V];
    const axis_order *const order = &v_order[arguments->tokens_first];
    TOOL_TRY(input_open_floats(problem, RUN_V, arguments->file[RUN_V], error));
    if (v->header.axes != order->axes)
        return input_fail_shape(v, order->text, error);
    TOOL_TRY(input_expect_size(v, 0, "B", desc->batch, RUN_Q, error));
    if (tool_is_mixed(arguments->variant))
        TOOL_TRY(describe_own_heads(problem, v, order->head, error));
    else
        TOOL_TRY(input_expect_size(v, order->head, "G", desc->kv_heads, RUN_K, error));
    TOOL_TRY(input_expect_size(v, order->token, "S", desc->length_k, RUN_K, error));
    TOOL_TRY(input_expect_positive(v, 3, "E", error));
    desc->value_size = size_of(v, 3);
    TOOL_TRY(layout_of(v, order, &desc->v, error));
    desc->grad_v = desc->v;
    return TOOL_DONE;
}

/* ---- O and dO ----------------------------------------------------------------------------------------------- */

void tensors_shape_o(const run_problem *problem, bool tokens_first, int64_t shape[4])
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const axis_order *const order = &o_order[tokens_first];
    shape[0] = desc->batch;
    shape[order->head] = desc->heads;
    shape[order->token] = desc->length;
    shape[3] = desc->value_size;
}

/* O in Q's order of axes; L is dense. */
static tool_exit describe_o(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    npy_file o = problem->file[RUN_Q];
    tensors_shape_o(problem, arguments->tokens_first, o.header.shape);
    TOOL_TRY(layout_of(&o, &o_order[arguments->tokens_first], &problem->desc.o, error));
    problem->desc.grad_o = problem->desc.o;
    return TOOL_DONE;
}

static tool_exit open_grad_o(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    const npy_file *const grad_o = &problem->file[RUN_GRAD_O];
    const axis_order *const order = &o_order[arguments->tokens_first];
    TOOL_TRY(input_open_floats(problem, RUN_GRAD_O, arguments->file[RUN_GRAD_O], error));
    return grad_o->header.axes == order->axes ? TOOL_DONE : input_fail_shape(grad_o, order->text, error);
}

/* H where p may not have it: --heads, or dO's; 0 leaves it to V. */
static void take_heads(const run_arguments *arguments, run_problem *problem)
{
    problem->desc.heads = arguments->heads;
    problem->heads_option = "heads";
    if (arguments->heads == 0 && arguments->file[RUN_GRAD_O]) {
        problem->desc.heads = size_of(&problem->file[RUN_GRAD_O], o_order[arguments->tokens_first].head);
        problem->heads_option = run_option(RUN_GRAD_O);
    }
}

static tool_exit check_grad_o(const run_arguments *arguments, const run_problem *problem, tool_error *error)
{
    const clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const grad_o = &problem->file[RUN_GRAD_O];
    const axis_order *const order = &o_order[arguments->tokens_first];
    TOOL_TRY(input_expect_size(grad_o, 0, "B", desc->batch, RUN_Q, error));
    TOOL_TRY(input_expect_heads(problem, grad_o, order->head, error));
    TOOL_TRY(input_expect_size(grad_o, order->token, "N", desc->length, RUN_Q, error));
    return input_expect_size(grad_o, 3, "E", desc->value_size, RUN_V, error);
}

tool_exit tensors_describe(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    TOOL_TRY(describe_q(arguments, problem, error));
    TOOL_TRY(describe_k(arguments, problem, error));
    if (arguments->file[RUN_GRAD_O])
        TOOL_TRY(open_grad_o(arguments, problem, error));
    if (tool_is_mixed(arguments->variant)) {
        take_heads(arguments, problem);
        TOOL_TRY(mixing_describe_heads(arguments, problem, error));
    }
    TOOL_TRY(describe_v(arguments, problem, error));
    TOOL_TRY(describe_o(arguments, problem, error));
    if (arguments->file[RUN_GRAD_O])
        TOOL_TRY(check_grad_o(arguments, problem, error));
    for (run_array array = RUN_Q; array < RUN_STREAMED; array++)
        problem->slot[array].used = arguments->file[array] != NULL;
    return TOOL_DONE;
}
