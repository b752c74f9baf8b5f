/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- axes --------------------------------------------------------------------------------------------------- */

/* Where a file of Q, K or V has its axes, by --layout. */
typedef struct axis_order {
    const char *text; /* for messages */
    int axes;
    int head, component, token; /* component: -1 where there is none; batch is first, the innermost last */
} axis_order;

static const axis_order q_order[] = {{"[B,H,N,D]", 4, 1, -1, 2}, {"[B,N,H,D]", 4, 2, -1, 1}};
static const axis_order k_order[] = {{"[B,G,S,D]", 4, 1, -1, 2}, {"[B,S,G,D]", 4, 2, -1, 1}};
static const axis_order k_order_m[] = {{"[B,G,M,S,D]", 5, 1, 2, 3}, {"[B,S,G,M,D]", 5, 2, 3, 1}};
static const axis_order v_order[] = {{"[B,G,S,E]", 4, 1, -1, 2}, {"[B,S,G,E]", 4, 2, -1, 1}};

static int64_t size_of(const npy_file *file, int axis)
{
    return file->header.shape[axis];
}

static tool_exit fail_shape(const npy_file *file, const char *expected, tool_error *error)
{
    return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has shape %s; expected %s", file->option, file->path,
                     npy_shape_text(file->header.axes, file->header.shape).text, expected);
}

static tool_exit expect_size(const npy_file *file, int axis, char symbol, int64_t expected, const char *source,
                             tool_error *error)
{
    if (size_of(file, axis) == expected)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--%s %s: has shape %s, where axis %d is %" PRId64 "; expected %c = %" PRId64 " as in %s",
                     file->option, file->path, npy_shape_text(file->header.axes, file->header.shape).text, axis,
                     size_of(file, axis), symbol, expected, source);
}

static tool_exit expect_positive(const npy_file *file, int axis, char symbol, tool_error *error)
{
    if (size_of(file, axis) > 0)
        return TOOL_DONE;
    return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: has shape %s, where %c = 0; expected at least 1", file->option,
                     file->path, npy_shape_text(file->header.axes, file->header.shape).text, symbol);
}

/* Opens a file of floating-point numbers. */
static tool_exit open_floats(const char *option, const char *path, npy_file *file, tool_error *error)
{
    TOOL_TRY(npy_open(option, path, file, error));
    if (!npy_is_float(file->header.type))
        return tool_fail(error, TOOL_BAD_INPUT, "--%s %s: holds %s; expected float16, float32 or float64", option, path,
                         npy_type_name(file->header.type));
    return TOOL_DONE;
}

