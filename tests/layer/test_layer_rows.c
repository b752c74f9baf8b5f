/* SPDX-License-Identifier: Apache-2.0 */
/* The layer's row kernels, in their forms for CPUs and GPUs, against plain loops in double precision: awkward widths,
 * all options, offsets, memory in place, canaries around every array. */
#include "harness/harness.h"
#include "layer/rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPARE = 5, BEHIND = 2048, MOST_WIDTH = 1024 };

/* An array on the device: random elements, canaries around them, and the values expected after the run. */
typedef struct array {
    clmgk_dtype dtype;
    size_t count, offset;
    double *before, *expected;
    unsigned char *image;
    cl_mem memory;
    bool written; /* compared within a bound, else bit by bit */
} array;

/* Numbers of buffers in a call, as in the list. */
typedef struct bed {
    th_session *session;
    mgk_steps steps;
    mgk_device_facts facts;
    mgk_rows_list list;
    array arrays[MGK_CALL_BUFFERS];
    int place[MGK_CALL_BUFFERS]; /* whose memory a buffer is; -1: not given */
    uint64_t added, seed, state;
    double bound; /* of relative errors; 0: the storage's */
} bed;

static bed *bed_make(th_session *session, bool gpu, clmgk_dtype dtype, uint64_t seed)
{
    bed *const b = calloc(1, sizeof(*b));
    assert_non_null(b);
    b->session = session;
    b->facts = session->context->facts;
    if (gpu)
        b->facts.info.device_class = CLMGK_DEVICE_GPU;
    if (dtype == CLMGK_DTYPE_BF16) /* one of the types in vectors of 8 */
        b->facts.info.native_float_lanes = 8;
    b->list = (mgk_rows_list){&b->steps, &b->facts, dtype};
    b->state = b->seed = seed;
    for (size_t i = 0; i < MGK_CALL_BUFFERS; i++)
        b->place[i] = -1;
    mgk_steps_clear(&b->steps, NULL);
    return b;
}

static void bed_free(bed *b)
{
    mgk_steps_clear(&b->steps, NULL);
    for (size_t i = 0; i < MGK_CALL_BUFFERS; i++) {
        free(b->arrays[i].before);
        free(b->arrays[i].expected);
        free(b->arrays[i].image);
        if (b->arrays[i].memory)
            clReleaseMemObject(b->arrays[i].memory);
    }
    free(b);
}

static size_t bytes_of(const array *x)
{
    return (x->offset + x->count + BEHIND) * clmgk_ref_dtype_size(x->dtype);
}

/* Rounds an array's values to its storage type and writes them to the device. */
static void upload(const bed *b, array *x)
{
    const size_t size = clmgk_ref_dtype_size(x->dtype);
    cl_int code = CL_SUCCESS;
    clmgk_ref_store(x->dtype, x->before, x->count, x->image + x->offset * size);
    clmgk_ref_load(x->dtype, x->image + x->offset * size, x->count, x->before);
    memcpy(x->expected, x->before, x->count * sizeof(double));
    if (x->memory)
        clReleaseMemObject(x->memory);
    x->memory = clCreateBuffer(b->session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes_of(x), x->image, &code);
    assert_int_equal(code, CL_SUCCESS);
}

/* Gives the call an array of random numbers, around `centre`. */
static void give(bed *b, int number, clmgk_dtype dtype, int64_t count, double centre, double scale)
{
    array *const x = &b->arrays[number];
    *x = (array){.dtype = dtype, .count = (size_t)count, .offset = 1 + th_random(&b->state) % SPARE};
    x->before = calloc(x->count + 1, sizeof(double));
    x->expected = calloc(x->count + 1, sizeof(double));
    x->image = malloc(bytes_of(x));
    assert_true(x->before && x->expected && x->image);
    memset(x->image, 0xff, bytes_of(x));
    for (size_t i = 0; i < x->count; i++)
        x->before[i] = centre + scale * th_normal(&b->state);
    upload(b, x);
    b->place[number] = number;
}

/* Sets all elements of each row of IN to the row's first one, which becomes the mean in given statistics. */
static void level(bed *b, int64_t width)
{
    array *const x = &b->arrays[MGK_NORM_IN], *const statistics = &b->arrays[MGK_NORM_STATISTICS];
    for (size_t i = 0; i < x->count; i++)
        x->before[i] = x->before[i / (size_t)width * (size_t)width];
    upload(b, x);
    if (!statistics->memory)
        return;
    for (size_t i = 0; i < statistics->count; i += 2)
        statistics->before[i] = x->before[i / 2 * (size_t)width];
    upload(b, statistics);
}

