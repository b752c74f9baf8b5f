/* SPDX-License-Identifier: Apache-2.0 */
/* New keys and values in their slots, against a loop over tokens. All other bytes of the pools stay as they are. */
#include "harness/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the loop --------------------------------------------------------------------------------------------------- */

/* Element number `flat` of the token, head and component that begin at `row`, rotated by the token's position. */
static double rotated(const th_problem *problem, const double *row, int64_t element, double position)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const int64_t pairs = d->append_rotary_size / 2;
    if (d->append_rotary == CLMGK_ROTARY_NONE || element >= 2 * pairs)
        return row[element];
    const bool halves = d->append_rotary == CLMGK_ROTARY_HALVES;
    const int64_t c = halves ? element % pairs : element / 2;
    const bool second = halves ? element >= pairs : element % 2 == 1;
    const double angle = position * pow(d->append_rotary_base, -2.0 * (double)c / (double)d->append_rotary_size);
    const double x = row[halves ? c : 2 * c], y = row[halves ? c + pairs : 2 * c + 1];
    return second ? x * sin(angle) + y * cos(angle) : x * cos(angle) - y * sin(angle);
}

/* The place in a pool of an element of a token's rows. */
static size_t place_in(const th_array *pool, int64_t slot, int64_t rows, int64_t head, int64_t component)
{
    const int64_t *const shape = pool->shape;
    const int64_t row = ((slot / rows * shape[1] + head) * shape[2] + component) * shape[3] + slot % rows;
    return (size_t)(row * shape[4]);
}

/* Writes the tokens into the values of K or V. */
static void append(th_problem *problem, th_name to, th_name from)
{
    const clmgk_attention_desc *const d = &problem->desc;
    th_array *const pool = &problem->array[to];
    const th_array *const tokens = &problem->array[from];
    const double *row = tokens->values;
    for (int64_t t = 0; t < tokens->shape[0]; t++)
        for (int64_t h = 0; h < tokens->shape[1]; h++)
            for (int64_t r = 0; r < tokens->shape[2]; r++, row += tokens->shape[4]) {
                const int64_t slot = (int64_t)problem->array[TH_APPEND_SLOTS].values[t];
                if (slot < 0 || slot >= pool->shape[0] * pool->shape[3])
                    continue;
                const double position =
                    d->append_rotary != CLMGK_ROTARY_NONE ? problem->array[TH_APPEND_POSITIONS].values[t] : 0.0;
                double *const out = pool->values + place_in(pool, slot, pool->shape[3], h, r);
                for (int64_t e = 0; e < tokens->shape[4]; e++)
                    out[e] = to == TH_K ? rotated(problem, row, e, position) : row[e];
            }
}

/* Compares a pool with the loop's values: rounded like these, and after a rotation within its error. Elements of other
 * slots have the bits of `before`. */
static void expect_pool(const th_problem *problem, th_name name, const unsigned char *bytes,
                        const unsigned char *before)
{
    const th_array *const pool = &problem->array[name];
    th_array got = *pool, rounded = *pool;
    const bool exact = problem->desc.append_rotary == CLMGK_ROTARY_NONE || name == TH_V;
    const double unit = pool->dtype == CLMGK_DTYPE_F32 ? 0x1p-20 : pool->dtype == CLMGK_DTYPE_F16 ? 0x1p-10 : 0x1p-7;
    unsigned char *const expected = malloc((size_t)(th_place(pool, pool->count - 1) + 1) * pool->element);
    got.values = calloc(pool->count, sizeof(double));
    rounded.values = calloc(pool->count, sizeof(double));
    assert_true(expected && got.values && rounded.values);
    for (size_t n = 0; n < pool->count; n++) {
        const size_t at = th_place(pool, n) * pool->element;
        th_get(&got, bytes, n);
        th_put(pool, expected, n);
        th_get(&rounded, expected, n);
        const bool untouched = memcmp(expected + at, before + at, pool->element) == 0;
        const double error = fabs(got.values[n] - rounded.values[n]);
        if (!(error <= (exact || untouched ? 0.0 : unit * (1.0 + fabs(rounded.values[n])))))
            fail_msg("array %d, element %zu: %g, expected %g", (int)name, n, got.values[n], rounded.values[n]);
    }
    free(expected);
    free(got.values);
    free(rounded.values);
}

/* ---- quantised rows --------------------------------------------------------------------------------------------- */

static void put_half(unsigned char *at, float value)
{
    const double x = (double)value;
    clmgk_ref_store(CLMGK_DTYPE_F16, &x, 1, at);
}

