/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of the backward pass, before and after mixture/backward.cl: a work-item is a row (b, h, i).
 *
 *     log_i   = - L_i in units of scores + what the exponents leave out     delta_i = dL_i - dO_i.O_i
 *     alpha_ir = c_r q_i.b_r [gaussian: - c_r |q_i|^2 / 2]      dsink   = sum_i e^(sink - L_i) delta_i
 *
 *     dQ_i from the splits' sums of products and R_ir = sum_j dS_ijr (mixture/query_gradient.clh)
 */
#define PASS_BACKWARD
#include "mixture/buffers.clh"

#define ARGUMENTS mgk_attention_args
#define BUFFERS   MGK_MIXTURE_ROWS_BUFFERS
#include "base/buffers.clh"

#include "base/common.clh"
#include "mixture/block.clh"

#include "attention/rows.clh"

#include "mixture/query_gradient.clh"
#include "mixture/row_terms.clh"

FUNCTION __global const q_element *row_query(const mgk_attention_args *a, const row_place *at,
                                             __global const q_element *q)
{
    return q + at->b * a->q.batch + at->h * a->q.head + at->i * a->q.token;
}

/* Number d of a query, as scores take it. */
FUNCTION float row_number(__global const q_element *row, int d)
{
    ushort rounded;
    if (!QUERIES_ROUNDED)
        return load1(row, d);
    STORE_2(&rounded, load1(row, d));
    return LOAD_2(&rounded);
}

/* |row|^2, summed as the forward pass sums it: what both take from L and add again must be the same. */
FUNCTION float row_norm(__global const q_element *row, int size)
{
    float sum = 0.0f;
    if (ROW_FOURS)
        return has_fours(row, 0, size) ? dot_of_fours(row, row, size, true, 0.0f)
                                       : dot_of_fours(row, row, size, false, 0.0f);
    for (int d = 0; d < size; ++d)
        sum = fma(row_number(row, d), row_number(row, d), sum);
    return sum;
}

__kernel void mixture_rows_begin(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long rows = rows_of(&a), x = get_global_id(0);
    if (a.heads == 0 || x >= rows)
        return;
    const row_place at = row_of(&a, x);
    __global const q_element *const query = row_query(&a, &at, q);

#if HAS_ROW_TERMS
    __global float *const alpha =
        work + REGION(a.region[MGK_REGION_ALPHA]) + (at.b * a.heads + at.h) * ROW_TERMS * a.length + at.i;
    const float own_norm = SCORE_GAUSSIAN ? row_norm(query, a.head_size) : 0.0f;
    float product[ALPHA_TERMS > 0 ? ALPHA_TERMS : 1] = {0};
    __global const float *const rows_shift = shift + at.h * COMPONENTS * a.head_size;
    for (int d = 0; KEYS_SHIFTED && d < a.head_size; ++d) {
        const float y = row_number(query, d);
        COMPONENTS_FOR(r)
            product[r] = fma(y, rows_shift[r * a.head_size + d], product[r]);
    }
    for (int r = 0; r < ALPHA_TERMS; ++r)
        alpha[r * (long)a.length] = row_alpha(own_norm, product[r], component_scale(&a, at.h, r, variance));
    if (ROW_NORM_TERM)
        alpha[ALPHA_TERMS * (long)a.length] = row_norm_term(own_norm, a.scale);
#endif

    if (EXPECTATION)
        return;
    float log_row = -INFINITY, log_low = 0.0f, delta = 0.0f, sink = 0.0f;
    row_values own = {0.0f, 0.0f, 0.0f, 0.0f};
    const row_results results = {o, grad_o, lse, lse_low, grad_lse, sinks};
    if (row_values_of(&a, &at, &results, &own)) {
        delta = own.delta;
        sink = own.sink;
        log_low = -own.log_low;
        log_row = row_log(&a, -own.log_high, ROW_NORM_LATER ? row_norm(query, a.head_size) : 0.0f, &log_low);
    }
    work[REGION(a.region[MGK_REGION_LOG]) + x] = log_row;
    if (HAS_LSE_LOW)
        work[REGION(a.region[MGK_REGION_LOG_LOW]) + x] = log_low;
    work[REGION(a.region[MGK_REGION_DELTA]) + x] = delta;
    if (WANT_SINKS)
        work[REGION(a.region[MGK_REGION_SINKS]) + x] = sink;
    if (QUERIES_APART)
        return;
    if (WANT_BIAS_ROWS)
        work[REGION(a.region[MGK_REGION_BIAS]) + x] = 0.0f;
    for (int split = 0; split < a.splits; ++split) {
        __global float *const copy = work + REGION(a.region[MGK_REGION_QUERY]) + (split * rows + x) * HEAD_SIZE;
        for (int d = 0; WANT_Q && d < HEAD_SIZE; d += 4)
            vstore4((float4)(0.0f), 0, copy + d);
        for (int r = 0; r < ROW_SUMS; ++r)
            work[REGION(a.region[MGK_REGION_ROW_SUMS]) +
                 (((split * (rows / a.length) + at.b * a.heads + at.h) * ROW_SUMS + r) * a.length + at.i)] = 0.0f;
    }
}