/* The elements between two neighbours along `axis` of a dense array, 1 at least. */
static tool_exit stride_of(const npy_file *file, int axis, int64_t *stride, tool_error *error)
{
    *stride = 1;
    for (int inner = axis + 1; inner < file->header.axes; inner++) {
        const int64_t size = size_of(file, inner) > 0 ? size_of(file, inner) : 1;
        if (*stride > INT64_MAX / size)
            return fail_shape(file, "axes whose product fits", error);
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
    const npy_file *const q = &problem->q;
    const axis_order *const order = &q_order[arguments->tokens_first];
    TOOL_TRY(open_floats("q", arguments->q, &problem->q, error));
    if (q->header.axes != order->axes)
        return fail_shape(q, order->text, error);
    TOOL_TRY(expect_positive(q, 0, 'B', error));
    TOOL_TRY(expect_positive(q, order->head, 'H', error));
    TOOL_TRY(expect_positive(q, 3, 'D', error));
    desc->batch = size_of(q, 0);
    desc->heads = size_of(q, order->head);
    desc->length = size_of(q, order->token);
    desc->head_size = size_of(q, 3);
    desc->dtype = arguments->has_dtype        ? arguments->dtype
                  : q->header.type == NPY_F16 ? CLMGK_DTYPE_F16
                                              : CLMGK_DTYPE_F32;
    return layout_of(q, order, &desc->q, error);
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

static tool_exit describe_k(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const k = &problem->k;
    const bool mgk = arguments->variant == CLMGK_VARIANT_MGK;
    const axis_order *const one = &k_order[arguments->tokens_first];
    const axis_order *const several = &k_order_m[arguments->tokens_first];
    TOOL_TRY(open_floats("k", arguments->k, &problem->k, error));
    drop_single_component(&problem->k.header, several);
    const axis_order *const order = k->header.axes == several->axes ? several : one;
    if (k->header.axes != order->axes)
        return fail_shape(k, mgk ? several->text : one->text, error);
    if (order == several && !mgk)
        return tool_fail(error, TOOL_BAD_INPUT, "--k %s: has shape %s; expected %s, as %s has one key a position",
                         k->path, npy_shape_text(k->header.axes, k->header.shape).text, one->text,
                         clmgk_variant_name(arguments->variant));
    const int last = order->axes - 1;
    TOOL_TRY(expect_size(k, 0, 'B', desc->batch, "--q", error));
    TOOL_TRY(expect_size(k, last, 'D', desc->head_size, "--q", error));
    TOOL_TRY(expect_positive(k, order->head, 'G', error));
    if (desc->heads % size_of(k, order->head) != 0)
        return tool_fail(error, TOOL_BAD_INPUT,
                         "--k %s: has G = %" PRId64 " heads; expected a divisor of H = %" PRId64 " as in --q", k->path,
                         size_of(k, order->head), desc->heads);
    if (order == several)
        TOOL_TRY(expect_positive(k, order->component, 'M', error));
    desc->kv_heads = size_of(k, order->head);
    desc->length_k = size_of(k, order->token);
    desc->components = order == several ? size_of(k, order->component) : 1;
    return layout_of(k, order, &desc->k, error);
}

static tool_exit describe_v(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    const npy_file *const v = &problem->v;
    const axis_order *const order = &v_order[arguments->tokens_first];
    TOOL_TRY(open_floats("v", arguments->v, &problem->v, error));
    if (v->header.axes != order->axes)
        return fail_shape(v, order->text, error);
    TOOL_TRY(expect_size(v, 0, 'B', desc->batch, "--q", error));
    TOOL_TRY(expect_size(v, order->head, 'G', desc->kv_heads, "--k", error));
    TOOL_TRY(expect_size(v, order->token, 'S', desc->length_k, "--k", error));
    TOOL_TRY(expect_positive(v, 3, 'E', error));
    desc->value_size = size_of(v, 3);
    return layout_of(v, order, &desc->v, error);
}

/* O in Q's order of axes; L is dense. */
static tool_exit describe_o(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    npy_file o = problem->q;
    o.header.shape[3] = desc->value_size;
    return layout_of(&o, &q_order[arguments->tokens_first], &desc->o, error);
}

/* ---- prior, variance, shift, lengths ------------------------------------------------------------------------ */

/* Numbers from a file or from the command line. */
typedef struct number_array {
    float *values; /* for free() */
    npy_header header;
    double first; /* before rounding to f32 */
} number_array;

static bool is_file(const char *text)
{
    const size_t length = strlen(text);
    return length >= 4 && strcmp(text + length - 4, ".npy") == 0;
}

static tool_exit read_floats(npy_file *file, float **values, tool_error *error)
{
    *values = malloc(tool_buffer_bytes((size_t)file->header.count, sizeof **values));
    if (!*values)
        return tool_fail_memory(error, file->path);
    const tool_exit status = npy_read(file, CLMGK_DTYPE_F32, *values, error);
    if (status != TOOL_DONE) {
        free(*values);
        *values = NULL;
    }
    return status;
}

static tool_exit read_number_file(const char *option, const char *path, number_array *array, tool_error *error)
{
    npy_file file;
    tool_exit status = open_floats(option, path, &file, error);
    if (status == TOOL_DONE)
        status = read_floats(&file, &array->values, error);
    if (status == TOOL_DONE) {
        array->header = file.header;
        array->first = file.header.count > 0 ? (double)array->values[0] : 0.0;
    }
    npy_close(&file);
    return status;
}

static tool_exit read_number_list(const char *option, const char *text, number_array *array, tool_error *error)
{
    double *numbers = NULL;
    size_t count = 0;
    TOOL_TRY(tool_parse_numbers(option, text, &numbers, &count, error));
    array->first = numbers[0];
    array->header = (npy_header){.axes = 1, .shape = {(int64_t)count}, .count = count};
    array->values = malloc(count * sizeof *array->values);
    for (size_t i = 0; array->values && i < count; i++)
        array->values[i] = (float)numbers[i];
    free(numbers);
    return array->values ? TOOL_DONE : tool_fail_memory(error, option);
}

static tool_exit read_numbers(const char *option, const char *text, number_array *array, tool_error *error)
{
    *array = (number_array){0};
    return is_file(text) ? read_number_file(option, text, array, error) : read_number_list(option, text, array, error);
}

/* Whether the shape is [M], [H,M] or [H,M,S]. */
static bool has_shape(const npy_header *header, int axes, const clmgk_attention_desc *desc)
{
    if (header->axes != axes)
        return false;
    if (axes == 1)
        return header->shape[0] == desc->components;
    return header->shape[0] == desc->heads && header->shape[1] == desc->components &&
           (axes == 2 || header->shape[2] == desc->length_k);
}

static tool_exit fail_numbers(const char *option, const char *text, const npy_header *header, const char *expected,
                              const clmgk_attention_desc *desc, tool_error *error)
{
    return tool_fail(error, TOOL_BAD_INPUT,
                     "--%s %s: has shape %s; expected %s with H = %" PRId64 ", M = %" PRId64 ", S = %" PRId64, option,
                     text, npy_shape_text(header->axes, header->shape).text, expected, desc->heads, desc->components,
                     desc->length_k);
}

/* Every value finite and at least (above: greater than) 0. */
static tool_exit expect_values(const char *option, const char *text, const number_array *array, bool above,
                               tool_error *error)
{
    for (size_t i = 0; i < array->header.count; i++) {
        const float value = array->values[i];
        if (!isfinite(value) || value < 0.0f || (above && value == 0.0f))
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--%s %s: element %zu is %g as float32; expected a finite number %s 0", option, text, i,
                             (double)value, above ? "above" : "not below");
    }
    return TOOL_DONE;
}

static tool_exit describe_prior(const char *text, run_problem *problem, tool_error *error)
{
    static const clmgk_prior_shape shapes[] = {CLMGK_PRIOR_M, CLMGK_PRIOR_HM, CLMGK_PRIOR_HMS};
    clmgk_attention_desc *const desc = &problem->desc;
    number_array array;
    TOOL_TRY(read_numbers("prior", text, &array, error));
    problem->prior = array.values;
    const int axes = array.header.axes;
    if (axes < 1 || axes > 3 || !has_shape(&array.header, axes, desc))
        return fail_numbers("prior", text, &array.header, "[M], [H,M] or [H,M,S]", desc, error);
    desc->prior_shape = shapes[axes - 1];
    return expect_values("prior", text, &array, false, error);
}

static tool_exit describe_variance(const char *text, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    number_array array;
    TOOL_TRY(read_numbers("variance", text, &array, error));
    problem->variance = array.values;
    const int axes = array.header.axes;
    const bool number = axes == 0 || (axes == 1 && array.header.count == 1);
    if (!number && (axes > 2 || !has_shape(&array.header, axes, desc)))
        return fail_numbers("variance", text, &array.header, "one number, [M] or [H,M]", desc, error);
    TOOL_TRY(expect_values("variance", text, &array, true, error));
    desc->variance_shape = number ? CLMGK_VARIANCE_NUMBER : axes == 1 ? CLMGK_VARIANCE_M : CLMGK_VARIANCE_HM;
    if (number) {
        desc->variance = array.first;
        free(problem->variance);
        problem->variance = NULL;
    }
    return TOOL_DONE;
}

/* b [H,M,D], which gives M. */
static tool_exit describe_shift(const char *path, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    npy_file file;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, open_floats("shift", path, &file, error), done);
    if (file.header.axes != 3) {
        status = fail_shape(&file, "[H,M,D]", error);
        goto done;
    }
    TOOL_TRY_GOTO(status, expect_size(&file, 0, 'H', desc->heads, "--q", error), done);
    TOOL_TRY_GOTO(status, expect_positive(&file, 1, 'M', error), done);
    TOOL_TRY_GOTO(status, expect_size(&file, 2, 'D', desc->head_size, "--q", error), done);
    desc->components = size_of(&file, 1);
    status = read_floats(&file, &problem->shift, error);
done:
    npy_close(&file);
    return status;
}