static void give_numbers(bed *b, int number, const int32_t *values, int64_t count)
{
    array *const x = &b->arrays[number];
    cl_int code = CL_SUCCESS;
    give(b, number, CLMGK_DTYPE_F32, count, 0.0, 1.0);
    memcpy(x->image + x->offset * sizeof(float), values, (size_t)count * sizeof(float));
    clReleaseMemObject(x->memory);
    x->memory = clCreateBuffer(b->session->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes_of(x), x->image, &code);
    assert_int_equal(code, CL_SUCCESS);
}

static bool given(const bed *b, int number)
{
    return b->place[number] >= 0;
}

static const double *in(const bed *b, int number)
{
    return b->arrays[b->place[number]].before;
}

static double *expect(bed *b, int number)
{
    array *const x = &b->arrays[b->place[number]];
    x->written = true;
    return x->expected;
}

static double stored(const bed *b, double value)
{
    unsigned char bytes[sizeof(double)];
    clmgk_ref_store(b->list.dtype, &value, 1, bytes);
    clmgk_ref_load(b->list.dtype, bytes, 1, &value);
    return value;
}

static void compare(const bed *b, int number, const char *what)
{
    static const double bounds[] = {4e-6, 2e-3, 1.6e-2};
    const array *const x = &b->arrays[number];
    const size_t size = clmgk_ref_dtype_size(x->dtype), from = x->offset * size, end = from + x->count * size;
    unsigned char *const got = malloc(bytes_of(x));
    double *const values = calloc(x->count + 1, sizeof(double));
    const double bound = b->bound > 0.0 ? b->bound : bounds[x->dtype];
    double top = 0.0;
    assert_true(got && values);
    assert_int_equal(clEnqueueReadBuffer(b->session->queue, x->memory, CL_TRUE, 0, bytes_of(x), got, 0, NULL, NULL),
                     CL_SUCCESS);
    if (memcmp(got, x->image, from) != 0 || memcmp(got + end, x->image + end, bytes_of(x) - end) != 0)
        fail_msg("%s: buffer %d: written outside", what, number);
    if (!x->written && memcmp(got, x->image, bytes_of(x)) != 0)
        fail_msg("%s: buffer %d: an input was written", what, number);
    clmgk_ref_load(x->dtype, got + from, x->count, values);
    for (size_t i = 0; i < x->count; i++)
        top = fmax(top, fabs(x->expected[i]));
    for (size_t i = 0; x->written && i < x->count; i++)
        if (!(fabs(values[i] - x->expected[i]) <= bound * (fabs(x->expected[i]) + 0.2 * top + 1e-30)))
            fail_msg("%s: buffer %d, element %zu: %.9g, expected %.9g", what, number, i, values[i], x->expected[i]);
    free(values);
    free(got);
}

/* Compiles the steps, gives them a workspace of NaN, runs them and compares every array with its expected values. */
static void run(bed *b, int workspace, const char *what)
{
    mgk_steps *const list = &b->steps;
    mgk_limits limits = {.group = 1024, .local = UINT64_C(1) << 20};
    clmgk_program_origin origin = CLMGK_PROGRAM_MEMORY;
    mgk_call call = mgk_empty_call();
    clmgk_buffer buffers[MGK_CALL_BUFFERS];
    const mgk_queue_place at = {.queue = b->session->queue};
    give(b, workspace, CLMGK_DTYPE_F32, (int64_t)(list->workspace_bytes / sizeof(float)), NAN, 0.0);
    for (size_t i = 0; i < MGK_CALL_BUFFERS; i++)
        if (b->place[i] >= 0) {
            buffers[i] = (clmgk_buffer){b->arrays[b->place[i]].memory, b->arrays[b->place[i]].offset};
            call.buffers[i] = &buffers[i];
        }
    call.added = b->added;
    call.seed = b->seed;
    th_expect_ok(mgk_steps_make(b->session->context, &list, 1, &limits, &origin, &th_error));
    th_expect_ok(mgk_steps_enqueue(list, &call, &at, &th_error));
    assert_int_equal(clFinish(b->session->queue), CL_SUCCESS);
    for (int i = 0; i < MGK_CALL_BUFFERS; i++)
        if (b->place[i] == i && i != workspace)
            compare(b, i, what);
    b->session->cases++;
}

/* Every storage type in the form for the device, and f32 in the form for GPUs. `keeper` keeps the programs. */
static const struct {
    clmgk_dtype dtype;
    bool gpu;
} forms[] = {{CLMGK_DTYPE_F32, false}, {CLMGK_DTYPE_F16, false}, {CLMGK_DTYPE_BF16, false}, {CLMGK_DTYPE_F32, true}};

/* Oclgrind has a GPU's form of a few shapes alone. */
static bool few(void)
{
    const char *const engine = getenv("CLMGK_TEST_ENGINE");
    return engine && strcmp(engine, "simt") == 0;
}

