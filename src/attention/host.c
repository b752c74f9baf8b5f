/* SPDX-License-Identifier: Apache-2.0 */
/* The simple calls: arrays on the host, a device picked for the caller. */
#include "attention/plan.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* The first versions' sizes. */
enum {
    LEAST_ARGS_SIZE = offsetof(clmgk_host_args, offsets),
    LEAST_GRADIENTS_SIZE = offsetof(clmgk_host_gradients, grad_mix)
};

/* What one call holds; released by host_close whatever happened. */
typedef struct host_call {
    mgk_pass pass;
    clmgk_attention_desc desc;     /* resolved */
    clmgk_host_args args;          /* the caller's */
    const void *input[MGK_ARRAYS]; /* what the device's arrays begin with; NULL: not given */
    void *output[MGK_ARRAYS];      /* where results go */
    uint32_t accumulate;           /* of a backward pass */

    cl_context cl;
    cl_command_queue queue;
    clmgk_context *context;
    clmgk_plan *plan;
    clmgk_buffer buffer[MGK_ARRAYS]; /* the workspace among them */
    size_t bytes[MGK_ARRAYS];        /* from the first element to one past the last; 0: not given or empty */
    void *result[MGK_ARRAYS];        /* of outputs, before they are copied to the caller */
} host_call;

static void host_close(host_call *call)
{
    for (size_t i = 0; i < MGK_ARRAYS; ++i) {
        if (call->buffer[i].memory != NULL)
            clReleaseMemObject(call->buffer[i].memory);
        mgk_free(NULL, call->result[i]);
    }
    clmgk_plan_release(call->plan);
    clmgk_context_release(call->context);
    if (call->queue != NULL)
        clReleaseCommandQueue(call->queue);
    if (call->cl != NULL)
        clReleaseContext(call->cl);
}

/* ---- the caller's pointers ---------------------------------------------------------------------------------- */

/* All but V, O and L, which not every pass has. */
static void list_inputs(host_call *call)
{
    const clmgk_host_args *const args = &call->args;
    call->input[MGK_Q] = args->q;
    call->input[MGK_K] = args->k;
    call->input[MGK_PRIOR] = args->prior;
    call->input[MGK_VARIANCE] = args->variance;
    call->input[MGK_SHIFT] = args->shift;
    call->input[MGK_LENGTHS] = args->lengths;
    call->input[MGK_LENGTHS_Q] = args->lengths_q;
    call->input[MGK_OFFSETS] = args->offsets;
    call->input[MGK_OFFSETS_K] = args->offsets_k;
    call->input[MGK_BIAS] = args->bias;
    call->input[MGK_SLOPES] = args->slopes;
    call->input[MGK_SINKS] = args->sinks;
    call->input[MGK_MIX] = args->mix;
    call->input[MGK_MIX_WEIGHT] = args->mix_weight;
    call->input[MGK_MIX_OFFSET] = args->mix_offset;
    call->input[MGK_NOISE] = args->noise;
}

/* An output's own values go to the device too: they are added to, and what lies between its strides comes back as it
 * was. */
static void list_output(host_call *call, mgk_array array, void *output)
{
    call->output[array] = output;
    call->input[array] = output;
}

static void list_gradients(host_call *call, const clmgk_host_gradients *gradients)
{
    call->input[MGK_GRAD_O] = gradients->grad_o;
    call->input[MGK_GRAD_LSE] = gradients->grad_lse;
    list_output(call, MGK_GRAD_Q, gradients->grad_q);
    list_output(call, MGK_GRAD_K, gradients->grad_k);
    list_output(call, MGK_GRAD_V, gradients->grad_v);
    list_output(call, MGK_GRAD_PRIOR, gradients->grad_prior);
    list_output(call, MGK_GRAD_VARIANCE, gradients->grad_variance);
    list_output(call, MGK_GRAD_SHIFT, gradients->grad_shift);
    list_output(call, MGK_GRAD_BIAS, gradients->grad_bias);
    list_output(call, MGK_GRAD_SINKS, gradients->grad_sinks);
    list_output(call, MGK_GRAD_MIX, gradients->grad_mix);
    list_output(call, MGK_GRAD_MIX_WEIGHT, gradients->grad_mix_weight);
    list_output(call, MGK_GRAD_MIX_OFFSET, gradients->grad_mix_offset);
    list_output(call, MGK_GRAD_NOISE, gradients->grad_noise);
    call->accumulate = gradients->accumulate;
}

