/*
 * Opens a library with names of CUDA (borrowed.c) as Python opens its modules, and runs its kernels in rounds. With WITH_CUDA it
 * also runs kernels of NVIDIA's driver, which it opens, too.
 *
 *   borrower LIBRARY ROUNDS
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef WITH_CUDA
#include "gpu.h"
#endif

static const char *file_of(void *function) {
    Dl_info info;
    if (function == NULL) return "none";
    if (dladdr(function, &info) == 0) return "?";
    const char *name = strrchr(info.dli_fname, '/');
    return name == NULL ? info.dli_fname : name + 1;
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    setvbuf(stdout, NULL, _IOLBF, 0);
#ifdef WITH_CUDA
    open_gpu();
#endif
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    long (*borrowed_round)(void) = library ? (long (*)(void))dlsym(library, "borrowed_round") : NULL;
    if (borrowed_round == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 70;
    }
    printf("its own: %s", file_of(dlsym(library, "cuLaunchKernel")));
#ifndef WITH_CUDA
    /* With the driver, a hook is found. */
    printf(", in all libraries: %s", file_of(dlsym(RTLD_DEFAULT, "cuLaunchKernel")));
#endif
    printf("\n");
    for (long round = 1; round <= atol(argv[2]); round++) {
#ifdef WITH_CUDA
        MUST(spin(NULL, 1000000));
        MUST(cuStreamSynchronize(NULL));
#endif
        printf("round %ld: %ld arrived\n", round, borrowed_round());
    }
    return 0;
}