static size_t first_form(void)
{
    return few() ? TH_COUNT(forms) - 1 : 0;
}

static bed *keeper(th_session *session, size_t form, bool heads)
{
    static const mgk_norm_rows norm = {.width = 1, .length = 1};
    static const mgk_heads_rows rows = {.length = 1};
    bed *const b = bed_make(session, forms[form].gpu, forms[form].dtype, 0);
    if (heads)
        mgk_rows_heads_forward(&b->list, &rows);
    else
        mgk_rows_norm(&b->list, &norm);
    run(b, heads ? (int)MGK_HEADS_WORKSPACE : (int)MGK_NORM_WORKSPACE, "nothing");
    return b;
}

/* ---- rows of the model's width ----------------------------------------------------------------------------------- */

enum { ROWS = 45, LENGTH = 5 };
static const int64_t widths[] = {1, 3, 17, 64, 384};

enum {
    WITH_BIAS = 1,
    WITH_RESIDUAL = 2,
    WITH_SUM = 4,
    WITH_GAIN = 8,
    WITH_STATISTICS = 16,
    WITH_DROPOUT = 32,
    IN_PLACE = 64,
    WITH_OUT = 128,
    WITH_DROPPED = 256,
    WITH_ADDED = 512,
    LEVEL = 1024 /* the elements of a row are equal */
};

static double kept(const bed *b, const mgk_norm_rows *rows, int64_t row, int64_t c)
{
    const uint32_t counter[4] = {(uint32_t)(c / 4), (uint32_t)(row % rows->length), (uint32_t)(row / rows->length), 3};
    const uint32_t key[2] = {(uint32_t)b->seed, (uint32_t)(b->seed >> 32)};
    uint32_t words[4];
    clmgk_ref_philox(counter, key, words);
    return words[c % 4] < (uint32_t)(rows->dropout * 4294967296.0) ? 0.0 : 1.0 / (1.0 - rows->dropout);
}

static mgk_norm_rows norm_rows(int64_t width, int with)
{
    return (mgk_norm_rows){.rows = ROWS,
                           .length = LENGTH,
                           .width = width,
                           .dropout = (with & WITH_DROPOUT) != 0 ? 0.3 : 0.0,
                           .epsilon = 1e-3};
}

static void give_norm(bed *b, const mgk_norm_rows *rows)
{
    give(b, MGK_NORM_GAIN, CLMGK_DTYPE_F32, rows->width, 1.0, 1.0);
    give(b, MGK_NORM_OFFSET, CLMGK_DTYPE_F32, rows->width, 0.0, 1.0);
}

static void mean_and_scale(const double *v, const mgk_norm_rows *rows, double *mean, double *scale)
{
    double squares = 0.0;
    *mean = 0.0;
    for (int64_t c = 0; c < rows->width; c++)
        *mean += v[c]; /* exact where elements are equal */
    *mean /= (double)rows->width;
    for (int64_t c = 0; c < rows->width; c++)
        squares += (v[c] - *mean) * (v[c] - *mean);
    *scale = 1.0 / sqrt(squares / (double)rows->width + rows->epsilon);
}

static void expect_norm_row(bed *b, const mgk_norm_rows *rows, int64_t row)
{
    const int64_t at = row * rows->width;
    double v[MOST_WIDTH], mean = 0.0, scale = 0.0;
    for (int64_t c = 0; c < rows->width; c++) {
        v[c] = in(b, MGK_NORM_IN)[at + c] + (given(b, MGK_NORM_BIAS) ? in(b, MGK_NORM_BIAS)[c] : 0.0);
        v[c] *= kept(b, rows, row, c);
        v[c] += given(b, MGK_NORM_RESIDUAL) ? in(b, MGK_NORM_RESIDUAL)[at + c] : 0.0;
        if (given(b, MGK_NORM_SUM))
            expect(b, MGK_NORM_SUM)[at + c] = v[c];
        v[c] = stored(b, v[c]);
        if (!given(b, MGK_NORM_GAIN))
            expect(b, MGK_NORM_OUT)[at + c] = v[c];
    }
    if (!given(b, MGK_NORM_GAIN))
        return;
    mean_and_scale(v, rows, &mean, &scale);
    for (int64_t c = 0; c < rows->width; c++)
        expect(b, MGK_NORM_OUT)[at + c] = (v[c] - mean) * scale * in(b, MGK_NORM_GAIN)[c] + in(b, MGK_NORM_OFFSET)[c];
    if (given(b, MGK_NORM_STATISTICS)) {
        expect(b, MGK_NORM_STATISTICS)[2 * row] = mean;
        expect(b, MGK_NORM_STATISTICS)[2 * row + 1] = scale;
    }
}