static clmgk_status check_missing(const host_call *call, mgk_array array, const char *name, clmgk_error *error)
{
    if (call->pass == MGK_BACKWARD && array == MGK_LSE)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER,
                        "lse: NULL: expected L of the forward pass, which gradients are made from");
    return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: NULL: expected an array (variant %s)", name,
                    clmgk_variant_name(call->desc.variant));
}

static clmgk_status check_pointer(host_call *call, mgk_array array, clmgk_error *error)
{
    const mgk_presence presence = mgk_presence_of(&call->desc, call->pass, array);
    const mgk_shape shape = mgk_shape_of(&call->desc, array);
    int64_t extent = 0;
    if (!mgk_shape_extent(&shape, &extent) || (extent > 0 && (uint64_t)extent > SIZE_MAX / shape.element))
        return mgk_fail(error, CLMGK_ERROR_OVERFLOW, "%s: its extent does not fit in memory", shape.name);
    if (presence == MGK_ABSENT && call->input[array] != NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_BUFFER, "%s: given, but the descriptor (variant %s) does not use it",
                        shape.name, clmgk_variant_name(call->desc.variant));
    if (presence == MGK_REQUIRED && call->input[array] == NULL && extent > 0)
        return check_missing(call, array, shape.name, error);
    call->bytes[array] = call->input[array] != NULL ? (size_t)extent * shape.element : 0;
    return CLMGK_OK;
}

/* ---- values, which are in reach here ------------------------------------------------------------------------ */

static clmgk_status check_lengths(const char *name, const int32_t *lengths, int64_t batch, int64_t most,
                                  clmgk_error *error)
{
    for (int64_t b = 0; b < batch; ++b)
        if (lengths[b] < 0 || lengths[b] > most)
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s[%" PRId64 "]: %" PRId32 ": expected 0 to %" PRId64,
                            name, b, lengths[b], most);
    return CLMGK_OK;
}

static clmgk_status check_offsets(const char *name, const int32_t *offsets, int64_t sequences, int64_t end,
                                  clmgk_error *error)
{
    if (offsets[0] != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s[0]: %" PRId32 ": expected 0", name, offsets[0]);
    for (int64_t t = 1; t <= sequences; ++t)
        if (offsets[t] < offsets[t - 1])
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                            "%s[%" PRId64 "]: %" PRId32 ": expected no less than the one before, %" PRId32, name, t,
                            offsets[t], offsets[t - 1]);
    if (offsets[sequences] != end)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE,
                        "%s[%" PRId64 "]: %" PRId32 ": expected the end of the axis, %" PRId64, name, sequences,
                        offsets[sequences], end);
    return CLMGK_OK;
}

/* The elements of a dense array that the call has. */
static int64_t count_of(const clmgk_attention_desc *desc, mgk_array array)
{
    const mgk_shape shape = mgk_shape_of(desc, array);
    int64_t count = 1;
    for (int i = 0; i < shape.rank; ++i)
        count *= shape.size[i];
    return count;
}

static clmgk_status check_priors(const clmgk_attention_desc *desc, const float *prior, clmgk_error *error)
{
    const int64_t count = count_of(desc, MGK_PRIOR);
    for (int64_t i = 0; i < count; ++i)
        if (!(prior[i] >= 0.0F) || isinf(prior[i]))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "prior[%" PRId64 "]: %g: expected 0 or more, finite", i,
                            (double)prior[i]);
    return CLMGK_OK;
}

static clmgk_status check_variances(const clmgk_attention_desc *desc, const float *variance, clmgk_error *error)
{
    const int64_t count = count_of(desc, MGK_VARIANCE);
    for (int64_t i = 0; i < count; ++i)
        if (!(variance[i] > 0.0F) || isinf(variance[i]))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "variance[%" PRId64 "]: %g: expected positive and finite",
                            i, (double)variance[i]);
    return CLMGK_OK;
}

/* Mixing is free: any sign, 0 too. */
static clmgk_status check_mixing(const clmgk_attention_desc *desc, mgk_array array, const float *values,
                                 clmgk_error *error)
{
    const int64_t count = count_of(desc, array);
    for (int64_t i = 0; i < count; ++i)
        if (!isfinite(values[i]))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s[%" PRId64 "]: %g: expected a finite number",
                            mgk_shape_of(desc, array).name, i, (double)values[i]);
    return CLMGK_OK;
}

static clmgk_status check_noise(const clmgk_attention_desc *desc, const float *noise, clmgk_error *error)
{
    const int64_t count = count_of(desc, MGK_NOISE);
    for (int64_t i = 0; i < count; ++i)
        if (!(noise[i] >= 0.0F) || isinf(noise[i]))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "noise[%" PRId64 "]: %g: expected 0 or more, finite", i,
                            (double)noise[i]);
    return CLMGK_OK;
}

