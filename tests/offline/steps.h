/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a plan, for programs that execute their machine code. */
#ifndef OFFLINE_STEPS_H
#define OFFLINE_STEPS_H

#include "attention/core/family.h"

/* Prints a step; name_of: the array's name by a buffer's number in a call. */
void offline_print_step(const mgk_step *step, const char *(*name_of)(int buffer));

/*
 * Sets fields of the descriptor, of any variant, from `texts`, such as "length=70", "variant=mgk" or "k.token=72", and
 * prints the problem and the steps that the matrix engine's plan of the pass has. `parameters=...` are the plan's.
 *
 *     problem FIELD=VALUE ...                                          after defaults
 *     step FILE KERNEL WORK-ITEMS WORK-GROUP ARRAYS ARGUMENTS OPTIONS  arrays: names with commas; arguments:
 * hexadecimal workspace BYTES
 *
 * Returns 0, or 1 after a message.
 */
int offline_print_steps(clmgk_attention_desc desc, clmgk_pass pass, const mgk_device_facts *facts, int count,
                        char **texts);

#endif
