/* SPDX-License-Identifier: Apache-2.0 */
/* The reads of captured arrays outside of them, counted in host memory. */
#include "attention/core/arrays.h"
#include "attention/core/formulas.h"
#include "attention/plan.h"

#include <string.h>

/* A call's numbers and expressions, which reader_close releases after success and failure. */
typedef struct reader {
    clmgk_attention_desc desc; /* resolved, of the forward pass */
    const int32_t *ints[CLMGK_ARRAYS];
    mgk_formulas formulas;
    mgk_inputs inputs;
    double numbers[CLMGK_MAX_NUMBERS];
    mgk_values captures[CLMGK_MAX_CAPTURES];
    double *elements[CLMGK_MAX_CAPTURES]; /* dense */
    double *values;                       /* room for a value of each operation */
    bool *needed;                         /* likewise */
} reader;

static void reader_close(reader *r)
{
    mgk_formulas_free(&r->formulas);
    for (int c = 0; c < CLMGK_MAX_CAPTURES; ++c)
        mgk_free(NULL, r->elements[c]);
    mgk_free(NULL, r->values);
    mgk_free(NULL, r->needed);
}

/* ---- the caller's arrays ---------------------------------------------------------------------------------------- */

static double element_at(const void *array, clmgk_capture_type type, int64_t i)
{
    if (type == CLMGK_CAPTURE_F32)
        return (double)((const float *)array)[i];
    if (type == CLMGK_CAPTURE_I32)
        return ((const int32_t *)array)[i];
    const clmgk_dtype_info info = clmgk_dtype_get_info((clmgk_dtype)type);
    return mgk_decode(((const uint16_t *)array)[i], &info);
}

/* The elements of captured array c as numbers. */
static clmgk_status load_capture(reader *r, int c, const void *array, clmgk_error *error)
{
    const clmgk_capture *const capture = &r->desc.captures[c];
    mgk_values *const values = &r->captures[c];
    int64_t count = 1;
    for (int axis = capture->axes - 1; axis >= 0; --axis) {
        values->extents[axis] = capture->shape[axis];
        values->strides[axis] = count;
        count *= capture->shape[axis]; /* fits: a resolved descriptor */
    }
    r->elements[c] =
        (uint64_t)count > SIZE_MAX / sizeof(double) ? NULL : mgk_alloc(NULL, (size_t)count, sizeof(double));
    if (r->elements[c] == NULL)
        return mgk_fail_memory(error, "a captured array");
    for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i, place = 0;
        for (int axis = 0; axis < capture->axes; ++axis) {
            place += rest / values->strides[axis] * capture->strides[axis];
            rest %= values->strides[axis];
        }
        r->elements[c][i] = element_at(array, capture->type, place);
    }
    values->data = r->elements[c];
    return CLMGK_OK;
}

static clmgk_status load_captures(reader *r, const clmgk_host_args *args, clmgk_error *error)
{
    for (int c = 0; c < mgk_count_captures(&r->desc); ++c)
        MGK_TRY(load_capture(r, c, mgk_host_pointer(args, (clmgk_array)(CLMGK_ARRAY_CAPTURE_0 + c)), error));
    for (int n = 0; n < mgk_count_numbers(&r->desc); ++n)
        r->numbers[n] = (double)args->numbers[n];
    r->inputs.captures = r->captures;
    r->inputs.numbers = r->numbers;
    return CLMGK_OK;
}

/* The arrays that say which pairs there are, and what their texts read. */
static clmgk_status check_pointers(reader *r, const clmgk_host_args *args, clmgk_error *error)
{
    static const clmgk_array arrays[] = {CLMGK_ARRAY_LENGTHS,   CLMGK_ARRAY_LENGTHS_Q,    CLMGK_ARRAY_OFFSETS,
                                         CLMGK_ARRAY_OFFSETS_K, CLMGK_ARRAY_POSITIONS,    CLMGK_ARRAY_POSITIONS_K,
                                         CLMGK_ARRAY_LAST_PAGE, CLMGK_ARRAY_PAGE_OFFSETS, CLMGK_ARRAY_NUMBERS,
                                         CLMGK_ARRAY_CAPTURE_0, CLMGK_ARRAY_CAPTURE_1,    CLMGK_ARRAY_CAPTURE_2,
                                         CLMGK_ARRAY_CAPTURE_3, CLMGK_ARRAY_CAPTURE_4,    CLMGK_ARRAY_CAPTURE_5,
                                         CLMGK_ARRAY_CAPTURE_6, CLMGK_ARRAY_CAPTURE_7};
    for (size_t n = 0; n < MGK_COUNT(arrays); ++n) {
        if (mgk_array_presence(&r->desc, CLMGK_PASS_FORWARD, arrays[n]) == CLMGK_ABSENT)
            continue;
        r->ints[arrays[n]] = mgk_host_pointer(args, arrays[n]);
        if (r->ints[arrays[n]] == NULL && mgk_array_count(&r->desc, arrays[n]) > 0)
            return mgk_fail_missing(&r->desc, CLMGK_PASS_FORWARD, arrays[n], "an array", error);
    }
    return CLMGK_OK;
}

