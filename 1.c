#include <clmgk/clmgk.h>

/* Once: MGK with two keys per position and a learned prior [M]. */
clmgk_status plan_training(clmgk_context *context, clmgk_plan **plan, clmgk_error *error)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = CLMGK_VARIANT_MGK;
    desc.heads = 4;
    desc.length = 1000;
    desc.head_size = 32;
    desc.prior_shape = CLMGK_PRIOR_M;
    desc.gradients = CLMGK_GRADIENT_Q | CLMGK_GRADIENT_K | CLMGK_GRADIENT_V | CLMGK_GRADIENT_PRIOR;
    return clmgk_plan_create(context, &desc, NULL, plan, error);
}

/* Each step, with buffers in args: q, k, v, prior; o and lse (L), written forward, read backward; grad_o (dO); grad_q,
 * grad_k, grad_v, grad_prior; workspace, of clmgk_plan_workspace_size(plan) bytes. */
clmgk_status train(clmgk_plan *plan, cl_command_queue queue, const clmgk_attention_args *args, clmgk_error *error)
{
    clmgk_status status = clmgk_enqueue_forward(plan, queue, args, 0, NULL, NULL, error);
    if (status == CLMGK_OK) { /* before this, on an in-order queue: your kernels from O to dO */
        status = clmgk_enqueue_backward(plan, queue, args, 0, NULL, NULL, error);
    }
    return status;
}