/* ggml's loops over the numbers of a block, in floats. */
static void quantise_block(clmgk_dtype dtype, const float *x, unsigned char *at)
{
    const bool eight = dtype == CLMGK_DTYPE_Q8_0;
    float most = 0.0F;
    for (int i = 0; i < 32; i++)
        if (fabsf(x[i]) > fabsf(most))
            most = x[i];
    const float unit = eight ? fabsf(most) / 127.0F : most / -8.0F, inverse = unit != 0.0F ? 1.0F / unit : 0.0F;
    put_half(at, unit);
    for (int i = 0; i < 32; i++) {
        const volatile float product = x[i] * inverse; /* not fused with the sum */
        if (eight) {
            at[2 + i] = (unsigned char)(int8_t)roundf(product);
        } else {
            const int8_t whole = (int8_t)(product + 8.5F);
            const unsigned char four = (unsigned char)(whole < 15 ? whole : 15);
            at[2 + i % 16] = (unsigned char)(i < 16 ? four : at[2 + i % 16] | four << 4);
        }
    }
}

/* Numbers in a float's type, or as they are; beyond the largest the largest. */
static void put_float(clmgk_dtype dtype, float x, unsigned char *at)
{
    const double most = clmgk_dtype_get_info(dtype).largest, value = (double)x;
    const double clamped = value > most ? most : value < -most ? -most : value;
    clmgk_ref_store(dtype, &clamped, 1, at);
}

/* With a scale it is that of the row. */
static void quantise_integers(const float *x, int64_t size, unsigned char *at, float *scale)
{
    float most = 0.0F;
    for (int64_t e = 0; e < size; e++)
        most = fmaxf(most, fabsf(x[e]));
    const float unit = scale ? most / 127.0F : 1.0F, inverse = unit != 0.0F ? 1.0F / unit : 0.0F;
    for (int64_t e = 0; e < size; e++)
        at[e] = (unsigned char)(int8_t)fmaxf(fminf(roundf(x[e] * inverse), 127.0F), -128.0F);
    if (scale)
        *scale = unit;
}

static void quantise_row(clmgk_dtype dtype, const float *x, int64_t size, unsigned char *at, float *scale)
{
    const clmgk_dtype_info info = clmgk_dtype_get_info(dtype);
    if (dtype == CLMGK_DTYPE_INT8) {
        quantise_integers(x, size, at, scale);
        return;
    }
    for (int64_t e = 0; e < size; e += info.block)
        if (info.block > 1)
            quantise_block(dtype, x + e, at + e / info.block * (int64_t)info.bytes);
        else
            put_float(dtype, scale ? x[e] / *scale : x[e], at + e);
}

/* The room between numbers of a row whose largest is `most`, near x. Integers without scales: `most` 0. */
static double step_of(clmgk_dtype dtype, double x, double most, double scale)
{
    const clmgk_dtype_info info = clmgk_dtype_get_info(dtype);
    if (dtype == CLMGK_DTYPE_INT8 && most == 0.0)
        return 1.0;
    if (dtype == CLMGK_DTYPE_INT8 || info.block > 1)
        return dtype == CLMGK_DTYPE_Q4_0 ? most / 4.0 : most / 110.0; /* q4_0 has -8, but not 8 */
    const double normal = info.least_normal * scale;
    return ldexp(fabs(x) > normal ? fabs(x) : normal, -info.significand_bits);
}

typedef struct quantised_pool {
    const th_array *pool, *scales; /* scales NULL: none */
    unsigned char *got, *expected; /* the memory of the pool; `expected` begins as it was before the call */
    unsigned char *got_scales, *expected_scales;
} quantised_pool;

/* Of rotated rows, whose numbers have errors, bytes may differ. */
static void expect_close(const quantised_pool *q, const double *x, size_t place, size_t scale_place)
{
    const size_t size = (size_t)q->pool->shape[4];
    double numbers[256], scale = 1.0, most = 0.0;
    assert_true(size <= TH_COUNT(numbers));
    clmgk_ref_load(q->pool->dtype, q->got + place, size, numbers);
    if (q->scales) {
        clmgk_ref_load(CLMGK_DTYPE_F32, q->got_scales + scale_place, 1, &scale);
        memcpy(q->expected_scales + scale_place, q->got_scales + scale_place, sizeof(float));
    }
    const clmgk_dtype dtype = q->pool->dtype;
    const bool fits = q->pool->block > 1 || (dtype == CLMGK_DTYPE_INT8 && q->scales); /* whatever the numbers are */
    const double limit = fits ? (double)INFINITY : clmgk_dtype_get_info(dtype).largest * scale;
    for (size_t e = 0; fits && e < size; e++)
        most = fabs(x[e]) > most ? fabs(x[e]) : most;
    for (size_t e = 0; e < size; e++) {
        const double near = fmax(fmin(x[e], limit), dtype == CLMGK_DTYPE_INT8 ? -limit - scale : -limit);
        const double step = step_of(dtype, near, most, scale);
        if (!(fabs(numbers[e] * scale - near) <= 0.51 * step + 1e-5 * (1.0 + fabs(near))))
            fail_msg("number %zu: %g, expected %g", e, numbers[e] * scale, near);
    }
    memcpy(q->expected + place, q->got + place, size / q->pool->block * q->pool->element);
}

