/* SPDX-License-Identifier: Apache-2.0 */
/* Types of the functions of cl_intel_subgroup_matrix_multiply_accumulate that multiply 16-bit numbers, for compilers
 * that do not know the extension: of sub-groups of 16, then of 8. */
float8 __attribute__((overloadable)) intel_sub_group_f16_f16_matrix_mad_k16(short8 a, int8 b, float8 sums);
float8 __attribute__((overloadable)) intel_sub_group_bf16_bf16_matrix_mad_k16(short8 a, int8 b, float8 sums);
float8 __attribute__((overloadable)) intel_sub_group_f16_f16_matrix_mad_k16(int8 a, int8 b, float8 sums);
float8 __attribute__((overloadable)) intel_sub_group_bf16_bf16_matrix_mad_k16(int8 a, int8 b, float8 sums);