/* `scale`, `centre`: of the rows' values. */
static void check_norm(th_session *session, size_t form, int64_t width, int with, double centre, double scale)
{
    const mgk_norm_rows rows = norm_rows(width, with);
    const int64_t count = ROWS * width;
    bed *const b = bed_make(session, forms[form].gpu, forms[form].dtype, (uint64_t)(width * 1000 + with));
    char what[96];
    (void)snprintf(what, sizeof(what), "form %zu, width %d, options %d", form, (int)width, with);
    give(b, MGK_NORM_IN, b->list.dtype, count, centre, scale);
    if ((with & WITH_BIAS) != 0)
        give(b, MGK_NORM_BIAS, CLMGK_DTYPE_F32, width, 0.0, 1.0);
    if ((with & WITH_RESIDUAL) != 0)
        give(b, MGK_NORM_RESIDUAL, b->list.dtype, count, 0.0, 1.0);
    if ((with & WITH_SUM) != 0)
        give(b, MGK_NORM_SUM, b->list.dtype, count, 0.0, 1.0);
    if ((with & WITH_SUM) != 0 && (with & IN_PLACE) != 0)
        b->place[MGK_NORM_IN] = MGK_NORM_SUM;
    if ((with & WITH_GAIN) != 0)
        give_norm(b, &rows);
    if ((with & WITH_STATISTICS) != 0)
        give(b, MGK_NORM_STATISTICS, CLMGK_DTYPE_F32, INT64_C(2) * ROWS, 0.0, 1.0);
    if ((with & IN_PLACE) != 0 && (with & WITH_SUM) == 0)
        b->place[MGK_NORM_OUT] = MGK_NORM_IN;
    else
        give(b, MGK_NORM_OUT, b->list.dtype, count, 0.0, 1.0);
    if ((with & LEVEL) != 0)
        level(b, width);
    else if (centre != 0.0)
        b->bound = 3e-7 * centre; /* the mean's error, as the deviations are near 1 */
    for (int64_t row = 0; row < ROWS; row++)
        expect_norm_row(b, &rows, row);
    mgk_rows_norm(&b->list, &rows);
    run(b, MGK_NORM_WORKSPACE, what);
    bed_free(b);
}

TH_TEST(rows_are_finished_and_normalised)
{
    static const int options[] = {WITH_GAIN | WITH_STATISTICS,
                                  WITH_GAIN | IN_PLACE,
                                  WITH_BIAS | IN_PLACE,
                                  WITH_BIAS | WITH_RESIDUAL | WITH_DROPOUT,
                                  WITH_RESIDUAL | WITH_GAIN | WITH_SUM | WITH_STATISTICS,
                                  WITH_DROPOUT | WITH_GAIN | WITH_SUM | WITH_STATISTICS | IN_PLACE,
                                  WITH_BIAS | WITH_RESIDUAL | WITH_GAIN | IN_PLACE,
                                  WITH_BIAS | WITH_SUM};
    for (size_t form = first_form(); form < TH_COUNT(forms); form++) {
        bed *const kept_programs = keeper(session, form, false);
        for (size_t w = few() ? TH_COUNT(widths) - 1 : 0; w < TH_COUNT(widths); w++)
            for (size_t n = 0; n < TH_COUNT(options); n++)
                check_norm(session, form, widths[w], options[n], 0.0, 1.0);
        if (forms[form].dtype == CLMGK_DTYPE_F32) {
            check_norm(session, form, 384, WITH_GAIN | WITH_STATISTICS, 3000.0,
                       1.0); /* one pass would lose the deviations */
            check_norm(session, form, 100, WITH_GAIN | WITH_STATISTICS, 0.0, 1e17);
            check_norm(session, form, 384, WITH_GAIN | WITH_STATISTICS | LEVEL, 0.0, 1e8);
            check_norm(session, form, 100, WITH_GAIN | WITH_SUM | LEVEL, 0.0, 1e8);
        }
        bed_free(kept_programs);
    }
}

