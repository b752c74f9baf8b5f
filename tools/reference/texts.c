/* SPDX-License-Identifier: Apache-2.0 */
#include "reference/texts.h"

#include <stdlib.h>

static int64_t count_numbers(const clmgk_attention_desc *desc)
{
    int64_t count = 0;
    while (count < CLMGK_MAX_NUMBERS && desc->numbers[count])
        count++;
    return count;
}

static int64_t count_captures(const clmgk_attention_desc *desc)
{
    int64_t count = 0;
    while (count < CLMGK_MAX_CAPTURES && desc->captures[count].name)
        count++;
    return count;
}

/* The call's arrays, which are dense here. */
static void bind_arrays(ref_texts *texts)
{
    const clmgk_ref_problem *const p = texts->problem;
    const double *const data[CLMGK_MAX_CAPTURES] = {p->capture_0, p->capture_1, p->capture_2, p->capture_3,
                                                    p->capture_4, p->capture_5, p->capture_6, p->capture_7};
    for (int64_t c = 0; c < count_captures(&p->desc); c++) {
        const clmgk_capture *const capture = &p->desc.captures[c];
        mgk_values *const values = &texts->captures[c];
        int64_t stride = 1;
        values->data = data[c];
        for (int axis = capture->axes - 1; axis >= 0; axis--) {
            values->extents[axis] = capture->shape[axis];
            values->strides[axis] = stride;
            stride *= capture->shape[axis];
        }
    }
    texts->inputs.captures = texts->captures;
    texts->inputs.numbers = p->numbers;
}

static void grow(size_t *most, const mgk_expression *expression)
{
    if (expression && expression->count > *most)
        *most = expression->count;
}

static size_t largest(const mgk_formulas *f)
{
    size_t most = 1;
    grow(&most, f->score);
    grow(&most, f->mask);
    grow(&most, f->slope);
    for (size_t n = 0; n < MGK_NUMBERS; n++)
        grow(&most, f->by_number[n]);
    for (size_t k = 0; k < f->read_count; k++) {
        grow(&most, f->reads[k].place);
        grow(&most, f->reads[k].slope);
    }
    return most;
}

bool ref_texts_create(const clmgk_ref_problem *problem, bool single, ref_texts *texts)
{
    const clmgk_attention_desc *const d = &problem->desc;
    mgk_symbol captures[CLMGK_MAX_CAPTURES];
    *texts = (ref_texts){.problem = problem, .single = single};
    if (!d->score_mod && !d->mask_mod)
        return true;
    for (int64_t c = 0; c < count_captures(d); c++)
        captures[c] = (mgk_symbol){d->captures[c].name, d->captures[c].type == CLMGK_CAPTURE_I32 ? MGK_INT : MGK_FLOAT,
                                   d->captures[c].axes};
    const mgk_formula_texts given = {{captures, (size_t)count_captures(d), d->numbers, (size_t)count_numbers(d)},
                                     d->score_mod,
                                     d->mask_mod,
                                     (d->gradients & (uint32_t)(2 * CLMGK_GRADIENT_NUMBERS - 1)) /
                                         CLMGK_GRADIENT_CAPTURE_0};
    if (mgk_formulas_make(NULL, &given, &texts->formulas, NULL) != CLMGK_OK) /* the descriptor is right: no memory */
        return false;
    texts->values = malloc(largest(&texts->formulas) * sizeof(double));
    texts->needed = malloc(largest(&texts->formulas) * sizeof(bool));
    bind_arrays(texts);
    if (texts->values && texts->needed)
        return true;
    ref_texts_free(texts);
    return false;
}

void ref_texts_free(ref_texts *texts)
{
    mgk_formulas_free(&texts->formulas);
    free(texts->values);
    free(texts->needed);
    *texts = (ref_texts){0};
}

static double evaluate(ref_texts *texts, const mgk_expression *expression, const ref_pair *pair)
{
    const clmgk_attention_desc *const d = &texts->problem->desc;
    const double names[MGK_NAMES] = {[MGK_NAME_SCORE] = pair->s,
                                     [MGK_NAME_ROW] = (double)pair->span->position,
                                     [MGK_NAME_KEY] = (double)ref_key_position(texts->problem, pair->span, pair->j),
                                     [MGK_NAME_BATCH] = (double)pair->span->sequence,
                                     [MGK_NAME_HEAD] = (double)pair->at.h,
                                     [MGK_NAME_KV_HEAD] = (double)ref_kv_head(d, pair->at.h),
                                     [MGK_NAME_COMPONENT] = (double)pair->r,
                                     [MGK_NAME_QUERIES] = (double)pair->span->queries,
                                     [MGK_NAME_KEYS] = (double)pair->span->keys};
    for (int n = 0; n < MGK_NAMES; n++)
        texts->inputs.names[n] = names[n];
    return texts->single ? mgk_evaluate_single(expression, &texts->inputs, texts->values)
                         : mgk_evaluate(expression, &texts->inputs, texts->values);
}