static clmgk_status reader_open(reader *r, const clmgk_host_args *args, clmgk_error *error)
{
    MGK_TRY(check_pointers(r, args, error));
    MGK_TRY(mgk_formulas_of(&r->desc, NULL, &r->formulas, error));
    MGK_TRY(load_captures(r, args, error));
    const size_t of_score = r->formulas.score != NULL ? r->formulas.score->count : 0;
    const size_t of_mask = r->formulas.mask != NULL ? r->formulas.mask->count : 0;
    const size_t most = of_score > of_mask ? of_score : of_mask;
    r->values = mgk_alloc(NULL, most, sizeof(*r->values));
    r->needed = mgk_alloc(NULL, most, sizeof(*r->needed));
    return r->values != NULL && r->needed != NULL ? CLMGK_OK : mgk_fail_memory(error, "values of a text");
}

/* ---- pairs ------------------------------------------------------------------------------------------------------ */

/* A batch, or a packed sequence. */
typedef struct sequence {
    int64_t number;
    int64_t first_row, rows, queries; /* on the axis N; those that are there; those that formulas count */
    int64_t first_key, limit, keys;   /* likewise of the axis S */
} sequence;

static int64_t within(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* Keys in use; `most` of them at most. */
static int64_t keys_in_use(const reader *r, int64_t t, int64_t most)
{
    const clmgk_attention_desc *const d = &r->desc;
    if (d->use_lengths)
        return within(r->ints[CLMGK_ARRAY_LENGTHS][t], 0, most);
    if (!d->use_page_offsets)
        return d->length_k;
    const int32_t *const offsets = r->ints[CLMGK_ARRAY_PAGE_OFFSETS] + t;
    const int64_t pages = offsets[1] - (int64_t)offsets[0];
    return pages > 0 ? within((pages - 1) * d->page_size + r->ints[CLMGK_ARRAY_LAST_PAGE][t], 0, most) : 0;
}

/* Tokens first .. of a packed axis of `limit` tokens that belong to sequence t. */
static int64_t tokens_of(const int32_t *offsets, int64_t t, int64_t limit, int64_t *first)
{
    *first = within(offsets[t], 0, limit);
    return within(offsets[t + 1], *first, limit) - *first;
}

static sequence sequence_of(const reader *r, int64_t t)
{
    const clmgk_attention_desc *const d = &r->desc;
    sequence s = {.number = t, .rows = d->length, .queries = d->length, .keys = d->length_k};
    s.limit = keys_in_use(r, t, d->length_k);
    if (d->use_lengths_q)
        s.rows = within(r->ints[CLMGK_ARRAY_LENGTHS_Q][t], 0, d->length);
    if (d->sequences == 0)
        return s;
    s.rows = s.queries = tokens_of(r->ints[CLMGK_ARRAY_OFFSETS], t, d->length, &s.first_row);
    if (!d->use_lengths && d->page_size == 0) /* else it has a cache of its own */
        s.limit = tokens_of(r->ints[d->use_offsets_k ? CLMGK_ARRAY_OFFSETS_K : CLMGK_ARRAY_OFFSETS], t, d->length_k,
                            &s.first_key);
    s.keys = s.limit;
    return s;
}

/* d(i) of row i of the sequence. */
static int64_t diagonal_of(const reader *r, const sequence *s, int64_t i)
{
    const clmgk_attention_desc *const d = &r->desc;
    if (d->alignment == CLMGK_ALIGN_TOP_LEFT)
        return i;
    if (d->alignment == CLMGK_ALIGN_LENGTHS) /* a length beyond the keys keeps its meaning */
        return i - s->queries + (d->sequences > 0 ? s->limit : keys_in_use(r, s->number, INT64_C(1) << 30));
    return i - s->queries + s->keys;
}

/* Whether causality or the window hides a key at this distance to the right of the diagonal. */
static bool is_hidden(const clmgk_attention_desc *d, int64_t distance)
{
    return (d->causal && distance > 0) || (d->use_window && ((d->window_right >= 0 && distance > d->window_right) ||
                                                             (d->window_left >= 0 && -distance > d->window_left)));
}

/* ---- counts ----------------------------------------------------------------------------------------------------- */

static int64_t count_expression(reader *r, const mgk_expression *expression, bool *value)
{
    if (expression == NULL)
        return 0;
    *value = mgk_evaluate(expression, &r->inputs, r->values) != 0;
    return (int64_t)mgk_reads_outside(expression, &r->inputs, r->values, r->needed);
}

static bool depends_on(const mgk_expression *expression, uint32_t names)
{
    return expression != NULL && (expression->nodes[expression->count - 1].depends & names) != 0;
}

/* Of the pair whose position is in the inputs: its heads and components. Those that the texts do not tell apart are
 * alike. */
static int64_t count_pair(reader *r)
{
    const clmgk_attention_desc *const d = &r->desc;
    const mgk_formulas *const f = &r->formulas;
    const uint32_t of_heads = MGK_ON(HEAD) | MGK_ON(KV_HEAD);
    const int64_t heads = mgk_softmax_heads(d);
    const int64_t components = mgk_has_trait(d, CLMGK_TRAIT_ADMIXTURE) ? 1 : d->components;
    const int64_t own_heads = depends_on(f->score, of_heads) || depends_on(f->mask, of_heads) ? heads : 1;
    const int64_t own_components = depends_on(f->score, MGK_ON(COMPONENT)) ? components : 1;
    int64_t of_masks = 0, of_scores = 0;
    for (int64_t h = 0; h < own_heads; ++h) {
        bool visible = true, any = false;
        r->inputs.names[MGK_NAME_HEAD] = (double)h;
        const int64_t kv_head = d->mix_after_heads > 0 ? 0 : h * d->kv_heads / d->heads;
        r->inputs.names[MGK_NAME_KV_HEAD] = (double)kv_head;
        of_masks += count_expression(r, f->mask, &visible);
        for (int64_t c = 0; visible && c < own_components; ++c) {
            r->inputs.names[MGK_NAME_COMPONENT] = (double)c;
            of_scores += count_expression(r, f->score, &any);
        }
    }
    return heads / own_heads * (of_masks + components / own_components * of_scores);
}

static int64_t count_row(reader *r, const sequence *s, int64_t i)
{
    const clmgk_attention_desc *const d = &r->desc;
    const int32_t *const rows = r->ints[CLMGK_ARRAY_POSITIONS], *const keys = r->ints[CLMGK_ARRAY_POSITIONS_K];
    const int64_t batch = d->sequences > 0 ? 0 : s->number;
    const int64_t row = rows != NULL ? rows[batch * d->length + s->first_row + i] : i;
    const int64_t diagonal = rows != NULL ? row : diagonal_of(r, s, i);
    int64_t count = 0;
    r->inputs.names[MGK_NAME_ROW] = (double)row;
    for (int64_t j = 0; j < s->limit; ++j) {
        const int64_t key = keys != NULL ? keys[batch * d->length_k + s->first_key + j] : j;
        if (is_hidden(d, key - diagonal))
            continue;
        r->inputs.names[MGK_NAME_KEY] = (double)key;
        count += count_pair(r);
    }
    return count;
}

static int64_t count_all(reader *r)
{
    const int64_t sequences = r->desc.sequences > 0 ? r->desc.sequences : r->desc.batch;
    int64_t count = 0;
    for (int64_t t = 0; t < sequences; ++t) {
        const sequence s = sequence_of(r, t);
        r->inputs.names[MGK_NAME_BATCH] = (double)t;
        r->inputs.names[MGK_NAME_QUERIES] = (double)s.queries;
        r->inputs.names[MGK_NAME_KEYS] = (double)s.keys;
        for (int64_t i = 0; i < s.rows; ++i)
            count += count_row(r, &s, i);
    }
    return count;
}

clmgk_status clmgk_count_reads_outside(const clmgk_attention_desc *desc, const clmgk_host_args *args, int64_t *count,
                                       clmgk_error *error)
{
    clmgk_host_args given;
    reader r = {.inputs = {.numbers = NULL}};
    clmgk_status status;
    if (args == NULL || count == NULL)
        return mgk_fail(error, CLMGK_ERROR_INVALID_VALUE, "%s: NULL: expected %s", args == NULL ? "args" : "count",
                        args == NULL ? "the call's arrays" : "a place for the result");
    MGK_TRY(mgk_attention_resolve(desc, &r.desc, error));
    MGK_TRY(mgk_struct_read(args, "args", sizeof(given), &given, sizeof(given), error));
    r.desc.gradients = r.desc.statistics = 0;
    r.desc.combine = 0;
    *count = 0;
    if (mgk_count_captures(&r.desc) == 0)
        return CLMGK_OK;
    MGK_TRY_GOTO(status, reader_open(&r, &given, error), done);
    *count = count_all(&r);
done:
    reader_close(&r);
    return status;
}