static void expect_norm_backward_row(bed *b, const mgk_norm_rows *rows, int64_t row)
{
    const int64_t at = row * rows->width;
    const double *const g = in(b, MGK_NORM_GRADIENT) + at;
    const bool normalised = given(b, MGK_NORM_GAIN);
    double y[MOST_WIDTH], mean_h = 0.0, mean_hy = 0.0;
    for (int64_t c = 0; normalised && c < rows->width; c++) {
        const double h = g[c] * in(b, MGK_NORM_GAIN)[c];
        y[c] = (in(b, MGK_NORM_IN)[at + c] - in(b, MGK_NORM_STATISTICS)[2 * row]) *
               in(b, MGK_NORM_STATISTICS)[2 * row + 1];
        mean_h += h / (double)rows->width;
        mean_hy += h * y[c] / (double)rows->width;
        if (given(b, MGK_NORM_GRAD_GAIN)) {
            expect(b, MGK_NORM_GRAD_GAIN)[c] += g[c] * y[c];
            expect(b, MGK_NORM_GRAD_OFFSET)[c] += g[c];
        }
    }
    for (int64_t c = 0; c < rows->width; c++) {
        double d = g[c];
        if (normalised)
            d = in(b, MGK_NORM_STATISTICS)[2 * row + 1] * (d * in(b, MGK_NORM_GAIN)[c] - mean_h - y[c] * mean_hy);
        d += given(b, MGK_NORM_RESIDUAL) ? in(b, MGK_NORM_RESIDUAL)[at + c] : 0.0;
        if (given(b, MGK_NORM_OUT))
            expect(b, MGK_NORM_OUT)[at + c] =
                d + ((b->added >> MGK_NORM_OUT & 1U) != 0 ? in(b, MGK_NORM_OUT)[at + c] : 0.0);
        d *= kept(b, rows, row, c);
        if (given(b, MGK_NORM_DROPPED))
            expect(b, MGK_NORM_DROPPED)[at + c] = d;
        if (given(b, MGK_NORM_GRAD_BIAS))
            expect(b, MGK_NORM_GRAD_BIAS)[c] += d;
    }
}

static const int norm_sums[] = {MGK_NORM_GRAD_GAIN, MGK_NORM_GRAD_OFFSET, MGK_NORM_GRAD_BIAS};

/* Gives the arrays of sums, which begin with 0 unless they accumulate. */
static void give_sum(bed *b, int number, int64_t count, bool added)
{
    give(b, number, CLMGK_DTYPE_F32, count, 0.0, 1.0);
    if (added)
        b->added |= UINT64_C(1) << number;
    else
        memset(b->arrays[number].expected, 0, (size_t)count * sizeof(double));
    b->arrays[number].written = true;
}

static void check_norm_backward(th_session *session, size_t form, int64_t width, int with, bool sums)
{
    const mgk_norm_rows rows = norm_rows(width, with);
    const mgk_norm_wants want = {
        .gain = sums && (with & WITH_GAIN) != 0, .offset = sums && (with & WITH_GAIN) != 0, .bias = sums};
    const int64_t count = ROWS * width;
    bed *const b = bed_make(session, forms[form].gpu, forms[form].dtype, (uint64_t)(width * 1000 + with));
    char what[96];
    (void)snprintf(what, sizeof(what), "backward, form %zu, width %d, options %d", form, (int)width, with);
    give(b, MGK_NORM_GRADIENT, b->list.dtype, count, 0.0, 1.0);
    if ((with & WITH_GAIN) != 0) {
        give_norm(b, &rows);
        give(b, MGK_NORM_IN, b->list.dtype, count, 0.0, 1.0);
        give(b, MGK_NORM_STATISTICS, CLMGK_DTYPE_F32, INT64_C(2) * ROWS, 0.5, 1.0);
    }
    if ((with & LEVEL) != 0)
        level(b, width);
    if ((with & WITH_RESIDUAL) != 0)
        give(b, MGK_NORM_RESIDUAL, b->list.dtype, count, 0.0, 1.0);
    if ((with & WITH_OUT) != 0)
        give(b, MGK_NORM_OUT, b->list.dtype, count, 0.0, 1.0);
    if ((with & IN_PLACE) != 0)
        b->place[MGK_NORM_OUT] = (with & WITH_RESIDUAL) != 0 ? MGK_NORM_RESIDUAL : MGK_NORM_GRADIENT;
    if ((with & WITH_DROPPED) != 0)
        give(b, MGK_NORM_DROPPED, b->list.dtype, count, 0.0, 1.0);
    if ((with & WITH_ADDED) != 0)
        b->added = UINT64_C(1) << MGK_NORM_OUT;
    for (size_t n = 0; n < TH_COUNT(norm_sums); n++)
        if (n < 2 ? want.gain : want.bias)
            give_sum(b, norm_sums[n], width, (with & WITH_ADDED) != 0);
    for (int64_t row = 0; row < ROWS; row++)
        expect_norm_backward_row(b, &rows, row);
    mgk_rows_norm_backward(&b->list, &rows, &want);
    run(b, MGK_NORM_WORKSPACE, what);
    bed_free(b);
}

