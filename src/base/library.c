/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries loaded on demand. */
#include "base/base.h"

#include <dlfcn.h>
#include <string.h>

clmgk_status mgk_library_load(const char *soname, const char *const *names, size_t count, void *functions,
                              clmgk_error *error)
{
    void *const library = dlopen(soname, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    const char *missing = NULL;
    if (library == NULL)
        return mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%s could not be loaded", soname);
    for (size_t i = 0; i < count && missing == NULL; ++i) {
        void *const symbol = dlsym(library, names[i]);
        if (symbol == NULL)
            missing = names[i];
        /* C has no conversion from object to function pointers */
        memcpy((char *)functions + i * sizeof(symbol), &symbol, sizeof(symbol));
    }
    (void)dlclose(library); /* RTLD_NODELETE: it stays */
    return missing == NULL
               ? CLMGK_OK
               : mgk_fail(error, CLMGK_ERROR_UNSUPPORTED, "%s is another version: it has no %s", soname, missing);
}
