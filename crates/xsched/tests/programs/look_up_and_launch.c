/*
 * Looks up the simulated device's functions with dlsym, launches 50 commands, and prints how many completed and which library
 * the launch function is in. Also looks up a function by version, and one of a vendor library that is not loaded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    void *library = dlopen("libxsim.so", RTLD_NOW), *device, *queue;
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    int (*open_device)(const char *, void **) = dlsym(library, "xsim_open");
    int (*create)(void *, void **) = dlsym(library, "xsim_queue_create");
    int (*launch)(void *, uint64_t) = dlsym(library, "xsim_launch");
    int (*synchronize)(void *) = dlsym(library, "xsim_synchronize");
    int (*count)(void *, uint64_t *) = dlsym(library, "xsim_finished");
    uint64_t completed = 0;
    Dl_info info;
    if (open_device(NULL, &device) || create(device, &queue))
        return 2;
    for (int n = 0; n < 50; n++)
        if (launch(queue, 100000))
            return 3;
    if (synchronize(queue) || count(queue, &completed) || !dladdr((void *)launch, &info))
        return 4;
    const char *file = strrchr(info.dli_fname, '/');
    printf("%d commands, launched by %s, versioned %s, absent %s\n", (int)completed, file ? file + 1 : info.dli_fname,
           dlvsym(RTLD_DEFAULT, "getpid", "GLIBC_2.17") ? "found" : "missing", dlsym(RTLD_DEFAULT, "cuLaunchKernel") ? "found" : "missing");
    return 0;
}