TH_TEST(gradients_go_back_through_rows)
{
    static const int options[] = {WITH_GAIN | WITH_OUT,
                                  WITH_GAIN | WITH_RESIDUAL | IN_PLACE,
                                  WITH_GAIN | WITH_OUT | WITH_DROPPED | WITH_DROPOUT | WITH_ADDED,
                                  WITH_GAIN | IN_PLACE,
                                  WITH_GAIN | WITH_OUT | LEVEL,
                                  WITH_RESIDUAL | WITH_OUT | WITH_ADDED,
                                  WITH_DROPPED | WITH_DROPOUT,
                                  0};
    for (size_t form = first_form(); form < TH_COUNT(forms); form++) {
        bed *const kept_programs = keeper(session, form, false);
        for (size_t w = few() ? TH_COUNT(widths) - 1 : 0; w < TH_COUNT(widths); w++)
            for (size_t n = 0; n < TH_COUNT(options); n++)
                check_norm_backward(session, form, widths[w], options[n], n % 3 != 1);
        bed_free(kept_programs);
    }
}

/* ---- rows of heads ----------------------------------------------------------------------------------------------- */

enum { Q, K, V };
enum { WITH_GAINS = 2, WITH_KEPT = 4, AT_LENGTHS = 8, PACKED = 16, CACHED = 32, ADDED = 128 };
enum { BATCHES = 5, NEW = 3, CAPACITY = 11, SEQUENCES = 4, HEAD_ROWS = BATCHES * NEW };

static const int32_t sequence_begins[SEQUENCES + 1] = {0, 4, 4, 5, HEAD_ROWS};
static const int32_t cache_lengths[BATCHES] = {3, 11, 7, 1, 13}; /* the last two do not fit as a whole */
static const int32_t far_lengths[BATCHES] = {3, 1 << 20, 777777, 1000003, 65536};

typedef struct head_shape {
    int64_t heads[3], size[3], rotary_size;
} head_shape;

static const head_shape shapes[] = {{{4, 2, 2}, {64, 64, 64}, 64}, {{3, 1, 1}, {17, 17, 5}, 6},
                                    {{1, 6, 2}, {3, 3, 1}, 2},     {{5, 5, 5}, {40, 40, 24}, 40},
                                    {{2, 1, 0}, {96, 96, 1}, 34},  {{0, 3, 7}, {8, 8, 1}, 8}};

static mgk_heads_rows heads_rows(const head_shape *shape, clmgk_rotary rotary, int with)
{
    mgk_heads_rows rows = {.rows = HEAD_ROWS,
                           .length = (with & PACKED) != 0 ? HEAD_ROWS : NEW,
                           .rotary = rotary,
                           .rotary_size = shape->rotary_size,
                           .rotary_base = 10000.0,
                           .epsilon = 1e-3,
                           .sequences = (with & PACKED) != 0 ? SEQUENCES : 0,
                           .capacity = (with & CACHED) != 0 ? CAPACITY : 0,
                           .keep_biased = (with & WITH_KEPT) != 0};
    for (int n = 0; n < 3; n++) {
        const int64_t columns = shape->heads[n] * shape->size[n];
        rows.part[n] = (mgk_rows_heads){shape->heads[n], shape->size[n], columns + 3 - n, columns + 2 + n};
    }
    return rows;
}

static int64_t position_of(const mgk_heads_rows *rows, int with, int64_t row)
{
    const int64_t n = row % rows->length;
    if ((with & CACHED) != 0)
        return cache_lengths[row / rows->length] - rows->length + n;
    if ((with & AT_LENGTHS) != 0)
        return far_lengths[row / rows->length] - rows->length + n;
    int64_t begin = 0;
    for (int t = 0; t < SEQUENCES; t++)
        if (sequence_begins[t] <= n && n < sequence_begins[t + 1])
            begin = sequence_begins[t];
    return (with & PACKED) != 0 ? n - begin : n;
}

/* x, a head, is rotated by its position, `back` or forth. */
static void rotate(const mgk_heads_rows *rows, int64_t position, bool back, double *x)
{
    const int64_t pairs = rows->rotary_size / 2;
    for (int64_t c = 0; c < pairs && rows->rotary != CLMGK_ROTARY_NONE; c++) {
        const double angle = (double)position * pow(rows->rotary_base, -2.0 * (double)c / (double)rows->rotary_size);
        const int64_t i = rows->rotary == CLMGK_ROTARY_HALVES ? c : 2 * c;
        const int64_t j = rows->rotary == CLMGK_ROTARY_HALVES ? c + pairs : 2 * c + 1;
        const double a = x[i], b = x[j], sine = back ? -sin(angle) : sin(angle);
        x[i] = a * cos(angle) - b * sine;
        x[j] = a * sine + b * cos(angle);
    }
}

static double rms_scale(const mgk_heads_rows *rows, const double *x, int64_t size)
{
    double squares = 0.0;
    for (int64_t e = 0; e < size; e++)
        squares += x[e] * x[e];
    return 1.0 / sqrt(squares / (double)size + rows->epsilon);
}