static void expect_row(const quantised_pool *q, const double *x, bool exact, size_t row)
{
    const size_t size = (size_t)q->pool->shape[4];
    const size_t place = th_place(q->pool, row * size) * q->pool->element;
    const size_t scale_place = q->scales ? th_place(q->scales, row) * sizeof(float) : 0;
    if (!exact) {
        expect_close(q, x, place, scale_place);
        return;
    }
    float row_of_floats[256], scale = 1.0F;
    assert_true(size <= TH_COUNT(row_of_floats));
    for (size_t e = 0; e < size; e++)
        row_of_floats[e] = (float)x[e];
    if (q->scales)
        memcpy(&scale, q->expected_scales + scale_place, sizeof(scale));
    quantise_row(q->pool->dtype, row_of_floats, (int64_t)size, q->expected + place, q->scales ? &scale : NULL);
    if (q->scales)
        memcpy(q->expected_scales + scale_place, &scale, sizeof(scale));
}

/* Each pool has a buffer, and so have its scales. */
static void expect_quantised(const th_session *session, const th_problem *problem, const th_device *device, th_name to,
                             th_name from, th_name scales)
{
    const clmgk_attention_desc *const d = &problem->desc;
    const bool exact = d->append_rotary == CLMGK_ROTARY_NONE || to == TH_V;
    const th_device_buffer *const pool = &device->buffer[to], *const scale = &device->buffer[scales];
    const th_array *const tokens = &problem->array[from];
    quantised_pool q = {.pool = &problem->array[to], .got = th_read_back(session, pool)};
    q.expected = malloc(pool->bytes);
    memcpy(q.expected, pool->image, pool->bytes);
    if (problem->array[scales].used) {
        q.scales = &problem->array[scales];
        q.got_scales = th_read_back(session, scale);
        q.expected_scales = malloc(scale->bytes);
        memcpy(q.expected_scales, scale->image, scale->bytes);
    }
    const int64_t size = tokens->shape[4], rows = tokens->shape[1] * tokens->shape[2];
    for (int64_t n = 0; n < tokens->shape[0] * rows; n++) {
        const int64_t t = n / rows, slot = (int64_t)problem->array[TH_APPEND_SLOTS].values[t];
        double x[256];
        if (slot < 0 || slot >= q.pool->shape[0] * q.pool->shape[3])
            continue;
        for (int64_t e = 0; e < size; e++)
            x[e] = exact
                       ? tokens->values[n * size + e]
                       : rotated(problem, tokens->values + n * size, e, problem->array[TH_APPEND_POSITIONS].values[t]);
        const int64_t h = n % rows / tokens->shape[2], r = n % rows % tokens->shape[2];
        expect_row(&q, x, exact, place_in(q.pool, slot, q.pool->shape[3], h, r) / (size_t)size);
    }
    assert_memory_equal(q.got, q.expected, pool->bytes);
    if (q.scales)
        assert_memory_equal(q.got_scales, q.expected_scales, scale->bytes);
    free(q.got);
    free(q.expected);
    free(q.got_scales);
    free(q.expected_scales);
}

static bool is_quantised(const th_problem *problem, th_name name)
{
    return problem->array[name].dtype > CLMGK_DTYPE_BF16;
}

