/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PoCL 3.1 for quick tests, which an ICD file names in place of PoCL itself (drivers.py). PoCL optimises all programs,
 * also those that turn optimisation off: it runs LLVM's passes over the module, and allocates registers as for a
 * program that is used often. This library comes before LLVM where PoCL's symbols are looked up. In place of LLVM's
 * passes it lets PoCL run those alone without which kernels can't be linked, and it chooses LLVM's fast allocation of
 * registers.
 */
#include <stdbool.h>

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

void POPULATE_MODULE_PASS_MANAGER(void *builder, void *manager)
{
    (void)builder;
    ADD_PASS(manager, CREATE_INLINER(true));
    ADD_PASS(manager, CREATE_GLOBAL_DCE());
}

__attribute__((constructor)) static void choose_fast_allocation(void)
{
    static const char *const words[] = {"pocl", "-optimize-regalloc=false", "-regalloc=fast", "-disable-copyprop"};
    LLVMParseCommandLineOptions(sizeof words / sizeof words[0], words, "");
}
