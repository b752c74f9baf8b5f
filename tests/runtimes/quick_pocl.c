/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PoCL 3.1 for quick tests, which an ICD file names in place of PoCL itself (drivers.py). PoCL optimises all programs,
 * also those that turn optimisation off: it runs LLVM's passes over the module, and allocates registers as for a
 * program that is used often. This library comes before LLVM where PoCL's symbols are looked up. In place of LLVM's
 * passes it lets PoCL run those alone without which kernels can't be linked, and it chooses LLVM's fast allocation of
 * registers. The linker gets no libraries: it takes six times as long to read them as to link a kernel, which calls
 * memcpy and memset at most, and these every program has.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* Functions of LLVM 15. */
#define POPULATE_MODULE_PASS_MANAGER                                                                                   \
    _ZN4llvm18PassManagerBuilder25populateModulePassManagerERNS_6legacy15PassManagerBaseE
#define ADD_PASS          _ZN4llvm6legacy11PassManager3addEPNS_4PassE
#define CREATE_INLINER    _ZN4llvm29createAlwaysInlinerLegacyPassEb
#define CREATE_GLOBAL_DCE _ZN4llvm19createGlobalDCEPassEv
void POPULATE_MODULE_PASS_MANAGER(void *builder, void *manager);
void ADD_PASS(void *manager, void *pass);
void *CREATE_INLINER(bool inserts_lifetimes);
void *CREATE_GLOBAL_DCE(void);
void LLVMParseCommandLineOptions(int count, const char *const words[], const char *overview);

/* LLVM's StringRef, ArrayRef and Optional<ArrayRef>. */
typedef struct {
    const char *data;
    size_t size;
} text;
typedef struct {
    const void *items;
    size_t count;
} list;
typedef struct {
    list value;
    bool has_value;
} optional_list;

#define EXECUTE_AND_WAIT                                                                                               \
    _ZN4llvm3sys14ExecuteAndWaitENS_9StringRefENS_8ArrayRefIS1_EENS_8OptionalIS3_EENS2_INS4_IS1_EEEEjjPNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEPbPNS4_INS0_17ProcessStatisticsEEEPNS_9BitVectorE
#define TEXT_OF(NAME) #NAME
#define NAME_OF(NAME) TEXT_OF(NAME)
typedef int execute_and_wait(text program, list arguments, optional_list environment, list redirects, unsigned seconds,
                             unsigned memory, void *error, bool *failed, void *statistics, void *processors);
execute_and_wait EXECUTE_AND_WAIT;

void POPULATE_MODULE_PASS_MANAGER(void *builder, void *manager)
{
    (void)builder;
    ADD_PASS(manager, CREATE_INLINER(true));
    ADD_PASS(manager, CREATE_GLOBAL_DCE());
}

/* Leaves the arguments for libraries out: -l and -L. */
int EXECUTE_AND_WAIT(text program, list arguments, optional_list environment, list redirects, unsigned seconds,
                     unsigned memory, void *error, bool *failed, void *statistics, void *processors)
{
    enum { MOST_ARGUMENTS = 64 };
    text kept[MOST_ARGUMENTS];
    const text *const all = arguments.items;
    if (arguments.count <= MOST_ARGUMENTS) {
        size_t count = 0;
        for (size_t i = 0; i < arguments.count; i++)
            if (all[i].size < 2 || (memcmp(all[i].data, "-l", 2) != 0 && memcmp(all[i].data, "-L", 2) != 0))
                kept[count++] = all[i];
        arguments = (list){kept, count};
    }
    execute_and_wait *next;
    *(void **)&next = dlsym(RTLD_NEXT, NAME_OF(EXECUTE_AND_WAIT));
    return next(program, arguments, environment, redirects, seconds, memory, error, failed, statistics, processors);
}

__attribute__((constructor)) static void choose_fast_allocation(void)
{
    static const char *const words[] = {"pocl", "-optimize-regalloc=false", "-regalloc=fast", "-disable-copyprop"};
    LLVMParseCommandLineOptions(sizeof words / sizeof words[0], words, "");
}
