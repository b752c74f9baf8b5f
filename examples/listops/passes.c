/* SPDX-License-Identifier: Apache-2.0 */
/* The network's passes: forward and backward, optimiser, M-step. */
#include "network.h"

#include <math.h>
#include <stdlib.h>

enum { VECTOR = 16, BLOCK = 32 };

/* ---- commands ---------------------------------------------------------------------------------------------------- */

typedef union scalar {
    cl_int i;
    cl_float f;
} scalar;

#define LIST(type, ...)                                                                                                \
    sizeof((type[]){__VA_ARGS__}) / sizeof(type), (const type[])                                                       \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define ARRAYS(...)  LIST(clmgk_buffer, __VA_ARGS__)
#define SCALARS(...) LIST(scalar, __VA_ARGS__)
#define NO_SCALARS   0, NULL
#define INTEGER(value)                                                                                                 \
    {                                                                                                                  \
        .i = (cl_int)(value)                                                                                           \
    }
#define FLOAT(value)                                                                                                   \
    {                                                                                                                  \
        .f = (cl_float)(value)                                                                                         \
    }

/* Arrays come first among a kernel's arguments, each as a buffer and an offset in vectors, then numbers. */
static void launch(const network *n, int number, size_t items, size_t group, size_t arrays, const clmgk_buffer *array,
                   size_t scalars, const scalar *scalar_list)
{
    const cl_kernel kernel = n->kernel[number];
    cl_uint next = 0;
    for (size_t i = 0; i < arrays; ++i) {
        const cl_int at = (cl_int)(array[i].offset / VECTOR);
        CL(clSetKernelArg(kernel, next++, sizeof(cl_mem), &array[i].memory));
        CL(clSetKernelArg(kernel, next++, sizeof(at), &at));
    }
    for (size_t i = 0; i < scalars; ++i) {
        CL(clSetKernelArg(kernel, next++, sizeof(scalar), &scalar_list[i]));
    }
    CL(clEnqueueNDRangeKernel(n->device->queue, kernel, 1, NULL, &items, &group, 0, NULL, NULL));
}

static void multiply(const network *n, int product, clmgk_buffer a, clmgk_buffer b, clmgk_buffer c)
{
    clmgk_gemm_args args = CLMGK_GEMM_ARGS_INIT;
    args.a = a, args.b = b, args.c = c;
    args.workspace = n->product_workspace;
    TRY(clmgk_enqueue_gemm(n->product[product], n->device->queue, &args, 0, NULL, NULL, &error));
}

static clmgk_buffer value(const network *n, const parameter *p)
{
    return (clmgk_buffer){n->values.memory, p->at};
}

static clmgk_buffer gradient(const network *n, const parameter *p)
{
    return (clmgk_buffer){n->gradients.memory, p->at};
}

/* Where blocks leave their sums for the gradient of a parameter. */
static clmgk_buffer sums(const network *n, const parameter *p)
{
    return (clmgk_buffer){n->partial.memory, p->at - n->layout.summed};
}

static size_t columns(const network *n)
{
    return (n->layout.summed_end - n->layout.summed) / VECTOR;
}

static size_t rows(const network *n)
{
    return (size_t)n->settings.rows;
}

/* Rows of a sequence that are pooled, at most. */
static int32_t pooled_rows(const network *n)
{
    return n->settings.first ? 1 : n->settings.max_length;
}

/* ---- batches ----------------------------------------------------------------------------------------------------- */

void network_load(network *n, const batch *b)
{
    const size_t bytes = rows(n) * sizeof(int32_t), sequences = (size_t)n->sequences;
    int32_t *const used = allocate(sequences + 1, sizeof(int32_t));
    for (size_t i = 0; i <= sequences; ++i) {
        used[i] = b->offsets[i] < b->used ? b->offsets[i] : b->used;
    }
    device_write(n->device, n->tokens, bytes, b->tokens);
    device_write(n->device, n->positions, bytes, b->positions);
    device_write(n->device, n->offsets, (sequences + 1) * sizeof(int32_t), b->offsets);
    device_write(n->device, n->used_offsets, (sequences + 1) * sizeof(int32_t), used);
    device_write(n->device, n->answers, sequences * sizeof(int32_t), b->answers);
    n->count = b->count;
    free(used);
}