static void give_heads(bed *b, const mgk_heads_rows *rows, int with)
{
    for (int n = 0; n < 2; n++)
        if ((with & WITH_GAINS) != 0)
            give(b, MGK_HEADS_GAIN_Q + n, CLMGK_DTYPE_F32, rows->part[n].size, 1.0, 0.5);
    if ((with & (AT_LENGTHS | CACHED)) != 0)
        give_numbers(b, MGK_HEADS_LENGTHS, (with & CACHED) != 0 ? cache_lengths : far_lengths, BATCHES);
    if ((with & PACKED) != 0)
        give_numbers(b, MGK_HEADS_OFFSETS, sequence_begins, SEQUENCES + 1);
}

static void expect_head(bed *b, const mgk_heads_rows *rows, int n, int64_t row, int64_t h, int64_t position)
{
    const mgk_rows_heads *const part = &rows->part[n];
    const int64_t at = row * part->ld + h * part->size;
    double x[MOST_WIDTH];
    for (int64_t e = 0; e < part->size; e++) {
        x[e] = in(b, MGK_HEADS_Q + n)[at + e];
        if (given(b, MGK_HEADS_BIAS_Q + n))
            x[e] += in(b, MGK_HEADS_BIAS_Q + n)[h * part->size + e];
        if (rows->keep_biased)
            expect(b, MGK_HEADS_Q + n)[at + e] = x[e];
    }
    if (n != V && given(b, MGK_HEADS_GAIN_Q + n)) {
        const double scale = rms_scale(rows, x, part->size);
        for (int64_t e = 0; e < part->size; e++)
            x[e] *= scale * in(b, MGK_HEADS_GAIN_Q + n)[e];
    }
    if (n != V)
        rotate(rows, position, false, x);
    const int64_t batch = row / rows->length;
    const bool is_cache = rows->capacity > 0 && n != Q;
    const int64_t to = is_cache ? ((batch * part->heads + h) * rows->capacity + position) * part->size
                                : row * part->ld_out + h * part->size;
    for (int64_t e = 0; e < part->size && !(is_cache && (position < 0 || position >= rows->capacity)); e++)
        expect(b, MGK_HEADS_OUT_Q + n)[to + e] = x[e];
}

static void check_heads(th_session *session, size_t form, size_t shape, clmgk_rotary rotary, int with)
{
    mgk_heads_rows rows = heads_rows(&shapes[shape], rotary, with);
    bed *const b = bed_make(session, forms[form].gpu, forms[form].dtype, shape * 1000 + (size_t)with);
    char what[96];
    (void)snprintf(what, sizeof(what), "heads, form %zu, shape %zu, rotary %d, options %d", form, shape, (int)rotary,
                   with);
    give_heads(b, &rows, with);
    for (int n = 0; n < 3; n++) {
        const int64_t columns = rows.part[n].heads * rows.part[n].size;
        if (columns == 0)
            continue;
        if ((with & IN_PLACE) != 0)
            rows.part[n].ld_out = rows.part[n].ld;
        give(b, MGK_HEADS_Q + n, b->list.dtype, HEAD_ROWS * rows.part[n].ld, 0.0, 1.0);
        if ((with & IN_PLACE) != 0)
            b->place[MGK_HEADS_OUT_Q + n] = MGK_HEADS_Q + n;
        else
            give(b, MGK_HEADS_OUT_Q + n, b->list.dtype,
                 rows.capacity > 0 && n != Q ? columns * BATCHES * CAPACITY : HEAD_ROWS * rows.part[n].ld_out, 0.0,
                 1.0);
        if ((with & WITH_BIAS) != 0)
            give(b, MGK_HEADS_BIAS_Q + n, CLMGK_DTYPE_F32, columns, 0.0, 1.0);
    }
    for (int n = 0; n < 3; n++)
        for (int64_t row = 0; row < HEAD_ROWS; row++)
            for (int64_t h = 0; h < rows.part[n].heads; h++)
                expect_head(b, &rows, n, row, h, position_of(&rows, with, row));
    mgk_rows_heads_forward(&b->list, &rows);
    run(b, MGK_HEADS_WORKSPACE, what);
    bed_free(b);
}

static void sweep_heads(th_session *session, const int *options, size_t count,
                        void (*check)(th_session *session, size_t form, size_t shape, clmgk_rotary rotary, int with))
{
    for (size_t form = first_form(); form < TH_COUNT(forms); form++) {
        bed *const kept_programs = keeper(session, form, true);
        for (size_t shape = 0; shape < (few() ? 2 : TH_COUNT(shapes)); shape++)
            for (int rotary = few() ? 1 : 0; rotary < 3; rotary++)
                for (size_t n = 0; n < count; n++)
                    check(session, form, shape, (clmgk_rotary)rotary, options[n]);
        bed_free(kept_programs);
    }
}