/* `sizes`: of the call; NULL: the plan's. */
static void expect_appended_by(th_session *session, th_problem *problem, clmgk_plan *plan,
                               const clmgk_call_sizes *sizes)
{
    TH_DEVICE device = th_upload_for(session, problem, TH_APPEND, 0);
    device.args.sizes = sizes;
    th_enqueue(plan, session->queue, &device, 0, NULL, NULL);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    if (is_quantised(problem, TH_K))
        expect_quantised(session, problem, &device, TH_K, TH_APPEND_K, TH_SCALE_K);
    else
        append(problem, TH_K, TH_APPEND_K);
    if (problem->array[TH_APPEND_V].used && is_quantised(problem, TH_V))
        expect_quantised(session, problem, &device, TH_V, TH_APPEND_V, TH_SCALE_V);
    else if (problem->array[TH_APPEND_V].used)
        append(problem, TH_V, TH_APPEND_V);
    for (size_t home = 0; home < TH_ARRAYS; home++) {
        th_device_buffer *const buffer = &device.buffer[home];
        const bool scales = home == TH_SCALE_K || home == TH_SCALE_V;
        if (buffer->bytes == 0 || (scales || is_quantised(problem, (th_name)home)))
            continue;
        unsigned char *const bytes = th_read_back(session, buffer);
        for (th_name name = TH_K; name <= TH_V; name++)
            if (problem->array[name].used && problem->array[name].home == home) {
                expect_pool(problem, name, bytes, buffer->image);
                th_mark_output(&problem->array[name], buffer);
            }
        th_message message;
        if (!th_has_canaries(buffer, bytes, home, false, &message))
            fail_msg("%s", message.text);
        free(bytes);
    }
}

static void expect_appended(th_session *session, th_problem *problem, const clmgk_plan_options *options)
{
    clmgk_plan *const plan = th_plan_of(session, &problem->desc, options);
    expect_appended_by(session, problem, plan, NULL);
    clmgk_plan_release(plan);
}

/* ---- problems --------------------------------------------------------------------------------------------------- */

static clmgk_attention_desc desc_of(clmgk_variant variant, int64_t page_size, int64_t tokens)
{
    clmgk_attention_desc desc = th_small_desc(variant, 3, 40);
    if (variant == CLMGK_VARIANT_SOFTMAX) { /* rows of several vectors, and a part of one */
        desc.head_size = 40;
        desc.value_size = 33;
    }
    desc.page_size = page_size;
    desc.pages = page_size > 0 ? 9 : 0;
    desc.table_pages = page_size > 0 ? (40 + page_size - 1) / page_size : 0;
    desc.use_lengths = page_size == 0;
    desc.batch = 2;
    desc.append = tokens;
    return desc;
}

/* Different slots in any order; every fifth token has none: a negative one, one beyond the pool, or the largest. */
static void shuffle_slots(th_problem *problem, uint64_t seed)
{
    th_array *const slots = &problem->array[TH_APPEND_SLOTS];
    const th_array *const k = &problem->array[TH_K];
    const int64_t all = k->shape[0] * k->shape[3];
    uint64_t state = seed;
    bool *const used = calloc((size_t)all, sizeof(*used));
    assert_non_null(used);
    for (size_t t = 0; t < slots->count; t++) {
        const double none[] = {-1.0, (double)all, 2147483647.0, -2147483648.0};
        int64_t slot = th_pick(&state, 0, all - 1);
        while (used[slot])
            slot = (slot + 1) % all;
        used[slot] = t % 5 != 4;
        slots->values[t] = t % 5 == 4 ? none[t / 5 % 4] : (double)slot;
    }
    free(used);
}

static void expect_tokens(th_session *session, const clmgk_attention_desc *desc, uint64_t seed)
{
    const clmgk_plan_options options = th_options(session, 0);
    TH_PROBLEM problem = th_problem_make(desc, seed);
    shuffle_slots(&problem, seed);
    expect_appended(session, &problem, &options);
}

/* ---- sizes of a call -------------------------------------------------------------------------------------------- */

/* Calls of one plan, of any tokens, caches and layouts. */
static void expect_calls(th_session *session, const clmgk_attention_desc *limits)
{
    static const int64_t tokens[] = {1, 7, 60, 33};
    clmgk_plan *const plan = th_plan(session, limits, session->engine[0], NULL);
    for (size_t n = 0; n < TH_COUNT(tokens); n++) {
        clmgk_attention_desc desc = *limits;
        clmgk_call_sizes sizes = CLMGK_CALL_SIZES_INIT;
        desc.sizes_at_call = 0;
        desc.append = tokens[n];
        if (desc.page_size == 0) { /* room for the tokens in one cache or two */
            desc.batch = 1 + (int64_t)n % 2;
            desc.length_k = n == 1 ? 9 : limits->length_k;
        }
        if (n == 3)
            desc.append_k = desc.append_v = (clmgk_layout){.strided = 1, .head = 64, .token = 2048};
        TH_PROBLEM problem = th_problem_make(&desc, n);
        shuffle_slots(&problem, n);
        sizes.batch = problem.desc.batch;
        sizes.length = problem.desc.length;
        sizes.length_k = problem.desc.length_k;
        sizes.table_pages = problem.desc.table_pages;
        sizes.append = problem.desc.append;
        sizes.append_k = problem.desc.append_k;
        sizes.append_v = problem.desc.append_v;
        expect_appended_by(session, &problem, plan, n == 2 && desc.page_size > 0 ? NULL : &sizes);
    }
    clmgk_plan_release(plan);
}