/* Sum number r, R_ir first, over all splits, or as the kernel of queries stored it. */
FUNCTION float row_sum(const mgk_attention_args *a, const row_place *at, int r, __global const float *work)
{
    float sum = 0.0f;
    for (int split = 0; split < (QUERIES_APART ? 1 : a->splits); ++split)
        sum +=
            work[REGION(a->region[MGK_REGION_ROW_SUMS]) +
                 (((split * (rows_of(a) / a->length) + at->b * a->heads + at->h) * ROW_SUMS + r) * a->length + at->i)];
    return sum;
}

__kernel void mixture_rows_finish(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
    const long rows = rows_of(&a), x = get_global_id(0);
    if (a.heads == 0 || x >= rows)
        return;
    const row_place at = row_of(&a, x);
    __global const q_element *const query = row_query(&a, &at, q);
    __global grad_q_element *const out = grad_q + at.b * a.grad_q.batch + at.h * a.grad_q.head + at.i * a.grad_q.token;
    __global const float *const product = work + REGION(a.region[MGK_REGION_QUERY]) + x * HEAD_SIZE;

    float own = 0.0f;
    if (OWN_OF_GRAD_LSE && is_given(&a.bound, SLOT_GRAD_LSE))
        own = query_own(&a, grad_lse[row_lse(&a, &at)]);
    float share[COMPONENTS];
    for (int r = 0; HAS_ROW_SUMS && r < COMPONENTS; ++r) {
        share[r] = query_share(row_sum(&a, &at, r, work), component_scale(&a, at.h, r, variance));
        own = add_share(own, share[r]);
    }
    const bool seen = work[REGION(a.region[MGK_REGION_LOG]) + x] != -INFINITY;
    const float factor = query_factor(&a);
    for (int d = 0; d < a.head_size; ++d) {
        float sum = 0.0f;
        for (int split = 0; split < a.splits; ++split)
            sum += product[split * rows * HEAD_SIZE + d];
        sum *= factor;
        if (SCORE_GAUSSIAN)
            sum = fma(own, load1(query, d), sum);
        for (int r = 0; KEYS_SHIFTED && HAS_ROW_SUMS && r < COMPONENTS; ++r)
            sum = fma(share[r], shift[(at.h * COMPONENTS + r) * a.head_size + d], sum);
        /* a row that sees nothing may hold anything */
        sum = seen ? sum : 0.0f;
        store1(out, d, is_added(&a.bound, SLOT_GRAD_Q) ? sum + load1(out, d) : sum);
    }
}

/*
 * db_r = sum_b ( sum_i R_ir q_i [gaussian: - sum_j C_jr k_j - b_r sum_i R_ir] ) / sigma_r^2, C the key sums.
 * A work-item is (b, slice of rows and keys, h, r, four features); attention/reduce.cl adds the slices.
 */