TH_TEST(heads_are_normalised_rotated_and_stored)
{
    static const int options[] = {WITH_BIAS | IN_PLACE,
                                  WITH_GAINS | AT_LENGTHS,
                                  WITH_BIAS | WITH_GAINS | WITH_KEPT,
                                  WITH_BIAS | CACHED,
                                  PACKED,
                                  WITH_GAINS | WITH_BIAS | IN_PLACE | AT_LENGTHS};
    sweep_heads(session, options, TH_COUNT(options), check_heads);
}

static void expect_head_gradient(bed *b, const mgk_heads_rows *rows, int n, int64_t row, int64_t h, int64_t position)
{
    const mgk_rows_heads *const part = &rows->part[n];
    const int64_t at = row * part->ld_out + h * part->size;
    double d[MOST_WIDTH];
    memcpy(d, in(b, MGK_HEADS_OUT_Q + n) + at, (size_t)part->size * sizeof(double));
    if (n != V)
        rotate(rows, position, true, d);
    if (n != V && given(b, MGK_HEADS_GAIN_Q + n)) {
        const double *const x = in(b, MGK_HEADS_Q + n) + row * part->ld + h * part->size;
        const double *const gain = in(b, MGK_HEADS_GAIN_Q + n), scale = rms_scale(rows, x, part->size);
        double along = 0.0;
        for (int64_t e = 0; e < part->size; e++)
            along += d[e] * gain[e] * x[e] / (double)part->size;
        for (int64_t e = 0; e < part->size; e++) {
            if (given(b, MGK_HEADS_GRAD_GAIN_Q + n))
                expect(b, MGK_HEADS_GRAD_GAIN_Q + n)[e] += d[e] * x[e] * scale;
            d[e] = scale * d[e] * gain[e] - x[e] * scale * scale * scale * along;
        }
    }
    for (int64_t e = 0; e < part->size; e++) {
        expect(b, MGK_HEADS_OUT_Q + n)[at + e] = d[e];
        if (given(b, MGK_HEADS_GRAD_BIAS_Q + n))
            expect(b, MGK_HEADS_GRAD_BIAS_Q + n)[h * part->size + e] += d[e];
    }
}

static void check_heads_backward(th_session *session, size_t form, size_t shape, clmgk_rotary rotary, int with)
{
    const mgk_heads_rows rows = heads_rows(&shapes[shape], rotary, with);
    mgk_heads_wants want = {.bias = {false}};
    bed *const b = bed_make(session, forms[form].gpu, forms[form].dtype, shape * 1000 + (size_t)with);
    char what[96];
    (void)snprintf(what, sizeof(what), "heads backward, form %zu, shape %zu, rotary %d, options %d", form, shape,
                   (int)rotary, with);
    give_heads(b, &rows, with);
    for (int n = 0; n < 3; n++) {
        const int64_t columns = rows.part[n].heads * rows.part[n].size;
        if (columns == 0)
            continue;
        give(b, MGK_HEADS_OUT_Q + n, b->list.dtype, HEAD_ROWS * rows.part[n].ld_out, 0.0, 1.0);
        want.bias[n] = (with & WITH_BIAS) != 0;
        if (want.bias[n])
            give_sum(b, MGK_HEADS_GRAD_BIAS_Q + n, columns, (with & ADDED) != 0);
        if (n == V || (with & WITH_GAINS) == 0)
            continue;
        give(b, MGK_HEADS_Q + n, b->list.dtype, HEAD_ROWS * rows.part[n].ld, 0.0, 1.0);
        want.gain[n] = true;
        give_sum(b, MGK_HEADS_GRAD_GAIN_Q + n, rows.part[n].size, (with & ADDED) != 0);
    }
    /* gradients that are rotated are rounded before they are used */
    if (b->list.dtype != CLMGK_DTYPE_F32)
        b->bound = b->list.dtype == CLMGK_DTYPE_F16 ? 4e-3 : 3e-2;
    for (int n = 0; n < 3; n++)
        for (int64_t row = 0; row < HEAD_ROWS; row++)
            for (int64_t h = 0; h < rows.part[n].heads; h++)
                expect_head_gradient(b, &rows, n, row, h, position_of(&rows, with, row));
    mgk_rows_heads_backward(&b->list, &rows, &want);
    run(b, MGK_HEADS_WORKSPACE, what);
    bed_free(b);
}

TH_TEST(gradients_go_back_through_heads)
{
    static const int options[] = {WITH_BIAS, WITH_GAINS | AT_LENGTHS, WITH_BIAS | WITH_GAINS | ADDED | PACKED, 0};
    sweep_heads(session, options, TH_COUNT(options), check_heads_backward);
}
