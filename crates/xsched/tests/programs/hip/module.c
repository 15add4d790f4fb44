/*
 * One of several libraries that are linked together, as those of a framework are: NUMBER of them, 0 being the last. Each
 * registers its kernels with the runtime in a constructor, as the code that AMD's compiler generates does. With
 * LAUNCH_IN_CONSTRUCTOR it also launches there.
 */
#include <stdio.h>
#include <stdlib.h>
#include "hip.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define THIS JOIN(module_, NUMBER)

void **__hipRegisterFatBinary(const void *);
int THIS(uint64_t *counter);
#if NUMBER > 0
int JOIN(module_, NEXT)(uint64_t *counter);
#endif

static char increment;
static int in_constructor;

static int launch(uint64_t *counter) {
    void *args[] = {&counter};
    dim3 one = {1, 1, 1};
    int code = hipLaunchKernel(&increment, one, one, args, 0, NULL);
    return code ? code : hipStreamSynchronize(NULL);
}

__attribute__((constructor)) static void register_kernels(void) {
    static const char code_object[64];
    void **module = __hipRegisterFatBinary(code_object);
    __hipRegisterFunction(module, &increment, "increment", "increment", 0, NULL, NULL, NULL, NULL, NULL);
#ifdef LAUNCH_IN_CONSTRUCTOR
    uint64_t *counter = NULL;
    if (hipMalloc((void **)&counter, 8) != 0 || launch(counter) != 0) abort();
    in_constructor = (int)*counter;
    hipFree(counter);
#endif
}

/* Launches in this library and in those that it is linked to. Returns the number of launches in constructors. */
int THIS(uint64_t *counter) {
    if (launch(counter) != 0) abort();
#if NUMBER > 0
    return in_constructor + JOIN(module_, NEXT)(counter);
#else
    return in_constructor;
#endif
}
