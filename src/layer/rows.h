/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layer's row kernels. Each function appends its steps to a list. The numbers of buffers in the list's calls are
 * MGK_NORM_... or MGK_HEADS_... below, so a list holds steps of one of the two kinds. Omitting an optional buffer from
 * a call omits its part of the operation. Offsets are in elements. Statistics and all sums are f32, in a fixed order.
 *
 * In place: where a function says so, arrays of the same shape may be the same memory (not merely overlap).
 */
#ifndef MGK_LAYER_ROWS_H
#define MGK_LAYER_ROWS_H

#include "clmgk/attention.h"
#include "clmgk/layer.h"
#include "device/device.h"
#include "layer/args.clh"
#include "operation/step.h"

#define MGK_NORM_NUMBER(NAME, name, type, needed)  MGK_NORM_##NAME,
#define MGK_HEADS_NUMBER(NAME, name, type, needed) MGK_HEADS_##NAME,
enum { MGK_NORM_BUFFERS(MGK_NORM_NUMBER) MGK_NORM_COUNT };
enum { MGK_HEADS_BUFFERS(MGK_HEADS_NUMBER) MGK_HEADS_COUNT };

/* The list that steps are appended to, their device, and the type of all `storage`. Partial sums are regions of the
 * list's workspace (steps->workspace_bytes grows), which is the buffer WORKSPACE. */
typedef struct mgk_rows_list {
    mgk_steps *steps;
    const mgk_device_facts *facts;
    clmgk_dtype dtype;
} mgk_rows_list;

/* ---- rows of the model's width --------------------------------------------------------------------------------- */

/* [rows, width], dense. Row number r is token r % length of batch r / length. */
typedef struct mgk_norm_rows {
    int64_t rows, length, width;
    double dropout; /* p; drawn from the call's seed */
    double epsilon;
} mgk_norm_rows;

/*
 * One kernel for the normalisation before the projections and for all that follows the output projection:
 *
 *     v = dropout(IN + BIAS) + RESIDUAL      BIAS [width], RESIDUAL, if given
 *     SUM = v                                if given
 *     OUT = LN(v) = (v - mean) / sqrt(variance + epsilon) GAIN + OFFSET, and STATISTICS = mean, 1 / sqrt(...) [rows,2],
 *           if given; OUT = v without GAIN   (GAIN and OFFSET are given together)
 *
 * IN, SUM and OUT may be the same memory, but SUM is not OUT with GAIN. With GAIN and anything to add or to drop, v is
 * rounded to storage before it is normalised. Squared deviations must be within f32: |v - mean| < 10^18. The mean of a
 * row of equal elements is exactly the element, so OUT is OFFSET, and with width 1 the gradient is 0.
 */
void mgk_rows_norm(const mgk_rows_list *list, const mgk_norm_rows *rows);

/* The sums over rows that mgk_rows_norm_backward computes. */
typedef struct mgk_norm_wants {
    bool gain, offset; /* GRAD_GAIN, GRAD_OFFSET: of the normalisation */
    bool bias;         /* GRAD_BIAS: column sums of the dropped gradient: of the output projection's bias */
} mgk_norm_wants;

/*
 *     g = GRADIENT;  with GAIN: through LN(IN), from STATISTICS  (sums: GRAD_GAIN, GRAD_OFFSET)
 *     g = g + RESIDUAL                       if given: a gradient that bypasses the normalisation
 *     OUT = [OUT +] g                        if given; added with the call's `added`
 *     DROPPED = dropout's derivative of g    if given  (sums: GRAD_BIAS; without dropout the sums of g)
 *
 * OUT may be GRADIENT's or RESIDUAL's memory, as may DROPPED. The sums are [width] and may be `added`.
 */
void mgk_rows_norm_backward(const mgk_rows_list *list, const mgk_norm_rows *rows, const mgk_norm_wants *want);

/* ---- rows of heads --------------------------------------------------------------------------------------------- */

/* Q, K or V: element (row, h, e) is at row ld + h size + e, in IN; with ld_out in OUT. heads 0: not in this call. */
typedef struct mgk_rows_heads {
    int64_t heads, size, ld, ld_out;
} mgk_rows_heads;

/*
 * Rows that all parts have. Row r is token n = r % length of batch r / length. Its position, for `rotary`, is
 *
 *     n                                      without lengths and sequences
 *     LENGTHS[b] - length + n                if the call gives LENGTHS
 *     n - the begin of its sequence          sequences > 0, from OFFSETS [sequences + 1], 0 for a negative one
 *
 * Turns are right to 2e-7 for positions up to 2^31.
 */
typedef struct mgk_heads_rows {
    int64_t rows, length;
    mgk_rows_heads part[3]; /* Q, K, V */
    clmgk_rotary rotary;    /* of Q and K, whose sizes are equal */
    int64_t rotary_size;    /* P <= 512 */
    double rotary_base;     /* >= 1 */
    double epsilon;         /* of the RMS normalisation */
    int64_t sequences;
    int64_t capacity; /* C > 0: OUT_K and OUT_V are caches [batches,heads,C,size], for any ld_out: a token goes to the
                         row of its position; tokens with positions outside 0 .. C - 1 are left out. Needs LENGTHS */
    clmgk_storage cache_k, cache_v; /* their types; of blocks, [..,size / 32] */
    clmgk_layout scale_k, scale_v;  /* of SCALE_K and SCALE_V, if given: scales of the caches' rows. Those of integers
                                       are written, others read */
    int64_t components;             /* of K: its heads are [heads / components, components]; 0 is 1 */
    int64_t page_size, pages, table_pages; /* page_size > 0: the caches are in pages [pages,heads,page_size,size], by
                                              PAGE_TABLE [batches,table_pages]; tokens without a page are left out */
    bool keep_biased; /* Q, K, V keep their values plus the bias, if given, for mgk_rows_heads_backward */
} mgk_heads_rows;

/*
 *     x = X + BIAS_X                                          BIAS_X [heads size], if given
 *     x = x GAIN_X / sqrt(mean of squares + epsilon)          Q, K: each head; GAIN_X [size], if given
 *     OUT_X = x rotated by its position                       Q, K: with rotary
 *
 * OUT_X may be X's memory, with ld_out = ld.
 */
void mgk_rows_heads_forward(const mgk_rows_list *list, const mgk_heads_rows *rows);

/* The sums over rows that mgk_rows_heads_backward computes: GRAD_BIAS_X [heads size], GRAD_GAIN_X [size]. */
typedef struct mgk_heads_wants {
    bool bias[3]; /* Q, K, V */
    bool gain[2]; /* Q, K */
} mgk_heads_wants;

/*
 * In place: OUT_X (ld_out) holds the gradient of the forward kernel's result, and receives the gradient of X + BIAS_X.
 * With GAIN_X, X (ld) holds the numbers before the normalisation, with the bias (keep_biased). Without gains X is not
 * read and need not be given. BIAS_X is not read. Sums may be `added`. No cache.
 */
void mgk_rows_heads_backward(const mgk_rows_list *list, const mgk_heads_rows *rows, const mgk_heads_wants *want);

#endif