score network_score(network *n)
{
    const size_t sequences = (size_t)n->sequences;
    score s = {.count = n->count};
    device_read(n->device, n->results, 2 * sequences * sizeof(float), n->host_results);
    for (size_t i = 0; i < sequences; ++i) {
        s.loss += (double)n->host_results[2 * i];
        s.right += n->host_results[2 * i + 1] > 0.0F;
    }
    return s;
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void feed_forward(const network *n, const encoder_layer *layer)
{
    launch(n, KERNEL_norm, rows(n), BLOCK,
           ARRAYS(layer->r, value(n, layer->gain), value(n, layer->bias), layer->normalised, layer->statistics,
                  value(n, layer->b2), layer->next),
           SCALARS(INTEGER(1)));
    multiply(n, PRODUCT_HIDDEN, layer->normalised, value(n, layer->w1), layer->hidden);
    launch(n, KERNEL_gelu, rows(n), BLOCK, ARRAYS(layer->hidden, value(n, layer->b1), layer->a), NO_SCALARS);
    multiply(n, PRODUCT_NEXT, layer->a, value(n, layer->w2), layer->next);
}

void network_forward(network *n, uint64_t seed)
{
    const clmgk_buffer none = {NULL, 0};
    const int32_t last = n->settings.layers - 1;
    launch(n, KERNEL_embed, rows(n), BLOCK,
           ARRAYS(n->tokens, n->positions, value(n, n->words), value(n, n->places), n->x), NO_SCALARS);
    for (int32_t i = 0; i <= last; ++i) {
        encoder_layer *const layer = &n->layer[i];
        layer->attention.seed = random_bits(seed, (uint64_t)i);
        TRY(clmgk_enqueue_layer_forward(n->attention_layer, n->device->queue, &layer->args, 0, NULL, NULL, &error));
        feed_forward(n, layer);
    }
    launch(n, KERNEL_norm, rows(n), BLOCK,
           ARRAYS(n->layer[last].next, value(n, n->last_gain), value(n, n->last_bias), n->y, n->last_statistics, none,
                  none),
           SCALARS(INTEGER(0)));
    launch(n, KERNEL_pool, (size_t)n->sequences, 1, ARRAYS(n->offsets, n->y, n->pooled),
           SCALARS(INTEGER(pooled_rows(n))));
    launch(n, KERNEL_classify, (size_t)n->sequences, 1,
           ARRAYS(n->pooled, value(n, n->w_class), value(n, n->b_class), n->answers, n->results, n->dlogits),
           SCALARS(FLOAT(1.0 / (n->count > 0 ? n->count : 1))));
    CL(clFlush(n->device->queue));
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* n->gradient is that of next = r + b_2 + a W_2^T, and becomes that of r. */
static void feed_forward_backward(const network *n, const encoder_layer *layer)
{
    const size_t blocks = rows(n) / BLOCK;
    multiply(n, PRODUCT_GRAD_W2, n->gradient, layer->a, gradient(n, layer->w2));
    multiply(n, PRODUCT_GRAD_A, n->gradient, value(n, layer->w2), n->gradient_hidden);
    launch(n, KERNEL_gelu_backward, blocks, 1,
           ARRAYS(layer->hidden, value(n, layer->b1), n->gradient_hidden, sums(n, layer->b1)),
           SCALARS(INTEGER(columns(n))));
    multiply(n, PRODUCT_GRAD_W1, n->gradient_hidden, layer->normalised, gradient(n, layer->w1));
    multiply(n, PRODUCT_GRAD_N, n->gradient_hidden, value(n, layer->w1), n->gradient_norm);
    launch(n, KERNEL_norm_backward, blocks, 1,
           ARRAYS(n->gradient_norm, layer->r, layer->statistics, value(n, layer->gain), n->gradient,
                  sums(n, layer->gain), sums(n, layer->bias), sums(n, layer->b2)),
           SCALARS(INTEGER(columns(n)), INTEGER(1)));
}

void network_backward(network *n, uint64_t seed)
{
    const size_t blocks = rows(n) / BLOCK, sequences = (size_t)n->sequences;
    const clmgk_buffer none = {NULL, 0};
    const int32_t last = n->settings.layers - 1;
    launch(n, KERNEL_classify_backward, CLASSES, 1,
           ARRAYS(n->pooled, n->dlogits, gradient(n, n->w_class), gradient(n, n->b_class)),
           SCALARS(INTEGER(sequences)));
    launch(n, KERNEL_pool_backward, sequences, 1,
           ARRAYS(n->offsets, value(n, n->w_class), n->dlogits, n->gradient_norm), SCALARS(INTEGER(pooled_rows(n))));
    launch(n, KERNEL_norm_backward, blocks, 1,
           ARRAYS(n->gradient_norm, n->layer[last].next, n->last_statistics, value(n, n->last_gain), n->gradient,
                  sums(n, n->last_gain), sums(n, n->last_bias), none),
           SCALARS(INTEGER(columns(n)), INTEGER(0)));
    for (int32_t i = last; i >= 0; --i) {
        encoder_layer *const layer = &n->layer[i];
        feed_forward_backward(n, layer);
        layer->attention.seed = random_bits(seed, (uint64_t)i);
        TRY(clmgk_enqueue_layer_backward(n->attention_layer, n->device->queue, &layer->args, 0, NULL, NULL, &error));
    }
    launch(n, KERNEL_embed_words_backward, blocks, 1, ARRAYS(n->tokens, n->gradient, sums(n, n->words)),
           SCALARS(INTEGER(columns(n))));
    launch(n, KERNEL_embed_places_backward, (size_t)n->settings.max_length, 1,
           ARRAYS(n->offsets, n->gradient, gradient(n, n->places)), SCALARS(INTEGER(sequences)));
    launch(n, KERNEL_add_partial, columns(n), 1, ARRAYS(n->partial, gradient(n, n->words)),
           SCALARS(INTEGER(blocks), INTEGER(columns(n))));
    CL(clFlush(n->device->queue));
}

/* ---- learning ---------------------------------------------------------------------------------------------------- */

void network_adamw(network *n, int64_t step, float rate, float decay)
{
    const double t = (double)step;
    launch(n, KERNEL_adamw, n->layout.count / VECTOR, VECTOR, ARRAYS(n->values, n->gradients, n->mean, n->square),
           SCALARS(INTEGER(n->layout.decays / VECTOR), INTEGER(n->layout.floored / VECTOR), FLOAT(rate), FLOAT(decay),
                   FLOAT(1.0 / (1.0 - pow(0.9, t))), FLOAT(1.0 / (1.0 - pow(0.99, t))), FLOAT(1e-3)));
    CL(clFlush(n->device->queue));
}

void network_project(network *n, int32_t layer)
{
    const encoder_layer *const it = &n->layer[layer];
    const clmgk_buffer none = {NULL, 0};
    launch(n, KERNEL_norm, rows(n), BLOCK,
           ARRAYS(it->args.x, value(n, it->norm_gain), value(n, it->norm_bias), n->gradient_norm, n->last_statistics,
                  none, none),
           SCALARS(INTEGER(0)));
    multiply(n, PRODUCT_QKV, n->gradient_norm, value(n, it->weight_qkv), n->qkv);
    launch(n, KERNEL_add_bias, rows(n), BLOCK, ARRAYS(n->qkv, value(n, it->bias_qkv)),
           SCALARS(INTEGER(n->qkv_columns / VECTOR)));
}

void network_maximise(network *n)
{
    for (int32_t i = 0; i < n->settings.layers; ++i) {
        const parameter *const prior = n->layer[i].prior;
        clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
        network_project(n, i);
        args.q = n->qkv;
        args.k = (clmgk_buffer){n->qkv.memory, (uint64_t)n->q_columns};
        args.prior = value(n, prior);
        args.shift = n->layer[i].attention.shift;
        args.offsets = n->used_offsets; /* the rest of the rows does not count */
        args.new_prior = n->new_prior;
        args.workspace = n->maximisation_workspace;
        TRY(clmgk_enqueue_statistics(n->maximisation, n->device->queue, &args, 0, NULL, NULL, &error));
        CL(clEnqueueCopyBuffer(n->device->queue, n->new_prior.memory, n->values.memory, 0, prior->at * sizeof(float),
                               prior->count * sizeof(float), 0, NULL, NULL));
    }
}

/* ---- attention alone --------------------------------------------------------------------------------------------- */

static clmgk_buffer own(attention_timer *t, network *n, size_t bytes)
{
    const clmgk_buffer buffer = device_buffer(n->device, bytes);
    t->owned[t->owned_count++] = buffer;
    return buffer;
}

static clmgk_buffer behind(clmgk_buffer start, int64_t elements)
{
    return (clmgk_buffer){start.memory, start.offset + (uint64_t)elements};
}

void attention_timer_open(attention_timer *t, network *n)
{
    const bool linear = (clmgk_variant_traits(n->attention.variant) & CLMGK_TRAIT_LINEAR) != 0;
    const clmgk_array kept = linear ? CLMGK_ARRAY_DENOMINATOR : CLMGK_ARRAY_LSE;
    *t = (attention_timer){.args = n->layer[0].attention}; /* its parameters */
    TRY(clmgk_plan_create(n->device->clmgk, &n->attention, NULL, &t->plan, &error));
    t->args.q = n->qkv;
    t->args.k = behind(n->qkv, n->q_columns);
    t->args.v = behind(n->qkv, n->q_columns + n->k_columns);
    t->args.grad_q = own(t, n, rows(n) * (size_t)n->qkv_columns * sizeof(float));
    t->args.grad_k = behind(t->args.grad_q, n->q_columns);
    t->args.grad_v = behind(t->args.grad_q, n->q_columns + n->k_columns);
    t->args.o = own(t, n, (size_t)clmgk_array_bytes(&n->attention, CLMGK_ARRAY_O));
    *clmgk_array_buffer(&t->args, kept) = own(t, n, (size_t)clmgk_array_bytes(&n->attention, kept));
    t->args.workspace = own(t, n, clmgk_plan_workspace_size(t->plan));
}

double attention_timer_run(attention_timer *t, network *n)
{
    t->args.grad_o = t->args.o; /* any numbers: O's own */
    CL(clFinish(n->device->queue));
    const double start = now_seconds();
    TRY(clmgk_enqueue_forward(t->plan, n->device->queue, &t->args, 0, NULL, NULL, &error));
    TRY(clmgk_enqueue_backward(t->plan, n->device->queue, &t->args, 0, NULL, NULL, &error));
    CL(clFinish(n->device->queue));
    return now_seconds() - start;
}

void attention_timer_close(attention_timer *t)
{
    for (size_t i = 0; i < t->owned_count; ++i) {
        device_release(t->owned[i]);
    }
    clmgk_plan_release(t->plan);
}
