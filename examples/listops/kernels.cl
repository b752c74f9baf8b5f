/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network's own kernels: everything but attention layers and matrix products, which are the library's.
 *
 * Rows are tokens of width W (hidden: U), in vectors of 16 floats. An array comes as a buffer and an offset in vectors.
 * Sums over rows have a fixed order, without atomics: a work-item adds up BLOCK rows into its own row of `partial`
 * [blocks, columns], and add_partial adds these.
 *
 * Macros: W and U, both in vectors; BLOCK; VOCABULARY, CLASSES.
 */
#define ARRAY(type, name) __global type *const restrict name##_buffer, const int name##_at
#define AT(name)          (name##_buffer + name##_at)

float sum_of(float16 x)
{
    const float8 eight = x.lo + x.hi;
    const float4 four = eight.lo + eight.hi;
    return (four.s0 + four.s1) + (four.s2 + four.s3);
}

/* ---- embedding --------------------------------------------------------------------------------------------------- */

/* x [rows,W] = words[token] + places[position] */
__kernel void embed(ARRAY(const int, tokens), ARRAY(const int, positions), ARRAY(const float16, words),
                    ARRAY(const float16, places), ARRAY(float16, x))
{
    const int row = get_global_id(0);
    __global const float16 *const word = AT(words) + AT(tokens)[row] * W;
    __global const float16 *const place = AT(places) + AT(positions)[row] * W;
    __global float16 *const out = AT(x) + row * W;
    for (int c = 0; c < W; ++c)
        out[c] = word[c] + place[c];
}

/* dwords[token] += dx, of a block */
__kernel void embed_words_backward(ARRAY(const int, tokens), ARRAY(const float16, dx), ARRAY(float16, partial),
                                   const int columns)
{
    const int block = get_global_id(0);
    __global float16 *const sums = AT(partial) + block * columns;
    for (int c = 0; c < VOCABULARY * W; ++c)
        sums[c] = 0.0f;
    for (int row = block * BLOCK; row < (block + 1) * BLOCK; ++row)
        for (int c = 0; c < W; ++c)
            sums[AT(tokens)[row] * W + c] += AT(dx)[row * W + c];
}

/* dplaces[position] = sum of dx over the sequences that are so long; a work-item is a position */
__kernel void embed_places_backward(ARRAY(const int, offsets), ARRAY(const float16, dx), ARRAY(float16, dplaces),
                                    const int sequences)
{
    const int position = get_global_id(0);
    float16 sum[W];
    for (int c = 0; c < W; ++c)
        sum[c] = 0.0f;
    for (int t = 0; t < sequences; ++t) {
        const int row = AT(offsets)[t] + position;
        if (row < AT(offsets)[t + 1])
            for (int c = 0; c < W; ++c)
                sum[c] += AT(dx)[row * W + c];
    }
    for (int c = 0; c < W; ++c)
        AT(dplaces)[position * W + c] = sum[c];
}

/* ---- layer normalisation ----------------------------------------------------------------------------------------- */

/* y = (x - mean) scale gain + bias; statistics [rows,2] = mean, scale. With `next`: next = x + next_bias, to which a
 * product is added later. */
__kernel void norm(ARRAY(const float16, x), ARRAY(const float16, gain), ARRAY(const float16, bias), ARRAY(float16, y),
                   ARRAY(float2, statistics), ARRAY(const float16, next_bias), ARRAY(float16, next), const int has_next)
{
    const int row = get_global_id(0);
    __global const float16 *const in = AT(x) + row * W;
    float16 total = 0.0f, squares = 0.0f;
    for (int c = 0; c < W; ++c)
        total += in[c];
    const float mean = sum_of(total) / (16 * W);
    for (int c = 0; c < W; ++c)
        squares += (in[c] - mean) * (in[c] - mean);
    const float scale = 1.0f / sqrt(sum_of(squares) / (16 * W) + 1e-5f);
    for (int c = 0; c < W; ++c) {
        AT(y)[row * W + c] = (in[c] - mean) * scale * AT(gain)[c] + AT(bias)[c];
        if (has_next)
            AT(next)[row * W + c] = in[c] + AT(next_bias)[c];
    }
    AT(statistics)[row] = (float2)(mean, scale);
}

/* With z = (x - mean) scale and h = dy gain: dx = scale (h - mean(h) - z mean(h z)). With `adds`, what is in dx, the
 * gradient of x + next_bias, is added. Sums, of a block: dgain = dy z, dbias = dy, dnext_bias = what was in dx. */