__kernel void mixture_shift_gradient(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
#if KEYS_SHIFTED && HAS_ROW_SUMS
    const int quads = (a.head_size + 3) / 4;
    const int slices = MGK_SHIFT_SLICES(max(a.length, a.length_k));
    const int batches = HAS_SEQUENCES ? 1 : a.batch;
    long x = get_global_id(0);
    if (a.heads == 0 || x >= (long)batches * slices * a.heads * COMPONENTS * quads)
        return;
    const int d = (int)(x % quads) * 4;
    x /= quads;
    const int r = (int)(x % COMPONENTS);
    const long h = x / COMPONENTS % a.heads, slice = x / COMPONENTS / a.heads;
    const long b = slice / slices, g = h * a.kv_heads / a.heads;
    const int first = (int)(slice % slices) * MGK_SHIFT_SLICE;
    float4 sum = (float4)(0.0f);
    float weight = 0.0f;
    row_place at = {b, h, first};
    for (; at.i < min(first + MGK_SHIFT_SLICE, a.length); ++at.i) {
        /* what a row holds that sees no key is not looked at */
        if (work[REGION(a.region[MGK_REGION_LOG]) + (b * a.heads + h) * a.length + at.i] == -INFINITY)
            continue;
        const float row = row_sum(&a, &at, r, work);
        weight += row;
        sum = fma((float4)(row), load4_padded(elements_of(row_query(&a, &at, q)), d, a.head_size), sum);
    }
    __global const float *const key_sum =
        work + REGION(a.region[MGK_REGION_SHIFT]) + ((b * a.heads + h) * COMPONENTS + r) * a.length_k;
    __global const k_element *const key = k + b * a.k.batch + g * a.k.head;
    for (int j = first; SCORE_GAUSSIAN && j < min(first + MGK_SHIFT_SLICE, a.length_k); ++j)
        if (key_sum[j] != 0.0f)
            sum = fma((float4)(-key_sum[j]), load4_padded(elements_of(key + j * a.k.token), d, a.head_size), sum);
    const float scale = component_scale(&a, at.h, r, variance) * NATS_PER_UNIT;
    const float parts[4] = {sum.s0, sum.s1, sum.s2, sum.s3};
    const long vector = (h * COMPONENTS + r) * a.head_size;
    UNROLL
    for (int n = 0; n < 4; ++n) {
        const int i = d + n;
        float part = parts[n];
        if (i >= a.head_size)
            continue;
        if (SCORE_GAUSSIAN)
            part = fma(-weight, shift[vector + i], part);
        work[REGION(a.region[MGK_REGION_SLICES]) + slice * a.heads * COMPONENTS * a.head_size + vector + i] =
            part * scale;
    }
#endif
}

/* The part of dprior that delta lacks (DELTA_MENDED). A work-item is (b, h, r, slice of rows). */
__kernel void mixture_prior_gap(KERNEL_PARAMETERS)
{
    BEGIN_BUFFERS
#if DELTA_MENDED
    const int slices = GAP_COLUMNS(a.length);
    const long x = get_global_id(0);
    if (a.heads == 0 || x >= (HAS_SEQUENCES ? 1L : a.batch) * a.heads * COMPONENTS * slices)
        return;
    const int first = (int)(x % slices) * MGK_SHIFT_SLICE, r = (int)(x / slices % COMPONENTS);
    const long bh = x / slices / COMPONENTS;
    row_place at = {bh / a.heads, bh % a.heads, first};
    float sum = 0.0f;
    for (; at.i < min(first + MGK_SHIFT_SLICE, a.length); ++at.i) {
        const long row = bh * a.length + at.i;
        if (!weighs_exactly(work[REGION(a.region[MGK_REGION_LOG]) + row]))
            continue;
        const float own = is_given(&a.bound, SLOT_GRAD_LSE) ? grad_lse[row_lse(&a, &at)] : 0.0f;
        const float gap = own - row_sum(&a, &at, OUTPUT_SUM, work) - work[REGION(a.region[MGK_REGION_DELTA]) + row];
        sum = fma(gap, row_sum(&a, &at, WEIGHT_SUMS + r, work), sum);
    }
    if (HAS_PRIOR) {
        const float weight = prior[at.h * a.prior.head + r * a.prior.component];
        sum = weight > PRIOR_LEAST ? sum / weight : 0.0f;
    }
    work[REGION(a.region[MGK_REGION_KEY_SUMS]) + (bh * COMPONENTS + r) * (a.length_k + slices) + a.length_k +
         x % slices] = sum;
#endif
}
