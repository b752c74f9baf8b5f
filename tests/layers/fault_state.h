/* SPDX-License-Identifier: Apache-2.0 */
/* One kind of failure point (OpenCL calls, allocations, file operations): counts them and makes one fail. */
#ifndef CLMGK_TESTS_FAULT_STATE_H
#define CLMGK_TESTS_FAULT_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct fault_state {
    const char *kind;
    atomic_bool armed;            /* points are counted, and may fail, only while set */
    atomic_ulong calls;           /* points met */
    atomic_ulong fail_at;         /* the point that fails, from 1; 0: none */
    atomic_bool sticky;           /* all later ones fail too */
    atomic_int code;              /* what it fails with: an OpenCL code or an errno */
    _Atomic(const char *) failed; /* the function that failed first; NULL: none did */
    atomic_long live;             /* objects made and not yet released */
} fault_state;

/* Whether this point, a call of `function`, is to fail. */
bool fault_due(fault_state *state, const char *function);

/* Starts to count from zero; point `fail_at` fails with `code` (0: none fails). */
void fault_arm(fault_state *state, unsigned long fail_at, bool sticky, int code);
void fault_disarm(fault_state *state);

/* A sweep over points takes every n-th one if CLMGK_FAULT_STEP=n is set, because sanitizers are slow; else all. */
unsigned long fault_step(void);

/* Arms for a whole process from the environment's `variable`: "POINT", "POINT+" (sticky), with ":CODE" optional. */
void fault_arm_from_environment(fault_state *state, const char *variable, int default_code);

/* One line on stderr: "KIND: calls=.. live=.. failed=..". */
void fault_report(fault_state *state);

/* The OpenCL layer's state, for a test that loads the layer's file with dlopen: symbol "fault_layer_state". */
typedef fault_state *fault_layer_state_fn(void);

#endif