TH_TEST(calls_of_any_sizes)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 16, 60);
    desc.sizes_at_call = 1;
    desc.append_rotary = CLMGK_ROTARY_HALVES;
    expect_calls(session, &desc);
    desc = desc_of(CLMGK_VARIANT_SOFTMAX, 0, 60);
    desc.length_k = 70;
    desc.sizes_at_call = 1;
    desc.head_size = desc.value_size = 32;
    desc.dtype_k = CLMGK_STORAGE_INT8;
    desc.use_scale_k = 1;
    desc.dtype_v = CLMGK_STORAGE_Q8_0;
    expect_calls(session, &desc);
}

/* Pages and caches, few tokens and many, in types of all kinds and with each form of rotary positions. */
TH_TEST(slots_of_pages)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 16, 37);
    expect_tokens(session, &desc, 1);
    desc.page_size = 1, desc.pages = 80, desc.table_pages = 40, desc.append = 1;
    expect_tokens(session, &desc, 2);
    desc.page_size = 3, desc.append = 200;
    expect_tokens(session, &desc, 3);
}

TH_TEST(rotary_positions_and_types)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 30);
    desc.dtype_k = CLMGK_STORAGE_F16;
    desc.dtype_v = CLMGK_STORAGE_BF16;
    desc.append_rotary = CLMGK_ROTARY_HALVES;
    expect_tokens(session, &desc, 1);
    desc.append_rotary = CLMGK_ROTARY_PAIRS;
    desc.append_rotary_size = 10;
    desc.append_rotary_base = 500.0;
    expect_tokens(session, &desc, 2);
}

TH_TEST(components_of_keys)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_MGK, 4, 20);
    desc.append_rotary = CLMGK_ROTARY_HALVES;
    desc.append_rotary_size = 4;
    expect_tokens(session, &desc, 1);
}

TH_FULL_TEST(mixed_heads)
{
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_HARD_FISH, 4, 20);
    desc.append_rotary = CLMGK_ROTARY_PAIRS;
    desc.append_rotary_size = 4;
    expect_tokens(session, &desc, 2);
}

/* K and V tokens first in one pool [pages,2,page,G,D], and new tokens in a packed QKV; caches without pages; keys
 * alone. */
TH_TEST(layouts)
{
    enum { PAGE = 16, HEADS = 2, SIZE = 48, TOKEN = HEADS * SIZE, QKV = 3 * TOKEN };
    clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, PAGE, 30);
    desc.heads = desc.kv_heads = HEADS;
    desc.head_size = desc.value_size = SIZE;
    desc.k = desc.v = (clmgk_layout){.strided = 1, .batch = (int64_t)2 * PAGE * TOKEN, .head = SIZE, .token = TOKEN};
    desc.append_k = desc.append_v = (clmgk_layout){.strided = 1, .head = SIZE, .token = QKV};
    TH_PROBLEM packed = th_problem_make(&desc, 3);
    packed.array[TH_V].home = TH_K;
    packed.array[TH_V].offset = packed.array[TH_K].offset + (uint64_t)(PAGE * TOKEN);
    packed.array[TH_APPEND_V].home = TH_APPEND_K;
    packed.array[TH_APPEND_V].offset = packed.array[TH_APPEND_K].offset + (uint64_t)TOKEN;
    shuffle_slots(&packed, 3);
    const clmgk_plan_options options = th_options(session, 0);
    expect_appended(session, &packed, &options);
    desc = desc_of(CLMGK_VARIANT_SOFTMAX, 0, 21);
    TH_PROBLEM caches = th_problem_make(&desc, 4);
    shuffle_slots(&caches, 4);
    expect_appended(session, &caches, &options);
    TH_PROBLEM keys = th_problem_make(&desc, 5);
    shuffle_slots(&keys, 5);
    keys.array[TH_V].used = keys.array[TH_APPEND_V].used = false;
    expect_appended(session, &keys, &options);
}

/* Scales that are powers of two, by which a division is exact. */
static void make_scales(th_problem *problem, th_name name)
{
    th_array *const scales = &problem->array[name];
    for (size_t n = 0; scales->used && n < scales->count; n++)
        scales->values[n] = ldexp(1.0, (int)(n % 3) - 1);
}