__kernel void norm_backward(ARRAY(const float16, dy), ARRAY(const float16, x), ARRAY(const float2, statistics),
                            ARRAY(const float16, gain), ARRAY(float16, dx), ARRAY(float16, dgain),
                            ARRAY(float16, dbias), ARRAY(float16, dnext_bias), const int columns, const int adds)
{
    const int block = get_global_id(0);
    float16 gains[W], biases[W], nexts[W];
    for (int c = 0; c < W; ++c)
        gains[c] = biases[c] = nexts[c] = 0.0f;
    for (int row = block * BLOCK; row < (block + 1) * BLOCK; ++row) {
        const float2 with = AT(statistics)[row];
        float16 sum_h = 0.0f, sum_hz = 0.0f;
        for (int c = 0; c < W; ++c) {
            const float16 g = AT(dy)[row * W + c], z = (AT(x)[row * W + c] - with.x) * with.y;
            const float16 h = g * AT(gain)[c];
            sum_h += h;
            sum_hz += h * z;
            gains[c] += g * z;
            biases[c] += g;
        }
        const float mean_h = sum_of(sum_h) / (16 * W), mean_hz = sum_of(sum_hz) / (16 * W);
        for (int c = 0; c < W; ++c) {
            const float16 z = (AT(x)[row * W + c] - with.x) * with.y;
            float16 d = with.y * (AT(dy)[row * W + c] * AT(gain)[c] - mean_h - z * mean_hz);
            if (adds) {
                nexts[c] += AT(dx)[row * W + c];
                d += AT(dx)[row * W + c];
            }
            AT(dx)[row * W + c] = d;
        }
    }
    for (int c = 0; c < W; ++c) {
        AT(dgain)[block * columns + c] = gains[c];
        AT(dbias)[block * columns + c] = biases[c];
        if (adds)
            AT(dnext_bias)[block * columns + c] = nexts[c];
    }
}

/* ---- feed-forward ------------------------------------------------------------------------------------------------ */