static clmgk_status check_admixture(const clmgk_attention_desc *desc, const clmgk_host_args *args, clmgk_error *error)
{
    const uint32_t traits = clmgk_variant_traits(desc->variant);
    if ((traits & CLMGK_TRAIT_ADMIXTURE) != 0)
        MGK_TRY(check_mixing(desc, MGK_MIX, args->mix, error));
    if (desc->use_mix_weight)
        MGK_TRY(check_mixing(desc, MGK_MIX_WEIGHT, args->mix_weight, error));
    if (desc->use_mix_offset)
        MGK_TRY(check_mixing(desc, MGK_MIX_OFFSET, args->mix_offset, error));
    return (traits & CLMGK_TRAIT_NOISE) != 0 ? check_noise(desc, args->noise, error) : CLMGK_OK;
}

/* -inf hides a key. */
static clmgk_status check_bias(const clmgk_attention_desc *desc, const float *bias, clmgk_error *error)
{
    const int64_t count = count_of(desc, MGK_BIAS);
    for (int64_t i = 0; i < count; ++i)
        if (!(bias[i] < INFINITY))
            return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "bias[%" PRId64 "]: %g: expected a number or -inf", i,
                            (double)bias[i]);
    return CLMGK_OK;
}

static clmgk_status check_values(const clmgk_attention_desc *desc, const clmgk_host_args *args, clmgk_error *error)
{
    if (desc->use_lengths)
        MGK_TRY(check_lengths("lengths", args->lengths, desc->batch, desc->length_k, error));
    if (desc->use_lengths_q)
        MGK_TRY(check_lengths("lengths_q", args->lengths_q, desc->batch, desc->length, error));
    if (desc->sequences > 0)
        MGK_TRY(check_offsets("offsets", args->offsets, desc->sequences, desc->length, error));
    if (desc->use_offsets_k)
        MGK_TRY(check_offsets("offsets_k", args->offsets_k, desc->sequences, desc->length_k, error));
    if (desc->prior_shape != CLMGK_PRIOR_UNIFORM)
        MGK_TRY(check_priors(desc, args->prior, error));
    if (desc->variance_shape != CLMGK_VARIANCE_NUMBER)
        MGK_TRY(check_variances(desc, args->variance, error));
    MGK_TRY(check_admixture(desc, args, error));
    return desc->use_bias ? check_bias(desc, args->bias, error) : CLMGK_OK;
}

/* ---- steps -------------------------------------------------------------------------------------------------- */

static clmgk_status open_device(host_call *call, const char *selector, clmgk_error *error)
{
    clmgk_device_info info;
    MGK_TRY(clmgk_select_device(selector, &info, error));
    cl_int code = CL_SUCCESS;
    call->cl = clCreateContext(NULL, 1, &info.device_id, NULL, NULL, &code);
    if (call->cl == NULL)
        return mgk_fail_cl(error, code, "clCreateContext");
    call->queue = clCreateCommandQueue(call->cl, info.device_id, 0, &code);
    if (call->queue == NULL)
        return mgk_fail_cl(error, code, "clCreateCommandQueue");
    return clmgk_context_create(call->cl, info.device_id, NULL, &call->context, error);
}

static clmgk_status create_buffer(host_call *call, int array, clmgk_error *error)
{
    cl_int code = CL_SUCCESS;
    const cl_mem_flags access = call->output[array] != NULL ? CL_MEM_READ_WRITE : CL_MEM_READ_ONLY;
    void *host = NULL;
    memcpy(&host, &call->input[array], sizeof(host)); /* OpenCL's signature lacks a const; it only reads */
    call->buffer[array].memory =
        clCreateBuffer(call->cl, CL_MEM_COPY_HOST_PTR | access, call->bytes[array], host, &code);
    return call->buffer[array].memory != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateBuffer");
}

static clmgk_status create_buffers(host_call *call, clmgk_error *error)
{
    for (int i = 0; i < MGK_WORKSPACE; ++i)
        if (call->bytes[i] > 0)
            MGK_TRY(create_buffer(call, i, error));
    const size_t workspace = clmgk_plan_workspace_size(call->plan);
    if (workspace == 0)
        return CLMGK_OK;
    cl_int code = CL_SUCCESS;
    call->buffer[MGK_WORKSPACE].memory = clCreateBuffer(call->cl, CL_MEM_READ_WRITE, workspace, NULL, &code);
    return call->buffer[MGK_WORKSPACE].memory != NULL ? CLMGK_OK : mgk_fail_cl(error, code, "clCreateBuffer");
}

