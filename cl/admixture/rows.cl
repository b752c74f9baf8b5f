/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admixture family, backward pass, what is done per row before and after the keys, and the gradients of the mixing:
 *
 *     log_hi = - L_hi in the unit of scores      delta_hi = dL_hi - dO_hi.O_hi
 *     dsink = sum_i e^(sink - L_hi) delta_hi
 *     dQ_ki = (sum of the splits' products) / sqrt(D)     MiSH: p_k times that
 *
 * SHARED_SOFTMAX: head 0 has log_i of all heads, and the sum of their delta_hi.
 */
#define PASS_BACKWARD
#include "admixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_ADMIXTURE_ROWS_BUFFERS
#include "base/buffers.clh"

#include "admixture/block.clh"
#include "admixture/sums.clh"

#include "attention/rows.clh"

/* A work-item is a row of a head; SHARED_SOFTMAX: those of head 0 have all heads. */
__kernel void admixture_rows_begin(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long x = get_global_id(0);
    if (a.heads == 0 || x >= rows_of(&a))
        return;
    row_place at = row_of(&a, x);
    if (SHARED_SOFTMAX && at.h > 0)
        return;
    row_values own = {0.0f, 0.0f, 0.0f, 0.0f};
    const row_results results = {o, grad_o, lse, lse_low, grad_lse, sinks};
    const bool seen = row_values_of(&a, &at, &results, &own);
    for (++at.h; SHARED_SOFTMAX && at.h < a.heads; ++at.h)
        row_values_of(&a, &at, &results, &own);
    work[REGION(a.region[MGK_REGION_LOG]) + x] = seen ? -own.log_high - (HAS_LSE_LOW ? 0.0f : own.log_low) : -INFINITY;
    if (HAS_LSE_LOW)
        work[REGION(a.region[MGK_REGION_LOG_LOW]) + x] = -own.log_low;
    work[REGION(a.region[MGK_REGION_DELTA]) + x] = own.delta;
    if (WANT_SINKS)
        work[REGION(a.region[MGK_REGION_SINKS]) + x] = own.sink;
    if (WANT_BIAS_ROWS)
        work[REGION(a.region[MGK_REGION_BIAS]) + x] = 0.0f;
}

/* A work-item is a row of a global head. */
__kernel void admixture_rows_finish(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long rows = (HAS_SEQUENCES ? 1L : a.batch) * COMPONENTS * a.length, x = get_global_id(0);
    if (a.heads == 0 || x >= rows)
        return;
    const long b = x / a.length / COMPONENTS, k = x / a.length % COMPONENTS, i = x % a.length;
    __global const float *const product = work + REGION(a.region[MGK_REGION_QUERY]) + x * HEAD_SIZE;
    __global const q_element *const query = q + b * a.q.batch + k * a.q.head + i * a.q.token;
    __global grad_q_element *const out = grad_q + b * a.grad_q.batch + k * a.grad_q.head + i * a.grad_q.token;
    const float scale = a.scale * NATS_PER_UNIT * (SHARED_MIX ? mix[k] : 1.0f);
    float row = 0.0f;
    for (int d = 0; d < a.head_size; ++d) {
        float sum = 0.0f;
        for (int split = 0; split < a.splits; ++split)
            sum += product[split * rows * HEAD_SIZE + d];
        /* a row that sees nothing may hold anything */
        if (SHARED_MIX && WANT_MIX)
            row = sum == 0.0f ? row : fma(sum, load1(query, d), row);
        sum *= scale;
        if (WANT_Q)
            store1(out, d, is_added(&a.bound, SLOT_GRAD_Q) ? sum + load1(out, d) : sum);
    }
    if (SHARED_MIX && WANT_MIX)
        work[REGION(a.region[MGK_REGION_MIX_ROWS]) + x] = row;
}

/* Sum number n of head h over batches and splits. */
FUNCTION float mix_sum(const mgk_attention_args *a, __global const float *work, long h, int n)
{
    float sum = 0.0f;
    for (long x = 0; x < (long)a->batch * a->splits; ++x)
        sum += work[REGION(a->region[MGK_REGION_MIX_SUMS]) + (x * a->heads + h) * SUMS + n];
    return sum;
}

FUNCTION void put(__global float *out, long x, float value, bool added)
{
    out[x] = added ? out[x] + value : value;
}

/* Sum number n of unit u over batches and splits. */
FUNCTION float unit_sum(const mgk_attention_args *a, __global const float *work, long u, int n)
{
    float sum = 0.0f;
    for (long x = 0; x < (long)a->batch * a->splits; ++x)
        sum += work[REGION(a->region[MGK_REGION_UNIT_SUMS]) + (x * HIDDEN + u) * UNIT_SUMS + n];
    return sum;
}

/* dp, dw: a work-item is (h, k), with MiSH k; with a hidden layer dp: (u, k), dw: (h, u). */
FUNCTION float mix_gradient(const mgk_attention_args *a, long h, int k, const mixing *m, __global const float *work)
{
    float sum = SHARED_MIX ? work[REGION(a->region[MGK_REGION_MIX_TOTALS]) + k] : mix_sum(a, work, h, k);
    const long first = SHARED_MIX ? 0 : h, end = SHARED_MIX ? a->heads : h + 1;
    for (long n = first; MIX_HAS_NOISE && n < end; ++n)
        sum = fma(m->sigma[k], mix_sum(a, work, n, MIX_SUMS), sum);
    return sum * (a->scale * NATS_PER_UNIT);
}

__kernel void admixture_mix_gradient(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
#if WANT_MIX && HIDDEN > 0
    const long x = get_global_id(0);
    if (a.heads == 0 || x >= (long)HIDDEN * COMPONENTS)
        return;
    const long u = x / COMPONENTS;
    const int k = (int)(x % COMPONENTS);
    float sum = unit_sum(&a, work, u, k);
    if (HAS_UNIT_NOISE)
        sum = fma(deviation(noise[k]), unit_sum(&a, work, u, UNIT_NOISE_SUM), sum);
    put(grad_mix, x, sum * (a.scale * NATS_PER_UNIT), is_added(&a.bound, SLOT_GRAD_MIX));
#elif WANT_MIX
    const long x = get_global_id(0);
    if (a.heads == 0 || x >= (SHARED_MIX ? 1L : a.heads) * COMPONENTS)
        return;
    const long h = x / COMPONENTS;
    const int k = (int)(x % COMPONENTS);
    const mixing m = mixing_of(&a, (int)h, mix, mix_weight, noise);
    put(grad_mix, x, mix_gradient(&a, h, k, &m, work) * (GENERALISED ? weight_of(&m, k) : 1.0f),
        is_added(&a.bound, SLOT_GRAD_MIX));
#endif
}

__kernel void admixture_weight_gradient(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
#if WANT_MIX_WEIGHT && HIDDEN > 0
    const long x = get_global_id(0);
    if (a.heads != 0 && x < (long)a.heads * HIDDEN)
        put(grad_mix_weight, x, mix_sum(&a, work, x / HIDDEN, (int)(x % HIDDEN)) * (a.scale * NATS_PER_UNIT),
            is_added(&a.bound, SLOT_GRAD_MIX_WEIGHT));
#elif WANT_MIX_WEIGHT
    const long x = get_global_id(0);
    if (a.heads == 0 || x >= (long)a.heads * COMPONENTS)
        return;
    const long h = x / COMPONENTS;
    const int k = (int)(x % COMPONENTS);
    const mixing m = mixing_of(&a, (int)h, mix, mix_weight, noise);
    put(grad_mix_weight, x, mix_gradient(&a, h, k, &m, work) * m.p[k], is_added(&a.bound, SLOT_GRAD_MIX_WEIGHT));
#endif
}

/* dc: a work-item is h. */
__kernel void admixture_offset_gradient(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long h = get_global_id(0);
    if (WANT_MIX_OFFSET && a.heads != 0 && h < a.heads)
        put(grad_mix_offset, h, mix_sum(&a, work, h, MIX_SUMS + NOISE_SUMS) * (a.scale * NATS_PER_UNIT),
            is_added(&a.bound, SLOT_GRAD_MIX_OFFSET));
}

/* db: a work-item is u. */
__kernel void admixture_hidden_offset_gradient(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long u = get_global_id(0);
    if (WANT_MIX_HIDDEN_OFFSET && a.heads != 0 && u < HIDDEN)
        put(grad_mix_hidden_offset, u, unit_sum(&a, work, u, UNIT_OFFSET_SUM) * (a.scale * NATS_PER_UNIT),
            is_added(&a.bound, SLOT_GRAD_MIX_HIDDEN_OFFSET));
}

/* dsigma: a work-item is k. */
__kernel void admixture_noise_gradient(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const int k = (int)get_global_id(0);
    if (!WANT_NOISE || a.heads == 0 || k >= COMPONENTS)
        return;
    float sum = 0.0f;
    for (int u = 0; u < HIDDEN; ++u)
        sum = fma(mix[u * COMPONENTS + k], unit_sum(&a, work, u, UNIT_NOISE_SUM), sum);
    for (int h = 0; HIDDEN == 0 && h < a.heads; ++h) {
        const mixing m = mixing_of(&a, h, mix, mix_weight, noise);
        sum = fma(m.p[k] * weight_of(&m, k), mix_sum(&a, work, h, MIX_SUMS + (GENERALISED ? k : 0)), sum);
    }
    put(grad_noise, k, sum * (a.scale * NATS_PER_UNIT), is_added(&a.bound, SLOT_GRAD_NOISE));
}