/* Classes beside a text agree with it. */
static bool is_block_hidden(const clmgk_ref_problem *p, const ref_pair *pair)
{
    const clmgk_attention_desc *const d = &p->desc;
    const int64_t b = d->mask_blocks_batch > 1 ? pair->at.b : 0, h = d->mask_blocks_heads > 1 ? pair->at.h : 0;
    const int64_t rows = (d->length + d->mask_block_q - 1) / d->mask_block_q;
    const int64_t columns = (d->length_k + d->mask_block_k - 1) / d->mask_block_k;
    const int64_t row = ((b * d->mask_blocks_heads + h) * rows + pair->at.i / d->mask_block_q) * columns;
    return p->mask_blocks[row + pair->j / d->mask_block_k] == 0;
}

bool ref_text_hides(ref_texts *texts, const ref_pair *pair)
{
    if (!texts->formulas.mask && texts->problem->desc.use_mask_blocks)
        return is_block_hidden(texts->problem, pair);
    return texts->formulas.mask && evaluate(texts, texts->formulas.mask, pair) == 0.0;
}

double ref_text_score(ref_texts *texts, const ref_pair *pair)
{
    return texts->formulas.score ? evaluate(texts, texts->formulas.score, pair) : pair->s;
}

double ref_text_slope(ref_texts *texts, const ref_pair *pair)
{
    if (!texts->formulas.score)
        return 1.0;
    return texts->formulas.slope ? evaluate(texts, texts->formulas.slope, pair) : 0.0;
}

void ref_text_gradients(ref_texts *texts, const ref_pair *pair, ref_text_add *add, const void *to)
{
    const mgk_formulas *const f = &texts->formulas;
    for (int n = 0; n < MGK_NUMBERS; n++) {
        if (f->by_number[n])
            add(to, CLMGK_REF_GRAD_NUMBERS, n, evaluate(texts, f->by_number[n], pair));
    }
    for (size_t k = 0; k < f->read_count; k++) {
        const mgk_read *const read = &f->reads[k];
        evaluate(texts, read->place, pair);
        const int64_t element =
            mgk_element(&read->place->nodes[read->place->count - 1], &texts->captures[read->capture], texts->values);
        add(to, (clmgk_ref_gradient)(CLMGK_REF_GRAD_CAPTURE_0 + (int)read->capture), element,
            evaluate(texts, read->slope, pair));
    }
}

int64_t ref_text_gradient_count(const clmgk_attention_desc *desc, clmgk_ref_gradient which)
{
    if (!desc->score_mod || which == CLMGK_REF_GRAD_NUMBERS)
        return desc->score_mod ? count_numbers(desc) : 0;
    const clmgk_capture *const capture = &desc->captures[which - CLMGK_REF_GRAD_CAPTURE_0];
    int64_t count = capture->name && capture->type != CLMGK_CAPTURE_I32;
    for (int axis = 0; axis < capture->axes; axis++)
        count *= capture->shape[axis];
    return count;
}

int64_t ref_text_reads_outside(ref_texts *texts, const ref_pair *pair, bool mask)
{
    const mgk_expression *const expression = mask ? texts->formulas.mask : texts->formulas.score;
    if (!expression)
        return 0;
    evaluate(texts, expression, pair);
    return (int64_t)mgk_reads_outside(expression, &texts->inputs, texts->values, texts->needed);
}

bool clmgk_ref_visible(const clmgk_ref_problem *problem, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const ref_row at = {b, h, i};
    const ref_span span = ref_span_of(problem, b, i);
    ref_texts texts;
    if (span.first > j || j >= span.end || ref_hidden(problem, at, j) || !ref_texts_create(problem, false, &texts))
        return false;
    const bool visible = !ref_text_hides(&texts, &(ref_pair){at, &span, j, 0, 0.0});
    ref_texts_free(&texts);
    return visible;
}
