/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Training: MGK attention learns a function. Each key is two Gaussians, whose shares in the mixture, the prior, are
 * learned as well.
 *
 * Queries are points x of the plane. Keys, values and prior are parameters; O, a mean of the values that are near in
 * the sense of the keys, is to become y(x). The gradient step is made on the host; yours may be a kernel.
 */
#include "example.h"

enum { POINTS = 128, KEYS = 16, SIZE = 2, COMPONENTS = 2, STEPS = 200 };
enum { X_COUNT = POINTS * SIZE, K_COUNT = COMPONENTS * KEYS * SIZE };

/* An array that is trained: its values here and on the device, and the place of its gradient. */
typedef struct parameter {
    float *values;
    size_t count;
    float rate;
    clmgk_buffer *buffer;
    clmgk_buffer *gradient;
} parameter;

static void make_parameter(device d, const parameter *p)
{
    *p->buffer = new_buffer(d, p->count * sizeof(float), p->values);
    *p->gradient = new_buffer(d, p->count * sizeof(float), NULL);
}

static void descend(cl_command_queue queue, const parameter *p)
{
    float gradient[K_COUNT];
    read_buffer(queue, *p->gradient, p->count * sizeof(float), gradient);
    for (size_t i = 0; i < p->count; ++i) {
        p->values[i] -= p->rate * gradient[i];
    }
}

/* Mean of (O - y)^2, and its gradient in grad_o. */
static double compare(const float *o, const float *y, float *grad_o)
{
    double loss = 0.0;
    for (size_t i = 0; i < POINTS; ++i) {
        loss += (double)(o[i] - y[i]) * (o[i] - y[i]) / POINTS;
        grad_o[i] = 2.0F * (o[i] - y[i]) / POINTS;
    }
    return loss;
}

int main(void)
{
    static float x[X_COUNT], y[POINTS], o[POINTS], grad_o[POINTS];
    float keys[K_COUNT], values[KEYS], prior[COMPONENTS] = {0.5F, 0.5F};
    fill(x, X_COUNT, 1);
    fill(keys, K_COUNT, 2);
    fill(values, KEYS, 3);
    for (size_t i = 0; i < POINTS; ++i) {
        y[i] = sinf(3.0F * x[2 * i]) * x[2 * i + 1];
    }

    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT; /* batch, heads: 1 */
    desc.variant = CLMGK_VARIANT_MGK;
    desc.components = COMPONENTS;
    desc.length = POINTS;
    desc.length_k = KEYS;
    desc.head_size = SIZE;
    desc.value_size = 1;
    desc.variance = 0.05;
    desc.prior_shape = CLMGK_PRIOR_M;
    desc.gradients = CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR; /* not of the points */

    clmgk_error error = {0};
    const device d = open_device();
    const cl_command_queue queue = open_queue(d);
    clmgk_plan *plan = NULL;
    TRY(clmgk_plan_create(d.clmgk, &desc, NULL, &plan, &error));

    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    const parameter parameters[] = {{keys, K_COUNT, 0.3F, &args.k, &args.grad_k},
                                    {values, KEYS, 3.0F, &args.v, &args.grad_v},
                                    {prior, COMPONENTS, 0.3F, &args.prior, &args.grad_prior}};
    for (size_t i = 0; i < 3; ++i) {
        make_parameter(d, &parameters[i]);
    }
    args.q = new_buffer(d, sizeof(x), x);
    args.o = new_buffer(d, sizeof(o), NULL);
    args.lse = new_buffer(d, sizeof(float) * POINTS, NULL); /* the forward pass leaves L for the backward pass */
    args.grad_o = new_buffer(d, sizeof(grad_o), NULL);
    args.workspace = new_workspace(d, plan);

    double first = 0.0;
    double loss = 0.0;
    for (int step = 0; step < STEPS; ++step) {
        TRY(clmgk_enqueue_forward(plan, queue, &args, 0, NULL, NULL, &error));
        read_buffer(queue, args.o, sizeof(o), o);
        loss = compare(o, y, grad_o);
        first = step == 0 ? loss : first;
        write_buffer(queue, args.grad_o, 0, sizeof(grad_o), grad_o);
        TRY(clmgk_enqueue_backward(plan, queue, &args, 0, NULL, NULL, &error));
        for (size_t i = 0; i < 3; ++i) {
            descend(queue, &parameters[i]);
        }
        for (size_t r = 0; r < COMPONENTS; ++r) { /* a prior may not be negative; it need not sum to one */
            prior[r] = fmaxf(prior[r], 1e-3F);
        }
        for (size_t i = 0; i < 3; ++i) {
            write_buffer(queue, *parameters[i].buffer, 0, parameters[i].count * sizeof(float), parameters[i].values);
        }
    }
    printf("loss after %d steps: %.5f, at first %.5f; prior %.3f %.3f\n", STEPS, loss, first, (double)prior[0],
           (double)prior[1]);
    EXPECT(loss < 0.01 * first);

    release_buffers(&args);
    clmgk_plan_release(plan);
    CL(clReleaseCommandQueue(queue));
    close_device(d);
    return 0;
}