/* Rows of zeros, of numbers beyond the largest of 8 bits, with the largest twice, and in the middle of two integers. */
static void make_hard_rows(th_problem *problem, th_name name)
{
    th_array *const tokens = &problem->array[name];
    const size_t size = (size_t)tokens->shape[4], rows = tokens->count / size;
    for (size_t row = 0; row < rows; row++) {
        double *const x = tokens->values + row * size;
        for (size_t e = 0; e < size; e++) {
            const double values[] = {x[e], 0.0, x[e] * 1e4, x[e] * 1e-3, (double)e - 64.5, x[e]};
            x[e] = values[row % 6];
        }
        if (row % 6 == 5 && size > 10)
            x[10] = -(x[7] = row % 12 == 5 ? 9.0 : -9.0);
    }
}

static clmgk_attention_desc quantised_desc(clmgk_variant variant, clmgk_storage k, clmgk_storage v)
{
    clmgk_attention_desc desc = desc_of(variant, 8, 60);
    desc.head_size = 96;
    desc.value_size = 64;
    desc.dtype_k = k;
    desc.dtype_v = v;
    desc.use_scale_k = k >= CLMGK_STORAGE_E4M3 && k <= CLMGK_STORAGE_INT8;
    desc.use_scale_v = v == CLMGK_STORAGE_E5M2 || v == CLMGK_STORAGE_INT8;
    return desc;
}

static void expect_quantised_tokens(th_session *session, const clmgk_attention_desc *desc, size_t engine, uint64_t seed)
{
    const clmgk_plan_options options = th_options(session, engine);
    TH_PROBLEM problem = th_problem_make(desc, seed);
    shuffle_slots(&problem, seed);
    make_scales(&problem, TH_SCALE_K);
    make_scales(&problem, TH_SCALE_V);
    if (is_quantised(&problem, TH_K))
        make_hard_rows(&problem, TH_APPEND_K);
    if (is_quantised(&problem, TH_V))
        make_hard_rows(&problem, TH_APPEND_V);
    expect_appended(session, &problem, &options);
}

/* Floats with a scale for each head, integers with a scale for each row, ggml's blocks: bit for bit. */
TH_TEST(quantised)
{
    clmgk_attention_desc desc = quantised_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_STORAGE_E4M3, CLMGK_STORAGE_INT8);
    desc.scale_k = (clmgk_layout){.strided = 1, .head = 1};
    expect_quantised_tokens(session, &desc, 0, 1);
    desc.head_size = 39; /* rows that end within a vector */
    desc.value_size = 33;
    expect_quantised_tokens(session, &desc, 0, 2);
    desc = quantised_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_STORAGE_Q8_0, CLMGK_STORAGE_Q4_0);
    expect_quantised_tokens(session, &desc, 0, 3);
}

/* Each pair of types of K and V once, on all engines, from tokens of all types, with and without rotary positions and
 * scales. */
TH_FULL_TEST(quantised_types)
{
    enum { PAIRS = 40 };
    for (size_t n = 0; n < PAIRS * session->engines; n++) {
        const size_t engine = n / PAIRS;
        const clmgk_storage k = (clmgk_storage)(CLMGK_STORAGE_F32 + n % 8);
        const clmgk_storage v = (clmgk_storage)(CLMGK_STORAGE_E4M3 + n % 5);
        clmgk_attention_desc desc = quantised_desc(n % 7 == 3 ? CLMGK_VARIANT_MGK : CLMGK_VARIANT_SOFTMAX, k, v);
        desc.dtype = th_dtypes[n % 3];
        desc.append_rotary = (clmgk_rotary)(n / 5 % 3);
        desc.append_rotary_size = n / 5 % 3 == 2 ? 10 : 0;
        if (n % 11 == 0)
            desc.use_scale_k = desc.use_scale_v = 0;
        clmgk_plan_options options = th_options(session, engine);
        clmgk_plan *const plan = th_try_plan(session, &desc, &options, NULL);
        assert_true(plan || options.engine == CLMGK_ENGINE_MATRIX); /* which lacks some mixtures of types */
        if (plan)
            expect_quantised_tokens(session, &desc, engine, n);
        clmgk_plan_release(plan);
    }
}

