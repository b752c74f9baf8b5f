#include <clmgk/clmgk.h>

/* A plan with the prior [M] and its statistics. Without gradients it has no backward pass. */
clmgk_status plan_em(clmgk_context *context, clmgk_plan **plan, clmgk_error *error)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = CLMGK_VARIANT_MGK;
    desc.heads = 4;
    desc.length = 1000;
    desc.head_size = 32;
    desc.prior_shape = CLMGK_PRIOR_M;
    desc.statistics = CLMGK_STATISTIC_NEW_PRIOR | CLMGK_STATISTIC_NLL;
    return clmgk_plan_create(context, &desc, NULL, plan, error);
}

/* Two steps of EM. args: q, k; prior, and new_prior of the same size; nll [B,H]; workspace. */
clmgk_status maximise(clmgk_plan *plan, cl_command_queue queue, clmgk_attention_args *args, clmgk_error *error)
{
    clmgk_status status = CLMGK_OK;
    for (int step = 0; step < 2 && status == CLMGK_OK; ++step) {
        status = clmgk_enqueue_statistics(plan, queue, args, 0, NULL, NULL, error);
        const clmgk_buffer old = args->prior; /* in and out change places */
        args->prior = args->new_prior;
        args->new_prior = old;
    }
    return status;
}