static clmgk_status read_outputs(host_call *call, clmgk_error *error)
{
    for (int i = 0; i < MGK_WORKSPACE; ++i) {
        if (call->output[i] == NULL || call->bytes[i] == 0)
            continue;
        call->result[i] = mgk_alloc(NULL, call->bytes[i], 1);
        if (call->result[i] == NULL)
            return mgk_fail_memory(error, "an output");
        const cl_int code = clEnqueueReadBuffer(call->queue, call->buffer[i].memory, CL_TRUE, 0, call->bytes[i],
                                                call->result[i], 0, NULL, NULL);
        if (code != CL_SUCCESS)
            return mgk_fail_cl(error, code, "clEnqueueReadBuffer");
    }
    return CLMGK_OK;
}

static clmgk_attention_args device_args(const host_call *call)
{
    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.q = call->buffer[MGK_Q];
    args.k = call->buffer[MGK_K];
    args.v = call->buffer[MGK_V];
    args.o = call->buffer[MGK_O];
    args.lse = call->buffer[MGK_LSE];
    args.prior = call->buffer[MGK_PRIOR];
    args.variance = call->buffer[MGK_VARIANCE];
    args.shift = call->buffer[MGK_SHIFT];
    args.lengths = call->buffer[MGK_LENGTHS];
    args.lengths_q = call->buffer[MGK_LENGTHS_Q];
    args.workspace = call->buffer[MGK_WORKSPACE];
    args.offsets = call->buffer[MGK_OFFSETS];
    args.offsets_k = call->buffer[MGK_OFFSETS_K];
    args.bias = call->buffer[MGK_BIAS];
    args.slopes = call->buffer[MGK_SLOPES];
    args.sinks = call->buffer[MGK_SINKS];
    args.mix = call->buffer[MGK_MIX];
    args.mix_weight = call->buffer[MGK_MIX_WEIGHT];
    args.mix_offset = call->buffer[MGK_MIX_OFFSET];
    args.noise = call->buffer[MGK_NOISE];
    args.seed = call->args.seed;
    return args;
}

static clmgk_gradient_args device_gradients(const host_call *call)
{
    clmgk_gradient_args args = CLMGK_GRADIENT_ARGS_INIT;
    args.grad_o = call->buffer[MGK_GRAD_O];
    args.grad_lse = call->buffer[MGK_GRAD_LSE];
    args.grad_q = call->buffer[MGK_GRAD_Q];
    args.grad_k = call->buffer[MGK_GRAD_K];
    args.grad_v = call->buffer[MGK_GRAD_V];
    args.grad_prior = call->buffer[MGK_GRAD_PRIOR];
    args.grad_variance = call->buffer[MGK_GRAD_VARIANCE];
    args.grad_shift = call->buffer[MGK_GRAD_SHIFT];
    args.grad_bias = call->buffer[MGK_GRAD_BIAS];
    args.grad_sinks = call->buffer[MGK_GRAD_SINKS];
    args.grad_mix = call->buffer[MGK_GRAD_MIX];
    args.grad_mix_weight = call->buffer[MGK_GRAD_MIX_WEIGHT];
    args.grad_mix_offset = call->buffer[MGK_GRAD_MIX_OFFSET];
    args.grad_noise = call->buffer[MGK_GRAD_NOISE];
    args.accumulate = call->accumulate;
    return args;
}

static clmgk_statistic_args device_statistics(const host_call *call)
{
    clmgk_statistic_args args = CLMGK_STATISTIC_ARGS_INIT;
    args.responsibilities = call->buffer[MGK_RESPONSIBILITIES];
    args.counts = call->buffer[MGK_COUNTS];
    args.new_prior = call->buffer[MGK_NEW_PRIOR];
    args.nll = call->buffer[MGK_NLL];
    return args;
}

static clmgk_status enqueue(host_call *call, clmgk_error *error)
{
    const clmgk_attention_args args = device_args(call);
    const clmgk_gradient_args gradients = device_gradients(call);
    const clmgk_statistic_args statistics = device_statistics(call);
    switch (call->pass) {
    case MGK_BACKWARD:
        return clmgk_enqueue_backward(call->plan, call->queue, &args, &gradients, 0, NULL, NULL, error);
    case MGK_STATISTICS:
        return clmgk_enqueue_statistics(call->plan, call->queue, &args, &statistics, 0, NULL, NULL, error);
    default:
        return clmgk_enqueue_forward(call->plan, call->queue, &args, 0, NULL, NULL, error);
    }
}

static clmgk_status run(host_call *call, clmgk_error *error)
{
    const clmgk_status status = enqueue(call, error);
    const cl_int code = clFinish(call->queue);
    return status == CLMGK_OK && code != CL_SUCCESS ? mgk_fail_cl(error, code, "clFinish") : status;
}