/* A number that is none makes all that share its scale none. */
TH_TEST(infinite_numbers)
{
    const clmgk_attention_desc desc = quantised_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_STORAGE_Q8_0, CLMGK_STORAGE_Q4_0);
    const clmgk_plan_options options = th_options(session, 0);
    const double none[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    for (size_t t = 0; t < problem.array[TH_APPEND_SLOTS].count; t++)
        problem.array[TH_APPEND_SLOTS].values[t] = (double)t;
    for (size_t block = 0; block < problem.array[TH_APPEND_K].count / 32; block += 2)
        problem.array[TH_APPEND_K].values[block * 32 + 5] = none[block / 2 % 3];
    clmgk_plan *const plan = th_plan_of(session, &desc, &options);
    TH_DEVICE device = th_upload_for(session, &problem, TH_APPEND, 0);
    th_enqueue(plan, session->queue, &device, 0, NULL, NULL);
    assert_int_equal(clFinish(session->queue), CL_SUCCESS);
    unsigned char *const bytes = th_read_back(session, &device.buffer[TH_K]);
    th_array *const k = &problem.array[TH_K];
    for (size_t block = 0; block < problem.array[TH_APPEND_K].count / 32; block++) {
        const size_t heads = (size_t)k->shape[1], t = block / 3 / heads, h = block / 3 % heads;
        const size_t at = place_in(k, (int64_t)t, k->shape[3], (int64_t)h, 0) + block % 3 * 32;
        th_get(k, bytes, at);
        for (size_t i = 0; i < 32; i++)
            assert_true(isnan(k->values[at + i]) == (block % 2 == 0));
    }
    free(bytes);
    clmgk_plan_release(plan);
}

/* All engines append alike, and all types of all three arrays. */
TH_FULL_TEST(types_on_engines)
{
    for (size_t n = 0; n < 27 * session->engines; n++) {
        const clmgk_plan_options options = th_options(session, n / 27);
        clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 8, 30);
        desc.dtype = th_dtypes[n % 3];
        desc.dtype_k = (clmgk_storage)(1 + th_dtypes[n / 3 % 3]);
        desc.dtype_v = (clmgk_storage)(1 + th_dtypes[n / 9 % 3]);
        desc.append_rotary = (clmgk_rotary)(n % 2);
        TH_PROBLEM problem = th_problem_make(&desc, n);
        shuffle_slots(&problem, n);
        clmgk_plan *const plan = th_try_plan(session, &desc, &options, NULL);
        assert_true(plan || options.engine == CLMGK_ENGINE_MATRIX); /* which lacks some mixtures of types */
        if (plan)
            expect_appended(session, &problem, &options);
        clmgk_plan_release(plan);
    }
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

TH_HOST_TEST(refused_fields)
{
    const clmgk_attention_desc good = desc_of(CLMGK_VARIANT_SOFTMAX, 16, 5);
    clmgk_attention_desc d = good;
    th_expect_ok(clmgk_attention_validate(&d, NULL, &th_error));
    d = good, d.append = -1, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "append", "-1");
    d = good, d.append = 0, d.append_rotary = CLMGK_ROTARY_PAIRS, d.head_size = 8;
    th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "append_rotary", "2");
    d = good, d.append_rotary = (clmgk_rotary)3, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "append_rotary", "3");
    d = good, d.append_rotary_size = 4, th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "append_rotary_size", "4");
    d = good, d.append_rotary = CLMGK_ROTARY_PAIRS, d.append_rotary_size = 3;
    th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "append_rotary_size", "3");
    d = good, d.append_rotary = CLMGK_ROTARY_PAIRS, d.append_rotary_size = 4, d.append_rotary_base = 0.5;
    th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "append_rotary_base", "0.5");
    d = good, d.pages = INT64_C(1) << 28, th_expect_refused(&d, CLMGK_ERROR_OVERFLOW, "append", "5");
    d = good, d.k = (clmgk_layout){.strided = 1}, th_expect_refused(&d, CLMGK_ERROR_INVALID_SHAPE, "k", "0");
    d.append = 0, th_expect_ok(clmgk_attention_validate(&d, NULL, &th_error)); /* an input may be a broadcast */
    d = th_small_desc(CLMGK_VARIANT_LINEAR, 5, 5), d.append = 4;
    th_expect_refused(&d, CLMGK_ERROR_INVALID_VALUE, "append", "4");
    d = quantised_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_STORAGE_INT8, CLMGK_STORAGE_Q4_0);
    d.scale_k = (clmgk_layout){.strided = 1, .head = 1}; /* scales that the kernel computes lie apart */
    th_expect_refused(&d, CLMGK_ERROR_INVALID_SHAPE, "scale_k", "0");
    d.append = 0, th_expect_ok(clmgk_attention_validate(&d, NULL, &th_error));
}

