/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Forward and backward pass on a queue and buffers of your own.
 *
 * The loss is sum(dO * O), so its gradient with respect to O is dO. The program compares dQ with the change of the loss
 * when Q moves a little along it.
 */
#include "example.h"

enum { HEADS = 4, LENGTH = 64, SIZE = 16, COMPONENTS = 2, COUNT = HEADS * LENGTH * SIZE };

/* The loss with these queries. O, L and everything else stay on the device. */
static double loss_at(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args, const float *q,
                      const float *grad_o)
{
    static float o[COUNT];
    clmgk_error error = {0};
    cl_event written;
    cl_event done;
    /* No call waits for the device; events carry the order, here from the copy to the pass and on to the result. */
    CL(clEnqueueWriteBuffer(queue, args->q.memory, CL_FALSE, 0, sizeof(o), q, 0, NULL, &written));
    TRY(clmgk_enqueue_forward(plan, queue, args, 1, &written, &done, &error));
    CL(clEnqueueReadBuffer(queue, args->o.memory, CL_TRUE, 0, sizeof(o), o, 1, &done, NULL));
    CL(clReleaseEvent(written));
    CL(clReleaseEvent(done));
    double loss = 0.0;
    for (size_t i = 0; i < COUNT; ++i) {
        loss += (double)grad_o[i] * o[i];
    }
    return loss;
}

int main(void)
{
    static float q[COUNT], kv[COUNT * (COMPONENTS + 1)], grad_o[COUNT], grad_q[COUNT];
    fill(q, COUNT, 1);
    fill(kv, sizeof(kv) / sizeof(*kv), 2);
    fill(grad_o, COUNT, 3);

    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT; /* zero, the default, everywhere */
    desc.variant = CLMGK_VARIANT_MGK;
    desc.components = COMPONENTS;
    desc.heads = HEADS;
    desc.length = LENGTH;
    desc.head_size = SIZE;
    desc.causal = 1;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V;

    clmgk_error error = {0};
    const device d = open_device();
    const cl_command_queue queue = open_queue(d);
    clmgk_plan *plan = NULL;
    TRY(clmgk_plan_create(d.clmgk, &desc, NULL, &plan, &error)); /* the only call that compiles */

    clmgk_attention_args args = CLMGK_ATTENTION_ARGS_INIT;
    args.q = new_buffer(d, sizeof(q), NULL);
    args.k = new_buffer(d, sizeof(kv), kv); /* K [H,M,N,D] and V [H,N,D] share a buffer: */
    args.v = (clmgk_buffer){args.k.memory, (uint64_t)COUNT * COMPONENTS}; /* an offset is in elements */
    args.o = new_buffer(d, sizeof(q), NULL);
    args.lse = new_buffer(d, sizeof(float) * HEADS * LENGTH, NULL); /* the backward pass reads O and L */
    args.grad_o = new_buffer(d, sizeof(grad_o), grad_o);
    args.grad_q = new_buffer(d, sizeof(q), NULL);
    args.grad_k = new_buffer(d, sizeof(q) * COMPONENTS, NULL);
    args.grad_v = new_buffer(d, sizeof(q), NULL);
    args.workspace = new_workspace(d, plan);

    (void)loss_at(plan, queue, &args, q, grad_o);
    TRY(clmgk_enqueue_backward(plan, queue, &args, 0, NULL, NULL, &error)); /* an ordered queue needs no event */
    read_buffer(queue, args.grad_q, sizeof(grad_q), grad_q);

    const float h = 0.05F;
    static float ahead[COUNT], behind[COUNT];
    double slope = 0.0;
    for (size_t i = 0; i < COUNT; ++i) {
        slope += (double)grad_q[i] * grad_q[i];
        ahead[i] = q[i] + h * grad_q[i];
        behind[i] = q[i] - h * grad_q[i];
    }
    const double difference =
        (loss_at(plan, queue, &args, ahead, grad_o) - loss_at(plan, queue, &args, behind, grad_o)) / (2.0 * (double)h);
    printf("change of the loss along dQ: %.5f, by differences: %.5f; workspace: %zu bytes\n", slope, difference,
           clmgk_plan_workspace_size(plan));
    EXPECT(fabs(slope - difference) < 1e-3 * fabs(slope));

    args.v.memory = NULL; /* the same as args.k's */
    release_buffers(&args);
    clmgk_plan_release(plan);
    CL(clReleaseCommandQueue(queue));
    close_device(d);
    return 0;
}
