/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One computation of a layer: exact, or by the plain formula in one way. One text serves both, all values are doubles:
 * those of the plain formula are numbers that f32 or the storage type can hold.
 */
#ifndef CLMGK_REFERENCE_LAYER_PASS_H
#define CLMGK_REFERENCE_LAYER_PASS_H

#include "reference/gradients.h"
#include "reference/layer.h"

typedef enum layer_side { LAYER_Q, LAYER_K, LAYER_V, LAYER_SIDES } layer_side;

/* Q, K or V, on the way from its input to the attention, and its gradient on the way back. */
typedef struct layer_stream {
    layer_side side;
    layer_side source;   /* whose input it has: Q's y, K's x2, V's x3 */
    int64_t tokens;      /* of a batch, projected by this call */
    int64_t keys;        /* of a batch, in the attention: the same, or the cache's */
    int64_t columns;     /* of all heads */
    int64_t size;        /* of a head */
    int64_t inputs;      /* numbers of a token: W, W2 or W3 */
    const double *input; /* [B,tokens,inputs] */
    const double *weight, *bias, *gain, *cache;
    double *raw;                                 /* [B,tokens,columns]: with the bias */
    double *done;                                /* likewise: normalised and rotated */
    double *heads;                               /* [B,columns/size,keys,size] */
    double *grad_heads;                          /* likewise */
    double *grad;                                /* [B,tokens,columns]: of done, then of raw */
    double *grad_weight, *grad_bias, *grad_gain; /* in gradient[] */
    double *grad_input;                          /* [B,tokens,inputs], shared by the streams of one input */
} layer_stream;

enum { LAYER_MOST_ARRAYS = 96 };

typedef struct layer_pass {
    const clmgk_ref_layer *layer;
    bool plain;
    ref_way way;
    double *array[LAYER_MOST_ARRAYS]; /* to be freed */
    size_t arrays;
    bool failed; /* no memory */

    clmgk_ref_problem attention; /* with Q, K, V and dO of this pass */
    layer_stream stream[LAYER_SIDES];
    int64_t rows; /* B N */
    int64_t width, o_columns;
    double *y;         /* [rows,W]: normalised x */
    double *y_scale;   /* [rows,2]: mean and 1 / deviation */
    double *o_heads;   /* [B,H,N,E] */
    double *o;         /* [rows,o_columns] */
    double *sum;       /* [rows,W]: R */
    double *sum_scale; /* [rows,2] */
    double *out;       /* [rows,W] */
    double *output[CLMGK_REF_LAYER_OUTPUTS];
    double *state[CLMGK_REF_STATES];

    double *grad_sum;     /* [rows,W]: dR */
    double *grad_y;       /* [rows,W] */
    double *grad_o_heads; /* [B,H,N,E] */
    double *gradient[CLMGK_REF_LAYER_GRADIENTS];
    double *of_attention[CLMGK_REF_GRADIENTS];
    double *floor[CLMGK_REF_GRADIENTS]; /* exact */
} layer_pass;

/* Axes and streams; `way` NULL: exact. */
void ref_layer_open(const clmgk_ref_layer *layer, const ref_way *way, layer_pass *pass);
void ref_layer_close(layer_pass *pass);

int64_t ref_layer_gradient_count(const clmgk_ref_layer *layer, clmgk_ref_layer_gradient which);

/* Zeroed room; NULL, and `failed`, where there is none. */
double *ref_layer_room(layer_pass *pass, int64_t count);

/* `m_exact`: the scales in which a plain pass gives the new state. False: out of memory. */
bool ref_layer_forward(layer_pass *pass, const double *m_exact);
bool ref_layer_backward(layer_pass *pass);

int64_t ref_layer_position(const layer_pass *pass, const layer_stream *stream, int64_t b, int64_t n);

/* ---- arithmetic (layer_math.c) ----------------------------------------------------------------------------------- */

/* Rounded to f32, to the storage type; the exact pass rounds nothing. */
double ref_layer_single(const layer_pass *pass, double x);
double ref_layer_stored(const layer_pass *pass, double x);

/* A matrix: element (i,j) is values[i row + j column]. */
typedef struct layer_matrix {
    const double *values;
    int64_t row, column;
} layer_matrix;

/* c[rows,columns] = a b, or c + a b with `add`, stored. */
void ref_layer_product(const layer_pass *pass, int64_t rows, int64_t columns, int64_t inner, layer_matrix a,
                       layer_matrix b, bool add, double *c);

/* sums[columns] = the sum of the rows of x. */
void ref_layer_sum_rows(const layer_pass *pass, int64_t rows, int64_t columns, const double *x, double *sums);

/* Layer normalisation of the rows of x[rows,W] with norm_gain and norm_bias, and its gradients, not stored. */
void ref_layer_normalise(layer_pass *pass, const double *x, double *scale, double *to);
void ref_layer_normalise_back(layer_pass *pass, const double *x, const double *scale, const double *grad, double *to);

/* RMS normalisation and rotation of all heads of a stream, from raw to done, and from the gradient of done to that of
 * raw, and dgain. */
void ref_layer_rotate(layer_pass *pass, const layer_stream *stream);
void ref_layer_rotate_back(layer_pass *pass, const layer_stream *stream);

#endif