/* Scales of integers are written by the append alone, others never. */
TH_HOST_TEST(written_arrays)
{
    clmgk_attention_desc d = quantised_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_STORAGE_INT8, CLMGK_STORAGE_E5M2);
    th_expect_ok(clmgk_attention_validate(&d, &d, &th_error));
    assert_true(clmgk_array_is_output(&d, CLMGK_PASS_APPEND, CLMGK_ARRAY_K));
    assert_true(clmgk_array_is_output(&d, CLMGK_PASS_APPEND, CLMGK_ARRAY_SCALE_K));
    assert_false(clmgk_array_is_output(&d, CLMGK_PASS_APPEND, CLMGK_ARRAY_SCALE_V));
    assert_false(clmgk_array_is_output(&d, CLMGK_PASS_APPEND, CLMGK_ARRAY_APPEND_K));
    assert_false(clmgk_array_is_output(&d, CLMGK_PASS_FORWARD, CLMGK_ARRAY_SCALE_K));
    assert_true(clmgk_array_is_output(&d, CLMGK_PASS_FORWARD, CLMGK_ARRAY_O));
    assert_false(clmgk_array_is_output(&d, CLMGK_PASS_APPEND, CLMGK_ARRAYS));
    assert_false(clmgk_array_is_output(NULL, CLMGK_PASS_APPEND, CLMGK_ARRAY_K));
}

TH_TEST(refused_scales)
{
    const clmgk_attention_desc desc = quantised_desc(CLMGK_VARIANT_SOFTMAX, CLMGK_STORAGE_E4M3, CLMGK_STORAGE_INT8);
    const clmgk_plan_options options = th_options(session, 0);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    TH_DEVICE device = th_upload_for(session, &problem, TH_APPEND, 0);
    clmgk_plan *const plan = th_plan_of(session, &desc, &options);
    clmgk_attention_args args = device.args;
#define APPEND() clmgk_enqueue_append(plan, session->queue, &args, 0, NULL, NULL, &th_error)
    args.scale_k.memory = NULL;
    th_expect_error(APPEND(), CLMGK_ERROR_INVALID_BUFFER, "scale_k: NULL");
    args = device.args, args.scale_v.memory = NULL;
    th_expect_error(APPEND(), CLMGK_ERROR_INVALID_BUFFER, "scale_v: NULL");
    args = device.args, args.v.memory = args.append_v.memory = NULL;
    th_expect_error(APPEND(), CLMGK_ERROR_INVALID_BUFFER, "v: NULL");
    args = device.args, args.scale_v = args.scale_k; /* written, and read */
    th_expect_error(APPEND(), CLMGK_ERROR_INVALID_BUFFER, "scale_");
#undef APPEND
    clmgk_plan_release(plan);
    th_expect_untouched(session, &device);
}

TH_TEST(refused_calls)
{
    const clmgk_attention_desc desc = desc_of(CLMGK_VARIANT_SOFTMAX, 16, 37),
                               without = desc_of(CLMGK_VARIANT_SOFTMAX, 16, 0);
    const clmgk_plan_options options = th_options(session, 0);
    TH_PROBLEM problem = th_problem_make(&desc, 1);
    TH_DEVICE device = th_upload_for(session, &problem, TH_APPEND, 0);
    clmgk_plan *plan = th_plan_of(session, &desc, &options);
    const clmgk_attention_args good = device.args;
    clmgk_attention_args args = good;
#define ENQUEUE() clmgk_enqueue_append(plan, session->queue, &args, 0, NULL, NULL, &th_error)
    args.v.memory = NULL;
    th_expect_error(ENQUEUE(), CLMGK_ERROR_INVALID_BUFFER, "append_v");
    args = good, args.append_v.memory = NULL;
    th_expect_error(ENQUEUE(), CLMGK_ERROR_INVALID_BUFFER, "append_v: NULL");
    args = good, args.append_slots.memory = NULL;
    th_expect_error(ENQUEUE(), CLMGK_ERROR_INVALID_BUFFER, "append_slots");
    args = good, args.append_positions = good.append_slots;
    th_expect_error(ENQUEUE(), CLMGK_ERROR_INVALID_BUFFER, "append_positions");
    args = good, args.v = good.k;
    th_expect_error(ENQUEUE(), CLMGK_ERROR_INVALID_BUFFER, "v");
    clmgk_plan_release(plan);
    plan = th_plan_of(session, &without, &options);
    args = good;
    th_expect_error(ENQUEUE(), CLMGK_ERROR_INVALID_VALUE, "append");
    clmgk_plan_release(plan);
    th_expect_untouched(session, &device);
}
