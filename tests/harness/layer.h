/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Multi-head layers for tests: a problem made from a descriptor and a seed, run through the public API with canaries
 * around all arrays, held against the reference. As the functions of harness.h, these fail the test themselves.
 */
#ifndef CLMGK_TEST_LAYER_H
#define CLMGK_TEST_LAYER_H

#include "clmgk/layer.h"
#include "harness/harness.h"
#include "reference/layer.h"

/* The arrays of a layer and of its attention. Arrays between the two, which no caller sees, are unused. */
typedef struct tl_problem {
    clmgk_layer_desc desc; /* resolved; `attention` is NULL: tl_desc */
    th_problem attention;
    th_reference integers; /* what the reference's problem points to */
    th_array array[CLMGK_LAYER_ARRAYS];
    size_t engine; /* the session's engine number that runs it */
} tl_problem;

/* A case for tables: options of layer and attention. */
typedef struct tl_case {
    const char *name;
    clmgk_layer_desc layer;
    clmgk_attention_desc attention;
    bool no_linear; /* the linear family has no such option */
    bool linear;    /* no other family has it */
} tl_case;

/* Random arrays: weights of variance 1 / inputs, gains around 1; the attention's as th_problem_make has them. */
tl_problem tl_make(const clmgk_layer_desc *desc, uint64_t seed);
void tl_free(tl_problem *problem);
#define TL_PROBLEM __attribute__((unused, cleanup(tl_free))) tl_problem
#define TL_ANSWER  __attribute__((unused, cleanup(clmgk_ref_layer_answer_free))) clmgk_ref_layer_answer

/* The descriptor, with that of the attention. */
clmgk_layer_desc tl_desc(const tl_problem *problem);

/* The problem for the reference, which points to the values of this one. */
clmgk_ref_layer tl_reference(tl_problem *problem);

/* All gradients that such a layer has. */
uint32_t tl_all_gradients(const clmgk_layer_desc *desc);

/* ---- runs ------------------------------------------------------------------------------------------------------ */

/* A layer of the problem, kept until the session is closed, so that its programs stay in memory. */
clmgk_layer *tl_layer(th_session *session, const tl_problem *problem);

/* The device side of a problem, for both passes. */
typedef struct tl_device {
    th_device_buffer buffer[CLMGK_LAYER_ARRAYS]; /* activations and workspace are those of both passes */
    th_device attention[2];                      /* of forward and backward */
    clmgk_layer_args args[2];                    /* likewise, but for their field `attention` */
} tl_device;
#define TL_DEVICE __attribute__((unused, cleanup(tl_device_free))) tl_device

/* The problem's values become what the device holds. */
tl_device tl_upload(const th_session *session, tl_problem *problem, const clmgk_layer *layer);
void tl_device_free(tl_device *device);

/* The arguments of a pass, which point into `device`. */
clmgk_layer_args tl_args(const tl_device *device, th_pass pass);

/* Enqueues; fails the test on an error. */
void tl_enqueue(clmgk_layer *layer, cl_command_queue queue, const tl_device *device, th_pass pass);

/* Reads everything back. Only outputs may have changed, and each of their elements must have been written. Outputs
 * become values of the problem; for accumulated gradients only the amount that was added. */
void tl_download(const th_session *session, tl_problem *problem, const tl_device *device, bool backward);

/* Forward, and backward if the descriptor has gradients. */
void tl_run(th_session *session, tl_problem *problem);
void tl_run_with(th_session *session, tl_problem *problem, clmgk_layer *layer);

/* Whether what came back is the reference's answer. */
void tl_check(th_session *session, const tl_problem *problem, const clmgk_ref_layer_answer *answer, const char *name);

/* tl_run, and its result held against the reference. */
void tl_expect(th_session *session, tl_problem *problem, const char *name);

#endif