/* gelu(x) = x s, s = 1 / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3): the form with tanh */
float16 gelu_share(float16 x)
{
    return 1.0f / (1.0f + exp(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

/* a [rows,U] = gelu(h + bias) */
__kernel void gelu(ARRAY(const float16, h), ARRAY(const float16, bias), ARRAY(float16, a))
{
    const int row = get_global_id(0);
    for (int c = 0; c < U; ++c) {
        const float16 x = AT(h)[row * U + c] + AT(bias)[c];
        AT(a)[row * U + c] = x * gelu_share(x);
    }
}

/* dh = da gelu'(h + bias), in the place of da; dbias = dh, of a block */
__kernel void gelu_backward(ARRAY(const float16, h), ARRAY(const float16, bias), ARRAY(float16, da),
                            ARRAY(float16, dbias), const int columns)
{
    const int block = get_global_id(0);
    __global float16 *const sums = AT(dbias) + block * columns;
    for (int row = block * BLOCK; row < (block + 1) * BLOCK; ++row)
        for (int c = 0; c < U; ++c) {
            const float16 x = AT(h)[row * U + c] + AT(bias)[c], s = gelu_share(x);
            const float16 slope = s + x * s * (1.0f - s) * 1.5957691216f * (1.0f + 0.134145f * x * x);
            const float16 d = AT(da)[row * U + c] * slope;
            AT(da)[row * U + c] = d;
            sums[c] = row == block * BLOCK ? d : sums[c] + d;
        }
}

/* ---- sums, projections ------------------------------------------------------------------------------------------- */

/* sums [columns] = the blocks' rows of `partial`, added up */
__kernel void add_partial(ARRAY(const float16, partial), ARRAY(float16, sums), const int blocks, const int columns)
{
    const int c = get_global_id(0);
    float16 sum = 0.0f;
    for (int block = 0; block < blocks; ++block)
        sum += AT(partial)[block * columns + c];
    AT(sums)[c] = sum;
}

/* x [rows,columns] += bias */
__kernel void add_bias(ARRAY(float16, x), ARRAY(const float16, bias), const int columns)
{
    const int row = get_global_id(0);
    for (int c = 0; c < columns; ++c)
        AT(x)[row * columns + c] += AT(bias)[c];
}

/* ---- pooling, classes; a work-item is a sequence ----------------------------------------------------------------- */

/* pooled [sequences,W] = mean of the sequence's rows of y, of the first `most` of them */
__kernel void pool(ARRAY(const int, offsets), ARRAY(const float16, y), ARRAY(float16, pooled), const int most)
{
    const int t = get_global_id(0), first = AT(offsets)[t], end = min(AT(offsets)[t + 1], first + most);
    float16 sum[W];
    for (int c = 0; c < W; ++c)
        sum[c] = 0.0f;
    for (int row = first; row < end; ++row)
        for (int c = 0; c < W; ++c)
            sum[c] += AT(y)[row * W + c];
    for (int c = 0; c < W; ++c)
        AT(pooled)[t * W + c] = sum[c] / (float)max(end - first, 1);
}

/* With l = pooled weight^T + bias: results [sequences,2] = cross-entropy of softmax(l), 1 if the answer has the largest
 * l; dlogits [sequences,16] = (softmax(l) - one-hot(answer)) share. All 0 for an answer of -1. */
__kernel void classify(ARRAY(const float16, pooled), ARRAY(const float16, weight), ARRAY(const float16, bias),
                       ARRAY(const int, answers), ARRAY(float2, results), ARRAY(float, dlogits), const float share)
{
    __global const float *const biases = (__global const float *)AT(bias);
    const int t = get_global_id(0), answer = AT(answers)[t];
    float logit[CLASSES], largest = -INFINITY, total = 0.0f;
    int best = 0;
    for (int k = 0; k < CLASSES; ++k) {
        float16 sum = 0.0f;
        for (int c = 0; c < W; ++c)
            sum += AT(pooled)[t * W + c] * AT(weight)[k * W + c];
        logit[k] = sum_of(sum) + biases[k];
        if (logit[k] > largest) {
            largest = logit[k];
            best = k;
        }
    }
    for (int k = 0; k < CLASSES; ++k)
        total += exp(logit[k] - largest);
    float loss = 0.0f;
    for (int k = 0; k < CLASSES; ++k) {
        const float probability = exp(logit[k] - largest) / total;
        AT(dlogits)[16 * t + k] = answer < 0 ? 0.0f : (probability - (k == answer ? 1.0f : 0.0f)) * share;
        if (k == answer)
            loss = log(total) - (logit[k] - largest);
    }
    AT(results)[t] = (float2)(loss, best == answer ? 1.0f : 0.0f);
}

/* dweight[k] = sum of dlogits[t,k] pooled[t], dbias[k] = sum of dlogits[t,k]; a work-item is a class */
__kernel void classify_backward(ARRAY(const float16, pooled), ARRAY(const float, dlogits), ARRAY(float16, dweight),
                                ARRAY(float16, dbias), const int sequences)
{
    const int k = get_global_id(0);
    float total = 0.0f;
    float16 sum[W];
    for (int c = 0; c < W; ++c)
        sum[c] = 0.0f;
    for (int t = 0; t < sequences; ++t) {
        const float d = AT(dlogits)[16 * t + k];
        total += d;
        for (int c = 0; c < W; ++c)
            sum[c] += d * AT(pooled)[t * W + c];
    }
    for (int c = 0; c < W; ++c)
        AT(dweight)[k * W + c] = sum[c];
    ((__global float *)AT(dbias))[k] = total;
}

/* dy = the gradient of that mean, in each of its rows; 0 in the others */
__kernel void pool_backward(ARRAY(const int, offsets), ARRAY(const float16, weight), ARRAY(const float, dlogits),
                            ARRAY(float16, dy), const int most)
{
    const int t = get_global_id(0), first = AT(offsets)[t], end = AT(offsets)[t + 1], pooled = min(end, first + most);
    for (int c = 0; c < W; ++c) {
        float16 sum = 0.0f;
        for (int k = 0; k < CLASSES; ++k)
            sum += AT(dlogits)[16 * t + k] * AT(weight)[k * W + c];
        sum /= (float)max(pooled - first, 1);
        for (int row = first; row < end; ++row)
            AT(dy)[row * W + c] = row < pooled ? sum : 0.0f;
    }
}

/* ---- optimiser --------------------------------------------------------------------------------------------------- */

/* AdamW over all parameters. Weights decay up to vector `decays`; from vector `floored` on they stay at least at
 * `least` (priors and deviations may not be negative). */
__kernel void adamw(ARRAY(float16, values), ARRAY(const float16, gradients), ARRAY(float16, mean),
                    ARRAY(float16, square), const int decays, const int floored, const float rate, const float decay,
                    const float mean_scale, const float square_scale, const float least)
{
    const int i = get_global_id(0);
    const float16 g = AT(gradients)[i];
    const float16 m = AT(mean)[i] + 0.1f * (g - AT(mean)[i]);
    const float16 s = AT(square)[i] + 0.01f * (g * g - AT(square)[i]);
    const float16 kept = AT(values)[i] * (i < decays ? 1.0f - rate * decay : 1.0f);
    const float16 x = kept - rate * m * mean_scale / (sqrt(s * square_scale) + 1e-8f);
    AT(mean)[i] = m;
    AT(square)[i] = s;
    AT(values)[i] = i < floored ? x : max(x, least);
}
