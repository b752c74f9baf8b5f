/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A family of variants, as a plan uses it. To add a variant of an existing family, extend the family's file and add a
 * line to CLMGK_VARIANT_LIST; to add a family, write its folder and add a line to CLMGK_FAMILY_LIST.
 */
#ifndef MGK_FAMILY_H
#define MGK_FAMILY_H

#include "attention/args.clh"
#include "attention/core/arrays.h"
#include "engine/engine.h"
#include "operation/step.h"

/* A call's buffers are its arrays. */
_Static_assert((int)CLMGK_ARRAYS <= MGK_CALL_BUFFERS, "arrays of a call");
_Static_assert((int)CLMGK_ARRAY_GRAD_NUMBERS < 64, "gradients, which may be added to their arrays");

/* The table of captured arrays, a buffer of the plan. */
enum { CLMGK_ARRAY_CAPTURES = MGK_CALL_CONSTANTS };

/* A line of a kernel's list of buffers, for `flags` in scope. */
#define MGK_BUFFER(NAME, name, type, needed) {CLMGK_ARRAY_##NAME, needed},

/* Sets a step's arguments, and the buffers of its kernel's list that the flags need. */
typedef void mgk_binding(const mgk_flags *flags, const void *args, size_t args_bytes, mgk_step *step);

/* Defines such a function, of this name, for a list. */
#define MGK_BINDING(function, LIST)                                                                                    \
    static void function(const mgk_flags *flags, const void *args, size_t args_bytes, mgk_step *step)                  \
    {                                                                                                                  \
        const mgk_step_buffer list[] = {LIST(MGK_BUFFER)};                                                             \
        (void)flags;                                                                                                   \
        mgk_step_bind(step, args, args_bytes, list, MGK_COUNT(list));                                                  \
    }

/* A descriptor's score and mask, as kernels get them. */
typedef struct mgk_mod_texts {
    const char *code;                 /* OpenCL C of cl/attention/mods_text.clh */
    const char *gradient_code;        /* of the kernel that computes gradients of numbers and captured arrays */
    int reads;                        /* of captured arrays with gradients, in that kernel */
    const char *mask_code;            /* of cl/attention/mask_text.clh */
    bool mask_reads;                  /* the mask reads captured arrays */
    bool mask_of_batch, mask_of_head; /* it depends on them */
    mgk_capture capture[CLMGK_MAX_CAPTURES];
    mgk_constants captures; /* the same, on the device */
} mgk_mod_texts;

/* The classes of blocks of pairs that a pass's kernels read (core/mask.h). */
typedef struct mgk_mask_classes {
    bool used;
    bool own;          /* the pass's first kernel that reads them makes them before */
    bool begun;        /* that one was added */
    int64_t groups;    /* of it, that make them; 0: there are too few blocks */
    clmgk_array array; /* MASK_BLOCKS, or the workspace */
    mgk_mask_place place;
} mgk_mask_classes;

/* A pass; 0 steps: the plan can't do it. */
typedef struct mgk_pass_plan {
    const mgk_mod_texts *mods; /* NULL: the descriptor has no texts */
    bool of_call;              /* its steps have keys, but no options: no memory is allocated */
    mgk_mask_classes classes;

    mgk_tunables tunables; /* in use by the main kernel */
    mgk_block block;       /* of the main kernel; threads = 0: it has none */
    mgk_steps steps;
} mgk_pass_plan;

/* attention/core/attention.h */
struct mgk_attention_request;
struct mgk_attention_traits;

typedef struct mgk_family {
    const char *name;

    /* Checks the family's part of a descriptor, whose axes and strides are valid, and fills in defaults of score and
     * components. */
    clmgk_status (*resolve)(clmgk_attention_desc *desc, clmgk_error *error);

    /* Adds the family's compile-time traits of a problem to the common ones; sets the flags for them. */
    void (*add_traits)(const clmgk_attention_desc *desc, struct mgk_attention_traits *traits);
    void (*set_flags)(const struct mgk_attention_request *request, mgk_flags *flags);

    /* For each pass (NULL: the family lacks it, UNSUPPORTED): chooses parameters and fills `plan` (all zero except the
     * texts' allocators) for the request. UNSUPPORTED, with the reason, if the engine does not fit on this device or
     * tuned values would exceed the limit of the workspace. The caller frees the steps' options, also after a failure.
     */
    clmgk_status (*plan[CLMGK_PASSES])(const struct mgk_attention_request *request, mgk_pass_plan *plan,
                                       clmgk_error *error);

    /* The sums that forward and backward pass of a problem must round alike: beyond having one engine, as all passes of
     * a plan do, they agree on the engine's sum_tunables for these. */
    mgk_sums (*sums)(const clmgk_attention_desc *desc);

    /* Appends fields to the exact part of a tuning key. NULL: none. */
    void (*add_to_key)(const clmgk_attention_desc *desc, char *exact, size_t size);

    const mgk_added_tunables *added; /* to the engines' parameters; NULL: none */
    bool grouped_heads;              /* a block serves several heads, which are not separate tasks */
    bool has_narrow_heads;           /* kernels for D and E up to 8 */
    bool has_few_rows;               /* special kernels for decoding, if no backward pass follows */
} mgk_family;

/* Fails unless an enumeration or set is 0 or the only value that the variant has. */
clmgk_status mgk_check_usual(const clmgk_attention_desc *desc, int64_t value, int64_t usual, const char *field,
                             clmgk_error *error);

/* Sets M by default to H, and checks both, of an admixture variant. */
clmgk_status mgk_resolve_mixed_heads(clmgk_attention_desc *desc, clmgk_error *error);

#define MGK_FAMILY(family) extern const mgk_family mgk_##family##_family;
CLMGK_FAMILY_LIST(MGK_FAMILY)
#undef MGK_FAMILY

/* The family of a variant; NULL for a value outside the enumeration. */
const mgk_family *mgk_family_of(clmgk_variant variant);

/* The description from which a pass is planned. */
typedef struct mgk_pass_request {
    const clmgk_attention_desc *desc, *limits; /* as in mgk_attention_request */
    int64_t most_splits;
    const mgk_device_facts *facts;
    clmgk_engine engine;
    mgk_parameters parameters;
    clmgk_pass pass;
} mgk_pass_request;

/* Plans a pass by the family's function. */
clmgk_status mgk_family_plan(const mgk_family *family, const mgk_pass_request *request, mgk_pass_plan *plan,
                             clmgk_error *error);

#endif
