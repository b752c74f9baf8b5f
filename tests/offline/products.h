/* SPDX-License-Identifier: Apache-2.0 */
/* Products by matrix units: their configurations, and steps for programs that execute their machine code. */
#ifndef OFFLINE_PRODUCTS_H
#define OFFLINE_PRODUCTS_H

#include "device/device.h"

/* Prints the configurations: of devices without units, with mma.sync, and with wgmma. Returns 0, or 1 after a message.
 */
int offline_print_fragments(const mgk_device_facts *gpu, const mgk_device_facts *nvidia,
                            const mgk_device_facts *hopper);

/* Prints the configurations of the products of a direct unit, whose name `engine` has. */
int offline_print_direct(const char *engine, const mgk_device_facts *facts);

/*
 * Prints the step of the product whose fields `texts` set, such as "m=70" or "transpose_a=1", as offline_print_steps
 * does. `dtype=1`: f16; `parameters=...` are the plan's. Returns 0, or 1 after a message.
 */
int offline_print_product(const mgk_device_facts *facts, int count, char **texts);

#endif
