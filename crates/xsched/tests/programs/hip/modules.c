/*
 * Uses a library that is linked to many others (module.c): with OPEN it opens the library, as Python does; otherwise it is
 * linked to it. Prints how many launches arrived.
 */
#include <dlfcn.h>
#include <stdio.h>
#include "hip.h"

int module_5(uint64_t *counter);

int main(void) {
    int (*launch)(uint64_t *);
#ifdef OPEN
    void *library = dlopen(OPEN, RTLD_NOW | RTLD_LOCAL);
    launch = library ? (int (*)(uint64_t *))dlsym(library, "module_5") : NULL;
    if (launch == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 70;
    }
#else
    launch = module_5;
#endif
    uint64_t counter = 0;
    int in_constructors = launch(&counter);
    printf("%llu launches arrived, %d in constructors\n", (unsigned long long)counter, in_constructors);
    return 0;
}
