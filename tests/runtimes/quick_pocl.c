/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PoCL 3.1 for quick tests, which an ICD file names in place of PoCL itself (drivers.py). PoCL optimises all programs,
 * also those that turn optimisation off: it runs LLVM's passes over the module, and makes code as for a program that is
 * used often. This library comes before LLVM where PoCL's symbols are looked up. In place of LLVM's passes it lets PoCL
 * run those alone without which kernels can't be linked, and it has LLVM make code in the fastest way. Variables in
 * memory are each work-item's own, as PoCL would copy all that it knows to find out for each. The linker gets no
 * libraries: it takes six times as long to read them as to link a kernel, which calls memcpy and memset at most, and
 * these every program has. A function that a kernel calls in several ways is copied once.
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

/*
 * Functions that a kernel calls. PoCL copies a function with all that it calls by
 *
 *     copy(from, name):
 *         get(from, name); unless it is declared alone: note in `callees` all that it calls, and all that these call
 *         for each name in callees: get(from, name); unless it is declared alone: copy(from, name)
 *
 * which takes each way to a function again, a fifth of the time of a test of mixtures. Here a function that
 * was copied counts as declared alone where the loop asks. Its question has that of a copy right after it, about the
 * same text.
 */
#define GET_FUNCTION _ZNK4llvm6Module11getFunctionENS_9StringRefE
typedef void *get_function(const void *module, text name);
get_function GET_FUNCTION;
#define IS_DECLARATION _ZNK4llvm11GlobalValue13isDeclarationEv
typedef bool is_declaration(const void *function);
is_declaration IS_DECLARATION;

typedef struct {
    const void *module, *name, *function;
    const void *place; /* which asks whether it is a declaration */
    unsigned number;   /* of the call of get: addresses are those of an earlier kernel, too */
} question;

enum { COPIED = 4096 };
static __thread struct {
    question got, asked;
    const void *in_loop, *in_copy; /* places of the loop and of a copy */
    unsigned number;               /* of the kernel */
    struct {
        const void *function;
        unsigned number;
    } copied[COPIED]; /* by a hash of the function; a later one takes an earlier one's place */
} copying;

void *GET_FUNCTION(const void *module, text name)
{
    static get_function *next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, NAME_OF(GET_FUNCTION));
    copying.got = (question){module, name.data, next(module, name), NULL, copying.got.number + 1};
    return (void *)copying.got.function;
}

bool IS_DECLARATION(const void *function)
{
    static is_declaration *next;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, NAME_OF(IS_DECLARATION));
    const bool declared = next(function);
    if (declared || function != copying.got.function)
        return declared;
    const question before = copying.asked;
    copying.asked = copying.got;
    copying.asked.place = __builtin_return_address(0);
    const size_t hash = (uintptr_t)function / 16 % COPIED;
    const bool again = before.module == copying.got.module && before.name == copying.got.name &&
                       before.number + 1 == copying.got.number;
    if (again && (copying.in_loop != before.place || copying.in_copy != copying.asked.place)) {
        copying.in_loop = before.place;
        copying.in_copy = copying.asked.place;
        copying.number++; /* the kernel's own question was at a place that was not known */
    }
    if (copying.asked.place == copying.in_copy) {
        copying.number += !again;
        copying.copied[hash].function = function;
        copying.copied[hash].number = copying.number;
    }
    return copying.asked.place == copying.in_loop && copying.copied[hash].function == function &&
           copying.copied[hash].number == copying.number;
}

void *GET_TARGET_ANALYSIS(void *result, void *machine)
{
    get_target_analysis *next;
    *(void **)&next = dlsym(RTLD_NEXT, NAME_OF(GET_TARGET_ANALYSIS));
    SET_OPT_LEVEL(machine, 0);
    return next(result, machine);
}