static tool_exit check_lengths(const npy_file *file, const int32_t *lengths, int64_t limit, tool_error *error)
{
    for (int64_t b = 0; b < size_of(file, 0); b++) {
        if (lengths[b] < 0 || lengths[b] > limit)
            return tool_fail(error, TOOL_BAD_INPUT,
                             "--%s %s: element %" PRId64 " is %" PRId32 "; expected 0 to %" PRId64, file->option,
                             file->path, b, lengths[b], limit);
    }
    return TOOL_DONE;
}

static tool_exit read_lengths(const char *option, const char *path, int64_t batch, int64_t limit, int32_t **lengths,
                              tool_error *error)
{
    npy_file file;
    tool_exit status = TOOL_DONE;
    TOOL_TRY_GOTO(status, npy_open(option, path, &file, error), done);
    if (npy_is_float(file.header.type)) {
        status = tool_fail(error, TOOL_BAD_INPUT, "--%s %s: holds %s; expected int32 or int64", option, path,
                           npy_type_name(file.header.type));
        goto done;
    }
    if (file.header.axes != 1) {
        status = fail_shape(&file, "[B]", error);
        goto done;
    }
    TOOL_TRY_GOTO(status, expect_size(&file, 0, 'B', batch, "--q", error), done);
    *lengths = malloc((size_t)batch * sizeof **lengths);
    if (!*lengths) {
        status = tool_fail_memory(error, path);
        goto done;
    }
    TOOL_TRY_GOTO(status, npy_read_i32(&file, *lengths, error), done);
    status = check_lengths(&file, *lengths, limit, error);
done:
    npy_close(&file);
    return status;
}

