/* SPDX-License-Identifier: Apache-2.0 */
#include "harness/harness.h"

int main(void)
{
    return th_run_tests();
}
