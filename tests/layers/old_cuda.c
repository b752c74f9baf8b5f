/* SPDX-License-Identifier: Apache-2.0 */
/* A driver of CUDA that is too old for the library: it begins, and lacks the other functions. */
__attribute__((visibility("default"))) int cuInit(unsigned flags);
__attribute__((visibility("default"))) int cuInit(unsigned flags)
{
    (void)flags;
    return 0;
}
