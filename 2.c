#include <clmgk/clmgk.h>

/* Hard FiSH: args.mix is p [8,2], any real numbers. */
clmgk_status plan_mixed(clmgk_context *context, clmgk_plan **plan, clmgk_error *error)
{
    clmgk_attention_desc desc = CLMGK_ATTENTION_DESC_INIT;
    desc.variant = CLMGK_VARIANT_HARD_FISH;
    desc.components = 2; /* global heads, of Q and K */
    desc.heads = 8;      /* local heads, of V and O */
    desc.length = 1000;
    desc.head_size = 32;
    return clmgk_plan_create(context, &desc, NULL, plan, error);
}