/* ---- the public calls --------------------------------------------------------------------------------------- */

/* Reads what all calls are given, and keeps of the descriptor what `pass` needs. */
static clmgk_status host_begin(host_call *call, mgk_pass pass, const clmgk_attention_desc *desc,
                               const clmgk_host_args *args, clmgk_error *error)
{
    if (args == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "args: NULL: expected the call's arrays");
    MGK_TRY(clmgk_attention_validate(desc, &call->desc, error));
    MGK_TRY(mgk_struct_read(args, "args", LEAST_ARGS_SIZE, &call->args, sizeof(call->args), error));
    call->pass = pass;
    call->desc.gradients = pass == MGK_BACKWARD ? call->desc.gradients : 0;
    call->desc.statistics = pass == MGK_STATISTICS ? call->desc.statistics : 0;
    call->desc.combine = 0;
    list_inputs(call);
    return CLMGK_OK;
}

/* The rest of a call whose pointers are listed. */
static clmgk_status host_run(host_call *call, const char *selector, clmgk_error *error)
{
    clmgk_status status;
    for (int i = 0; i < MGK_WORKSPACE; ++i)
        MGK_TRY(check_pointer(call, (mgk_array)i, error));
    MGK_TRY(check_values(&call->desc, &call->args, error));
    MGK_TRY_GOTO(status, open_device(call, selector, error), done);
    MGK_TRY_GOTO(status, clmgk_plan_create(call->context, &call->desc, NULL, &call->plan, error), done);
    MGK_TRY_GOTO(status, create_buffers(call, error), done);
    MGK_TRY_GOTO(status, run(call, error), done);
    MGK_TRY_GOTO(status, read_outputs(call, error), done);
    for (int i = 0; i < MGK_WORKSPACE; ++i)
        if (call->result[i] != NULL)
            memcpy(call->output[i], call->result[i], call->bytes[i]);
done:
    host_close(call);
    return status;
}

clmgk_status clmgk_attention_forward_host(const char *selector, const clmgk_attention_desc *desc,
                                          const clmgk_host_args *args, clmgk_error *error)
{
    host_call call = {0};
    MGK_TRY(host_begin(&call, MGK_FORWARD, desc, args, error));
    call.input[MGK_V] = call.args.v;
    list_output(&call, MGK_O, call.args.o);
    list_output(&call, MGK_LSE, call.args.lse);
    return host_run(&call, selector, error);
}

clmgk_status clmgk_attention_backward_host(const char *selector, const clmgk_attention_desc *desc,
                                           const clmgk_host_args *args, const clmgk_host_gradients *gradients,
                                           clmgk_error *error)
{
    if (gradients == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "gradients: NULL: expected the call's arrays");
    host_call call = {0};
    clmgk_host_gradients given;
    MGK_TRY(host_begin(&call, MGK_BACKWARD, desc, args, error));
    MGK_TRY(mgk_struct_read(gradients, "gradients", LEAST_GRADIENTS_SIZE, &given, sizeof(given), error));
    if (call.desc.gradients == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "gradients: 0: expected a set of clmgk_gradient");
    if ((given.accumulate & ~(uint32_t)CLMGK_GRADIENT_ALL) != 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "accumulate: %" PRIu32 ": expected a set of at most %d",
                        given.accumulate, CLMGK_GRADIENT_ALL);
    call.input[MGK_V] = call.args.v;
    call.input[MGK_O] = call.args.o;
    call.input[MGK_LSE] = call.args.lse;
    list_gradients(&call, &given);
    return host_run(&call, selector, error);
}

clmgk_status clmgk_attention_statistics_host(const char *selector, const clmgk_attention_desc *desc,
                                             const clmgk_host_args *args, const clmgk_host_statistics *statistics,
                                             clmgk_error *error)
{
    if (statistics == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "statistics: NULL: expected the call's arrays");
    host_call call = {0};
    clmgk_host_statistics given;
    MGK_TRY(host_begin(&call, MGK_STATISTICS, desc, args, error));
    MGK_TRY(mgk_struct_read(statistics, "statistics", sizeof(given), &given, sizeof(given), error));
    if (call.desc.statistics == 0)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "statistics: 0: expected a set of clmgk_statistic");
    list_output(&call, MGK_RESPONSIBILITIES, given.responsibilities);
    list_output(&call, MGK_COUNTS, given.counts);
    list_output(&call, MGK_NEW_PRIOR, given.new_prior);
    list_output(&call, MGK_NLL, given.nll);
    return host_run(&call, selector, error);
}