static tool_exit describe_lengths(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_attention_desc *const desc = &problem->desc;
    desc->use_lengths = arguments->lengths != NULL;
    desc->use_lengths_q = arguments->lengths_q != NULL;
    if (arguments->lengths)
        TOOL_TRY(read_lengths("lengths", arguments->lengths, desc->batch, desc->length_k, &problem->lengths, error));
    if (arguments->lengths_q)
        TOOL_TRY(
            read_lengths("lengths-q", arguments->lengths_q, desc->batch, desc->length, &problem->lengths_q, error));
    return TOOL_DONE;
}

/* ---- the whole ---------------------------------------------------------------------------------------------- */

tool_exit run_problem_open(const run_arguments *arguments, run_problem *problem, tool_error *error)
{
    clmgk_error failure = {0};
    *problem = (run_problem){.desc = CLMGK_ATTENTION_DESC_INIT};
    clmgk_attention_desc *const desc = &problem->desc;
    desc->variant = arguments->variant;
    desc->score = arguments->score;
    desc->estep = arguments->estep;
    desc->causal = arguments->causal;
    desc->alignment = arguments->alignment;
    TOOL_TRY(describe_q(arguments, problem, error));
    TOOL_TRY(describe_k(arguments, problem, error));
    TOOL_TRY(describe_v(arguments, problem, error));
    TOOL_TRY(describe_o(arguments, problem, error));
    if (arguments->shift)
        TOOL_TRY(describe_shift(arguments->shift, problem, error));
    if (arguments->prior)
        TOOL_TRY(describe_prior(arguments->prior, problem, error));
    if (arguments->variance)
        TOOL_TRY(describe_variance(arguments->variance, problem, error));
    TOOL_TRY(describe_lengths(arguments, problem, error));
    if (clmgk_attention_validate(desc, desc, &failure) != CLMGK_OK)
        return tool_fail_library(error, &failure);
    return TOOL_DONE;
}

void run_problem_close(run_problem *problem)
{
    npy_close(&problem->q);
    npy_close(&problem->k);
    npy_close(&problem->v);
    free(problem->prior);
    free(problem->variance);
    free(problem->shift);
    free(problem->lengths);
    free(problem->lengths_q);
    *problem = (run_problem){0};
}

size_t run_count_o(const clmgk_attention_desc *desc)
{
    return run_count_lse(desc) * (size_t)desc->value_size;
}

size_t run_count_lse(const clmgk_attention_desc *desc)
{
    return (size_t)(desc->batch * desc->heads * desc->length);
}

size_t run_count_prior(const clmgk_attention_desc *desc)
{
    const size_t components = (size_t)desc->components;
    switch (desc->prior_shape) {
    case CLMGK_PRIOR_M:
        return components;
    case CLMGK_PRIOR_HM:
        return (size_t)desc->heads * components;
    case CLMGK_PRIOR_HMS:
        return (size_t)desc->heads * components * (size_t)desc->length_k;
    case CLMGK_PRIOR_UNIFORM:
        break;
    }
    return 0;
}

size_t run_count_variance(const clmgk_attention_desc *desc)
{
    const size_t components = (size_t)desc->components;
    return desc->variance_shape == CLMGK_VARIANCE_HM ? (size_t)desc->heads * components : components;
}

size_t run_count_shift(const clmgk_attention_desc *desc)
{
    return (size_t)(desc->heads * desc->components * desc->head_size);
}
