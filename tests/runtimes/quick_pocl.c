/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PoCL 3.1 for quick tests, which an ICD file names in place of PoCL itself (drivers.py). PoCL optimises all programs,
 * also those that turn optimisation off: it runs LLVM's passes over the module, and makes code as for a program that is
 * used often. This library comes before LLVM where PoCL's symbols are looked up. In place of LLVM's passes it lets PoCL
 * run those alone without which kernels can't be linked, and it has LLVM make code in the fastest way. Variables in
 * memory are each work-item's own, as PoCL would copy all that it knows to find out for each. The linker gets no
 * libraries: it takes six times as long to read them as to link a kernel, which calls memcpy and memset at most, and
 * these every program has.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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
#define SET_OPT_LEVEL _ZN4llvm13TargetMachine11setOptLevelENS_10CodeGenOpt5LevelE
void SET_OPT_LEVEL(void *machine, int level);

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
#define GET_PASS_INFO _ZNK4llvm12PassRegistry11getPassInfoENS_9StringRefE
typedef const void *get_pass_info(const void *registry, text name);
get_pass_info GET_PASS_INFO;
void *LLVMIsAAllocaInst(void *value);
/* What LLVM knows about the processor's instructions: PoCL asks once, before it makes code. */
#define GET_TARGET_ANALYSIS _ZNK4llvm13TargetMachine19getTargetIRAnalysisEv
typedef void *get_target_analysis(void *result, void *machine);
get_target_analysis GET_TARGET_ANALYSIS;

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

/* PoCL's analysis of what all work-items of a group share. */
enum { IS_UNIFORM = 18 }; /* in the table of virtual functions */
typedef bool is_uniform(void *analysis, void *function, void *value);
static is_uniform *pocl_is_uniform;

static bool is_uniform_outside_memory(void *analysis, void *function, void *value)
{
    return !LLVMIsAAllocaInst(value) && pocl_is_uniform(analysis, function, value);
}

/* LLVM 15's description of a pass. */
typedef struct {
    text name, argument;
    const void *identity;
    bool is_cfg_only, is_analysis;
    const void *interfaces[3];
    void **(*make)(void); /* an object begins with its table of virtual functions */
} pass_info;

static void simplify_uniformity(const pass_info *info)
{
    is_uniform **const entry = *(is_uniform ***)info->make() + IS_UNIFORM;
    const uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!pocl_is_uniform && mprotect((void *)((uintptr_t)entry / size * size), size, PROT_READ | PROT_WRITE) == 0) {
        pocl_is_uniform = *entry;
        *entry = is_uniform_outside_memory;
    }
}

static bool is_text(text given, const char *expected)
{
    return given.size == strlen(expected) && memcmp(given.data, expected, given.size) == 0;
}

/* In place of the pass that deletes loops, for which LLVM analyses all of them, PoCL runs the one that follows it. */
const void *GET_PASS_INFO(const void *registry, text name)
{
    static const char next_one[] = "remove-barriers";
    get_pass_info *next;
    *(void **)&next = dlsym(RTLD_NEXT, NAME_OF(GET_PASS_INFO));
    const void *const info =
        next(registry, is_text(name, "loop-deletion") ? (text){next_one, sizeof next_one - 1} : name);
    if (is_text(name, "uniformity"))
        simplify_uniformity(info);
    return info;
}

void *GET_TARGET_ANALYSIS(void *result, void *machine)
{
    get_target_analysis *next;
    *(void **)&next = dlsym(RTLD_NEXT, NAME_OF(GET_TARGET_ANALYSIS));
    SET_OPT_LEVEL(machine, 0);
    return next(result, machine);
}
