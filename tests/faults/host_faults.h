/* SPDX-License-Identifier: Apache-2.0 */
/* Allocations and file operations that can be made to fail: a program linked with host_faults.c and the linker's
 * --wrap options of this folder's CMakeLists.txt. Environment: FAULT_MEMORY, FAULT_FILES (fault_state.h). */
#ifndef CLMGK_TESTS_HOST_FAULTS_H
#define CLMGK_TESTS_HOST_FAULTS_H

#include "fault_state.h"

extern fault_state host_memory_faults;
extern fault_state host_file_faults;

#endif
